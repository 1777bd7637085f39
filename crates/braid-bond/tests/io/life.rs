//! Failing lines, ends that stop and return, and impostors.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_bond::io::{ClientEvent, HubEvent, HubStatus};
use braid_bond::proto::frame::Reason;
use braid_bond::proto::tunnel::Event;
use braid_core::Bytes;
use socket2::{Domain, Socket, Type};

use crate::net::{serve, udp_socket};
use crate::world::{
    self, Client, HUB, Hub, Outer, PATIENCE, World, identity, link, links, wait_for,
};

const SERVICE: u16 = 7777;

fn hub_status(hub: &Hub) -> HubStatus {
    hub.handle.status().expect("it runs")
}

/// A download through the tunnel that runs until it is ended; every byte is checked.
struct Download {
    thread: JoinHandle<()>,
    /// Bytes received and checked.
    received: Arc<AtomicU64>,
    stop: TcpStream,
}

impl Download {
    /// From the hub to the client.
    fn start(world: &World) -> Download {
        let address = SocketAddr::new(world::address(HUB[0]), SERVICE);
        let listener = world
            .hub
            .enter(|| TcpListener::bind(address).expect("a free port"));
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the client calls");
            let block: Vec<u8> = (0..=255).cycle().take(64 * 1024).collect();
            while stream.write_all(&block).is_ok() {}
        });
        let mut stream = world
            .client
            .enter(|| TcpStream::connect_timeout(&address, PATIENCE).expect("the hub listens"));
        stream.set_read_timeout(Some(PATIENCE)).expect("a stream");
        let stop = stream.try_clone().expect("a second handle");
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            let mut total = 0u64;
            loop {
                let size = match stream.read(&mut buffer) {
                    Ok(size) => size,
                    // The sender resets the connection because of data that it has not read.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
                    Err(error) => panic!("it never stops: {error}"),
                };
                if size == 0 {
                    return;
                }
                for byte in &buffer[..size] {
                    assert_eq!(*byte, total as u8, "at {total}");
                    total += 1;
                }
                count.store(total, Ordering::Relaxed);
            }
        });
        Download {
            thread,
            received,
            stop,
        }
    }

    /// Waits until so many bytes were received. Links bring more, which waits for the reader on a busy machine.
    fn until_received(&self, bytes: u64) {
        let received = || self.received.load(Ordering::Relaxed);
        wait_for(|| received() > bytes, || format!("{} bytes", received()));
    }

    /// Ends the download.
    fn end(self) {
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        self.thread.join().expect("every byte was right");
    }
}

/// Bytes received over a link.
fn received(client: &Client, link: usize) -> u64 {
    client.status().links[link].received.bytes.get()
}

/// Waits until a link has received this much more.
fn until_brought(client: &Client, link: usize, bytes: u64) {
    let before = received(client, link);
    wait_for(
        || received(client, link) >= before + bytes,
        || format!("{:#?}", client.status()),
    );
}

/// Limits both directions of a line, in Mbit/s.
fn limit(world: &World, line: u8, rate: u32) {
    let shape = format!("root tbf rate {rate}mbit burst 32k latency 100ms");
    world
        .client
        .run(&format!("tc qdisc add dev wan{line} {shape}"));
    world
        .hub
        .run(&format!("tc qdisc add dev isp{line} {shape}"));
}

#[test]
fn a_line_that_falls_silent_under_load_is_abandoned_and_used_again_later() {
    let world = World::new();
    let _hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    (0..2).for_each(|line| limit(&world, line, 100));
    client.until_in_use(&[0, 1]);
    let download = Download::start(&world);
    (0..2).for_each(|line| until_brought(&client, line, 2_000_000));
    // Nothing passes line 1 any more, and neither end is told.
    world.hub.ip("link set isp1 down");
    until_brought(&client, 0, 2_000_000);
    let outage = Instant::now();
    until_brought(&client, 0, 2_000_000);
    println!("2 MB in {:?} after the silence", outage.elapsed());
    world.hub.ip("link set isp1 up");
    until_brought(&client, 1, 1_000_000);
    download.until_received(6_000_000);
    download.end();
}

#[test]
fn a_removed_device_is_reported_and_used_again_later() {
    let world = World::new();
    let _hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    client.until_in_use(&[0, 1]);
    let download = Download::start(&world);
    world.client.ip("link set wan1 down");
    let event = client.until_event(|event| matches!(event, ClientEvent::LinkFailed { .. }));
    let ClientEvent::LinkFailed { id, device, error } = event else {
        unreachable!()
    };
    assert_eq!((id.0, device.as_str()), (1, "wan1"));
    println!("{error}");
    until_brought(&client, 0, 2_000_000);
    world.client.ip("link set wan1 up");
    world
        .client
        .ip("route add default via 10.2.0.1 dev wan1 metric 2");
    client.handle.set_links(links(Outer::V4));
    client.until_event(|event| matches!(event, ClientEvent::LinkRecovered { .. }));
    client.until_in_use(&[0, 1]);
    download.end();
}

/// Downloads count against a quota as well, and only the hub can avoid them.
#[test]
fn a_line_without_quota_left_carries_no_download() {
    let world = World::new();
    let _hub = world.start_hub(true);
    let mut wanted = links(Outer::V4);
    wanted[1].quota = Some(Bytes::new(0));
    let client = world.start_client(true, wanted);
    (0..2).for_each(|line| limit(&world, line, 100));
    client.until_in_use(&[0, 1]);
    let download = Download::start(&world);
    // Bytes that arrived before the hub knew of the quota do not count.
    until_brought(&client, 0, 1_000_000);
    let before = received(&client, 1);
    until_brought(&client, 0, 5_000_000);
    let spent = received(&client, 1) - before;
    assert!(spent < 100_000, "{spent} bytes over the line without quota");
    client.handle.set_links(links(Outer::V4));
    until_brought(&client, 1, 1_000_000);
    download.end();
}

#[test]
fn a_restarted_hub_is_reconnected() {
    let world = World::new();
    let hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    client.until_in_use(&[0, 1]);
    drop(hub);
    client
        .until_event(|event| matches!(event, ClientEvent::Tunnel(Event::Closed(Reason::Stopped))));
    let _hub = world.start_hub(true);
    client.until_event(|event| {
        let anew = |event: &Event| {
            matches!(
                event,
                Event::Established {
                    continued: false,
                    ..
                }
            )
        };
        matches!(event, ClientEvent::Tunnel(event) if anew(event))
    });
    world.client.run(&format!("ping -q -c 1 -W 5 {}", HUB[0]));
}

#[test]
fn a_client_that_moves_keeps_its_session() {
    let world = World::new();
    let hub = world.start_hub(true);
    let client = world.start_client(true, vec![link(0, Outer::V4)]);
    client.until_in_use(&[0]);
    let download = Download::start(&world);
    until_brought(&client, 0, 2_000_000);
    world.client.ip("addr add 10.1.0.77/24 dev wan0");
    let mut moved = link(0, Outer::V4);
    moved.source = world::address("10.1.0.77");
    client.handle.set_links(vec![moved]);
    let to = world::address("10.1.0.77");
    hub.until_event(
        |event| matches!(event, HubEvent::Peer(_, Event::PathMigrated { to: now, .. }) if now.ip() == to),
    );
    let seen = || {
        let links = hub_status(&hub).peers.swap_remove(0).links;
        links[0].remote.map(|remote| remote.ip())
    };
    wait_for(|| seen() == Some(to), || format!("{:?}", seen()));
    until_brought(&client, 0, 2_000_000);
    download.until_received(3_000_000);
    download.end();
    let established =
        |event: &ClientEvent| matches!(event, ClientEvent::Tunnel(Event::Established { .. }));
    assert_eq!(client.events.try_iter().filter(established).count(), 1);
}

#[test]
fn an_address_that_is_not_its_own_gets_a_client_nowhere() {
    let world = World::new();
    let hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    client.until_in_use(&[0, 1]);
    let server = SocketAddr::new(world::address(HUB[0]), SERVICE);
    serve(&world.hub, server.ip(), SERVICE);
    world.client.ip("addr add 10.9.0.66/32 dev bond0");
    world.client.enter(|| {
        let socket = UdpSocket::bind("10.9.0.66:0").expect("an address of the device");
        (0..5).for_each(|_| _ = socket.send_to(b"hello", server).expect("it is routed"));
    });
    wait_for(
        || hub_status(&hub).peers[0].spoofed == 5,
        || format!("{:#?}", hub_status(&hub)),
    );
    world.client.enter(|| {
        crate::net::ask(&udp_socket(server), server).expect("its own address is heard");
    });
}

#[test]
fn a_revoked_client_is_told_and_heard_no_more() {
    let world = World::new();
    let hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    client.until_in_use(&[0, 1]);
    hub.handle.revoke(identity(1).public());
    client
        .until_event(|event| matches!(event, ClientEvent::Tunnel(Event::Closed(Reason::Revoked))));
    wait_for(
        || hub_status(&hub).listener.unknown_peers > 0,
        || format!("{:#?}", hub_status(&hub)),
    );
    assert!(hub_status(&hub).peers.is_empty());
}

#[test]
fn unknown_clients_get_no_session() {
    let world = World::new();
    let hub = world.start_hub(true);
    let client = world.start_client_as(9, true, links(Outer::V6));
    wait_for(
        || hub_status(&hub).listener.unknown_peers > 0,
        || format!("{:#?}", hub_status(&hub)),
    );
    assert_eq!(client.status().session, None);
}

#[test]
fn two_lines_carry_their_sum() {
    let world = World::alone();
    let hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    (0..2).for_each(|line| limit(&world, line, 10));
    client.until_in_use(&[0, 1]);
    let download = Download::start(&world);
    (0..2).for_each(|line| until_brought(&client, line, 1_000_000));
    let before = [0, 1].map(|line| received(&client, line));
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let span = begun.elapsed().as_secs_f64();
    let rates =
        [0, 1].map(|line: usize| (received(&client, line) - before[line]) as f64 * 8e-6 / span);
    let status = hub_status(&hub);
    let heard = status.peers[0].links.iter();
    let heard: Vec<u64> = heard.map(|link| link.received.packets).collect();
    assert!(
        heard.len() == 2 && heard.iter().all(|packets| *packets > 10),
        "{heard:?}"
    );
    let saved = status.peers[0].flow.saved;
    download.end();
    println!("{rates:.1?} Mbit/s, {saved:?} of headers");
    assert!(
        saved.bytes > saved.packets * 30 && saved.packets > 1000,
        "{saved:?}"
    );
    assert!(rates.iter().sum::<f64>() > 15.0, "{rates:?}");
}

/// Captures GRE packets to the client, as links, keys and sequence numbers, until there are `least`
/// of each of two links. They are captured as the hub sends them: on the way, the queues of two
/// processors may change their order.
fn overheard(world: &World, least: usize) -> [Vec<(u32, u32)>; 2] {
    // Of sent packets, only sockets for all protocols get copies.
    let protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
    let mut socket = world.hub.enter(|| {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol.into()));
        socket.expect("it is root")
    });
    let timeout = socket.set_read_timeout(Some(PATIENCE));
    timeout.expect("a socket");
    let mut heard = [Vec::new(), Vec::new()];
    let mut packet = [0; 2048];
    while heard.iter().any(|packets| packets.len() < least) {
        let size = socket.read(&mut packet).expect("it goes on");
        let packet = &packet[..size.min(2048)];
        let is_gre = packet.len() > 32 && packet[9] == 47;
        if !is_gre || packet[12..16] != [192, 0, 2, 1] {
            continue;
        }
        assert_eq!(packet[0], 0x45, "no options");
        assert_eq!(packet[20..24], [0x30, 0, 0x88, 0xb5], "key and sequence");
        let word = |at| u32::from_be_bytes(std::array::from_fn(|byte| packet[at + byte]));
        // Cleartext frames are inner packets, or GRE probes.
        assert!(packet[35] >= 0x80 || packet[35] == 1, "{packet:x?}");
        let link = usize::from(packet[17]) - 1;
        heard[link].push((word(24), word(28)));
    }
    heard
}

#[test]
fn where_networks_are_trusted_one_flow_takes_both_lines_as_gre() {
    let world = World::trusted();
    let _hub = world.start_hub(true);
    let client = world.start_client(true, links(Outer::V4));
    (0..2).for_each(|line| limit(&world, line, 50));
    client.until_in_use(&[0, 1]);
    let download = Download::start(&world);
    (0..2).for_each(|line| until_brought(&client, line, 1_000_000));
    let heard = overheard(&world, 1000);
    let keys = [0, 1].map(|link: usize| heard[link][0].0);
    // The first byte names the link, the others the session.
    assert_eq!(keys.map(|key| key >> 24), [0x40, 0x41]);
    assert_eq!(keys[0] & 0x00ff_ffff, keys[1] & 0x00ff_ffff);
    for (link, packets) in heard.iter().enumerate() {
        assert!(packets.iter().all(|(key, _)| *key == keys[link]));
        let numbers = packets.iter().map(|packet| packet.1).collect::<Vec<_>>();
        let late = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
        assert_eq!(late, None, "link {link}");
        let span = (packets[999].1 - packets[0].1) as usize;
        println!("link {link}: {span} numbers for 1000 packets");
        assert!(span < 2000, "what is sealed is numbered with them: {span}");
    }
    download.until_received(2_000_000);
    download.end();
}
