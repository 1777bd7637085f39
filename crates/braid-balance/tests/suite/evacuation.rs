//! An uplink dies under real sockets: of the host and of a LAN, with offloads on and off, over
//! Ethernet and without it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use braid_balance::{Datapath, Flow, FlowState, HookKind, KernelTime, Layer, Release};
use braid_core::UplinkId;

use crate::support;
use crate::support::net::{Client, Namespace, PATIENCE, udp_socket};
use crate::support::world::{OUTSIDE, PORT, QUIC, SERVER_V4, SERVER_V6, World, reason, uplink_of};

/// Says that an uplink is dead, before anything else is done about it.
fn bury(world: &World, datapath: &mut Datapath, uplink: usize) {
    let mut uplinks = world.uplinks();
    uplinks[uplink].accepts_new = false;
    uplinks[uplink].resets_tcp = true;
    datapath.set_uplinks(&uplinks).expect("uplinks");
}

/// A connection by a given uplink: slots take turns.
fn connect(from: &Namespace, server: SocketAddr, uplink: usize) -> Client {
    from.enter(|| {
        let clients = (0..4).map(|_| Client::connect(server));
        let mut on_it = clients.filter(|client| uplink_of(client.seen) == uplink);
        on_it.next().expect("one of four")
    })
}

#[track_caller]
fn was_reset(result: std::io::Result<usize>, who: &str) {
    let error = result.expect_err(who);
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{who}: {error}");
}

/// Every kind of connection on a dying uplink learns of it; those on the other one do not.
fn connections_are_told(world: &World) {
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    for (from, name) in [(&world.host, "host"), (&world.client, "lan")] {
        for server in [SERVER_V4, SERVER_V6] {
            let server = SocketAddr::new(server, PORT);
            let who = |what: &str| format!("{name}, {server}: {what}");
            let mut listens = connect(from, server, 0);
            let mut speaks = connect(from, server, 0);
            let mut other = connect(from, server, 1);
            speaks.echo(&[1; 10_000]);
            bury(world, &mut datapath, 0);
            speaks.stream.write_all(&[2; 10_000]).expect("buffered");
            was_reset(speaks.stream.read(&mut [0; 9]), &who("speaks"));
            let evacuate = || datapath.evacuate(UplinkId(0), true, |_| true);
            let done = world.host.enter(evacuate).expect("evacuated");
            assert!(done.tcp_reset >= 1, "{}: {done:?}", who("evacuated"));
            was_reset(listens.stream.read(&mut [0; 9]), &who("listens"));
            other.echo(&[3; 10_000]);
            let again = from.enter(|| Client::connect(server));
            assert_eq!(uplink_of(again.seen), 1);
            let again = world
                .host
                .enter(|| datapath.evacuate(UplinkId(0), true, |_| true));
            assert_eq!(again.expect("repeated").tcp_reset, 0, "told once is enough");
            datapath.set_uplinks(&world.uplinks()).expect("uplinks");
        }
    }
    assert!(reason(&datapath, "out_reset") + reason(&datapath, "lan_reset") >= 4);
}

#[test]
fn connections_are_told_with_real_checksums() {
    let world = World::new();
    world.serve();
    world.offloads(false);
    connections_are_told(&world);
}

#[test]
fn connections_are_told_with_offloads() {
    let world = World::new();
    world.serve();
    connections_are_told(&world);
}

#[test]
fn connections_are_told_on_devices_without_ethernet_headers() {
    let world = World::with_uplinks(Layer::L3);
    world.serve();
    connections_are_told(&world);
}

/// A LAN whose firewall drops what connection tracking calls invalid.
#[test]
fn connections_are_told_behind_a_firewall() {
    let world = World::new();
    world.serve();
    let host = &world.host;
    host.run("nft add table inet fw");
    host.run(
        "nft add chain inet fw forward { type filter hook forward priority 0 ; policy drop ; }",
    );
    host.run("nft add rule inet fw forward ct state invalid drop");
    host.run("nft add rule inet fw forward ct state established,related accept");
    host.run("nft add rule inet fw forward iifname lan0 accept");
    host.run("nft add chain inet fw input { type filter hook input priority 0 ; policy accept ; }");
    host.run("nft add rule inet fw input ct state invalid drop");
    connections_are_told(&world);
}

/// A server of "QUIC" that goes on sending to the last address that it has heard from.
struct Pusher(UdpSocket);

impl Pusher {
    /// One for each IP version. Addresses are bound once in a test: a program that another test starts
    /// has a copy of every socket until it is executed, so a socket that was dropped may live on.
    fn both(inet: &Namespace) -> [Self; 2] {
        [SERVER_V4, SERVER_V6].map(|server| {
            let server = SocketAddr::new(server, QUIC);
            let socket = inet.enter(|| UdpSocket::bind(server).expect("a free port"));
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            Self(socket)
        })
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    fn hear(&self) -> (SocketAddr, Vec<u8>) {
        let mut bytes = [0; 2048];
        let (length, from) = self.0.recv_from(&mut bytes).expect("a datagram");
        (from, bytes[..length].to_vec())
    }
}

#[test]
fn quic_that_only_listens_is_moved_and_late_answers_arrive() {
    let world = World::new();
    world.offloads(false);
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let pushers = Pusher::both(&world.inet);
    for from in [&world.host, &world.client] {
        for pusher in &pushers {
            let server = pusher.address();
            let socket = from.enter(|| udp_socket(server));
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            socket.connect(server).expect("a route");
            let receive = || {
                let mut bytes = [0; 2048];
                let length = socket.recv(&mut bytes).expect("a datagram");
                bytes[..length].to_vec()
            };
            socket.send(b"hello").expect("sent");
            let (old, _) = pusher.hear();
            pusher.0.send_to(b"data", old).expect("sent");
            assert_eq!(receive(), b"data");
            socket.send(b"ack").expect("sent");
            pusher.hear();

            let died = uplink_of(old);
            bury(&world, &mut datapath, died);
            let id = UplinkId(u8::try_from(died).expect("small"));
            let evacuate = || datapath.evacuate(id, true, |_| true);
            let done = world.host.enter(evacuate).expect("evacuated");
            assert_eq!(done.quic_moved, 1, "{done:?}");
            let (new, words) = pusher.hear();
            assert_eq!(words, b"ack", "its last words");
            assert_eq!(uplink_of(new), 1 - died);
            let ended = end_unanswered_moves(&world, &mut datapath);
            assert_eq!(ended, [], "its client has said nothing yet");
            pusher.0.send_to(b"late", old).expect("sent");
            assert_eq!(receive(), b"late");
            pusher.0.send_to(b"more", new).expect("sent");
            assert_eq!(receive(), b"more");
            socket.send(b"and more").expect("sent");
            assert_eq!(pusher.hear().0, new);
            assert_eq!(end_unanswered_moves(&world, &mut datapath), []);
            datapath.set_uplinks(&world.uplinks()).expect("uplinks");
        }
    }
}

/// The buffer keeps the last two of many unanswered probes, and they evict no acknowledgement.
#[test]
fn what_was_said_upon_hearing_is_said_again_before_the_probes_that_followed() {
    let world = World::new();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let pushers = Pusher::both(&world.inet);
    for from in [&world.host, &world.client] {
        for pusher in &pushers {
            let server = pusher.address();
            let socket = from.enter(|| udp_socket(server));
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            socket.connect(server).expect("a route");
            socket.send(b"hello").expect("sent");
            let (old, _) = pusher.hear();
            for said in ["ack 1", "ack 2", "ack 3"] {
                pusher.0.send_to(b"data", old).expect("sent");
                assert_eq!(socket.recv(&mut [0; 9]).expect("data"), 4);
                socket.send(said.as_bytes()).expect("sent");
                assert_eq!(pusher.hear().1, said.as_bytes());
            }
            for probe in ["probe 1", "probe 2", "probe 3"] {
                socket.send(probe.as_bytes()).expect("sent");
                assert_eq!(pusher.hear().1, probe.as_bytes());
            }

            let died = uplink_of(old);
            bury(&world, &mut datapath, died);
            let id = UplinkId(u8::try_from(died).expect("small"));
            let evacuate = || datapath.evacuate(id, true, |_| true);
            let done = world.host.enter(evacuate).expect("evacuated");
            assert_eq!(done.quic_moved, 1, "{done:?}");
            for again in ["ack 2", "ack 3", "probe 2", "probe 3"] {
                let (new, words) = pusher.hear();
                assert_eq!(String::from_utf8_lossy(&words), again);
                assert_eq!(uplink_of(new), 1 - died);
            }
            let ended = end_unanswered_moves(&world, &mut datapath);
            assert_eq!(ended, [], "its client has said nothing new");
            datapath.set_uplinks(&world.uplinks()).expect("uplinks");
        }
    }
}

fn end_unanswered_moves(world: &World, datapath: &mut Datapath) -> Vec<Flow> {
    let end = || datapath.end_unanswered_moves(Duration::ZERO, KernelTime::now());
    world.host.enter(end).expect("flows")
}

#[test]
fn quic_that_has_moved_to_no_avail_is_told() {
    let world = World::new();
    world.offloads(false);
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let pushers = Pusher::both(&world.inet);
    for (from, known) in [
        (&world.host, false),
        (&world.client, false),
        (&world.host, true),
        (&world.client, true),
    ] {
        for pusher in &pushers {
            let server = pusher.address();
            let socket = from.enter(|| udp_socket(server));
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            socket.connect(server).expect("a route");
            socket.send(b"hello").expect("sent");
            let (old, _) = pusher.hear();
            pusher.0.send_to(b"data", old).expect("sent");
            assert_eq!(socket.recv(&mut [0; 9]).expect("data"), 4);

            let died = uplink_of(old);
            bury(&world, &mut datapath, died);
            // It goes on by the other uplink before anybody has looked at it.
            let ask = || {
                socket.send(b"anybody there?").expect("sent");
                assert_eq!(uplink_of(pusher.hear().0), 1 - died);
            };
            ask();
            let id = UplinkId(u8::try_from(died).expect("small"));
            let evacuate = || datapath.evacuate(id, true, |_| !known);
            let done = world.host.enter(evacuate).expect("evacuated");
            assert_eq!(done.quic_unreachable, usize::from(known), "{done:?}");
            let asking = Instant::now();
            let mut told = known;
            while !told {
                let ended = end_unanswered_moves(&world, &mut datapath);
                told = ended.iter().any(|flow| flow.remote == Some(server));
                assert!(asking.elapsed() < PATIENCE, "{ended:?}");
                if !told {
                    ask();
                }
            }
            let error = socket.recv(&mut [0; 9]).expect_err("nobody is there");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{server}");
            assert_eq!(end_unanswered_moves(&world, &mut datapath), []);
            datapath.set_uplinks(&world.uplinks()).expect("uplinks");
        }
    }
}

#[test]
fn quic_to_a_server_that_does_not_survive_is_refused() {
    let world = World::new();
    world.serve();
    world.offloads(false);
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    for from in [&world.host, &world.client] {
        for server in [SERVER_V4, SERVER_V6] {
            let server = SocketAddr::new(server, QUIC);
            let socket = from.enter(|| udp_socket(server));
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            socket.connect(server).expect("a route");
            socket.send(b"hello").expect("sent");
            let mut bytes = [0; 100];
            let length = socket.recv(&mut bytes).expect("an answer");
            let seen = std::str::from_utf8(&bytes[..length]).expect("text");
            let seen: SocketAddr = seen
                .lines()
                .next()
                .and_then(|line| line.parse().ok())
                .expect("an address");
            let died = uplink_of(seen);
            bury(&world, &mut datapath, died);
            let id = UplinkId(u8::try_from(died).expect("small"));
            let stubborn: IpAddr = server.ip();
            let evacuate = || datapath.evacuate(id, true, |remote| remote != stubborn);
            let done = world.host.enter(evacuate).expect("evacuated");
            assert_eq!((done.quic_unreachable, done.quic_moved), (1, 0), "{done:?}");
            let error = socket.recv(&mut bytes).expect_err("nobody is there");
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionRefused,
                "{server}: {error}"
            );
            datapath.set_uplinks(&world.uplinks()).expect("uplinks");
        }
    }
}

/// Requests sent just before the uplink died leave again by the other one, long before a client
/// would have repeated them.
#[test]
fn questions_are_asked_again() {
    let world = World::new();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    // The first uplink carries nothing any more, and nobody has noticed yet.
    world.inet.run("nft add table netdev dead");
    world.inet.run("nft add chain netdev dead in { type filter hook ingress device isp0 priority 0 ; policy drop ; }");
    world.set_slots(&mut datapath, braid_balance::LbMethod::RoundRobin, &[0]);
    world.serve();
    for from in [&world.host, &world.client] {
        for server in [SERVER_V4, SERVER_V6] {
            let server = SocketAddr::new(server, PORT);
            let socket = from.enter(|| udp_socket(server));
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            socket.send_to(b"where is", server).expect("sent");
            let started = Instant::now();
            std::thread::scope(|scope| {
                let connecting = scope.spawn(|| from.enter(|| Client::connect(server)));
                // Both must have been asked.
                while datapath
                    .flows()
                    .expect("flows")
                    .iter()
                    .filter(|flow| flow.uplink == UplinkId(0) && flow.state == FlowState::New)
                    .count()
                    < 2
                {
                    assert!(started.elapsed() < PATIENCE);
                    std::thread::yield_now();
                }
                world.set_slots(&mut datapath, braid_balance::LbMethod::RoundRobin, &[1]);
                bury(&world, &mut datapath, 0);
                let evacuate = || datapath.evacuate(UplinkId(0), true, |_| true);
                let done = world.host.enter(evacuate).expect("evacuated");
                assert_eq!((done.tcp_moved, done.udp_moved), (1, 1), "{done:?}");
                let client = connecting.join().expect("connected");
                assert_eq!(uplink_of(client.seen), 1);
            });
            // Linux repeats a SYN after a second.
            assert!(
                started.elapsed().as_millis() < 900,
                "{:?}",
                started.elapsed()
            );
            let mut bytes = [0; 100];
            let length = socket.recv(&mut bytes).expect("an answer");
            assert!(bytes[..length].ends_with(b"where is"));
            world.set_slots(&mut datapath, braid_balance::LbMethod::RoundRobin, &[0]);
            datapath.set_uplinks(&world.uplinks()).expect("uplinks");
        }
    }
}

#[test]
fn flows_are_released_from_an_uplink_that_works() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    for from in [&world.host, &world.client] {
        let tcp = SocketAddr::new(SERVER_V4, PORT);
        let quic = SocketAddr::new(SERVER_V4, QUIC);
        let mut leaves = connect(from, tcp, 0);
        let mut stays = connect(from, tcp, 1);
        let socket = from.enter(|| udp_socket(quic));
        let before = support::net::ask(&socket, quic).expect("an answer");
        let release = |flow: &braid_balance::Flow| match flow.protocol.0 {
            17 => Release::Move,
            6 if flow.uplink == UplinkId(0) => Release::Reset,
            _ => Release::Keep,
        };
        let done = world
            .host
            .enter(|| datapath.release(release))
            .expect("released");
        assert_eq!((done.moved, done.reset > 0), (1, true), "{done:?}");
        was_reset(leaves.stream.read(&mut [0; 9]), "inside");
        stays.echo(b"here");
        let flow = |what: fn(&braid_balance::Flow) -> bool| {
            let flows = datapath.flows().expect("flows");
            flows.into_iter().find(what).expect("a flow")
        };
        assert_eq!(flow(|flow| flow.protocol.0 == 17).outer, before);
        let after = support::net::ask(&socket, quic).expect("an answer");
        let moved = flow(|flow| flow.protocol.0 == 17);
        assert_eq!(
            (moved.outer, moved.came_from),
            (
                after,
                Some(UplinkId(0))
                    .filter(|_| OUTSIDE[0].contains(&before.ip()))
                    .or(Some(UplinkId(1)))
            )
        );
        assert_eq!(moved.choice, braid_balance::Choice::Failback);
        let gone = world.host.enter(|| datapath.release(|_| Release::Keep));
        assert_eq!(gone.expect("nothing").reset, 0);
        drop(socket);
        world.empty("flows");
        world.empty("flows_reverse");
        world.empty("embryos");
        world.empty("embryos_reverse");
    }
}

#[test]
fn what_was_moved_away_goes_back_to_where_it_was() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let quic = SocketAddr::new(SERVER_V4, QUIC);
    let sockets: Vec<_> = (0..8)
        .map(|_| world.host.enter(|| udp_socket(quic)))
        .collect();
    let ask = |socket| support::net::ask(socket, quic).expect("an answer").ip();
    let first: Vec<_> = sockets.iter().map(ask).collect();
    bury(&world, &mut datapath, 0);
    for socket in &sockets {
        assert!(OUTSIDE[1].contains(&ask(socket)));
    }
    datapath.set_uplinks(&world.uplinks()).expect("uplinks");
    let release = |flow: &braid_balance::Flow| match flow.choice {
        braid_balance::Choice::Moved => Release::Move,
        _ => Release::Keep,
    };
    let done = world.host.enter(|| datapath.release(release));
    assert_eq!(done.expect("released").moved, 4);
    let last: Vec<_> = sockets.iter().map(ask).collect();
    assert_eq!(last, first);
}

/// Returns counters of a namespace's IP stack.
fn stack_counters<const N: usize>(of: &Namespace, names: [&str; N]) -> [u64; N] {
    let all = of.run("nstat -asz");
    let lines = || all.lines().map(|line| line.split_whitespace());
    names.map(|name| {
        let mut line = lines()
            .find(|line| line.clone().next() == Some(name))
            .unwrap_or_else(|| panic!("no counter {name}"));
        line.nth(1)
            .and_then(|count| count.parse().ok())
            .expect("a count")
    })
}

/// A server takes the error for one about its own connection and about the segment that it would send next, and
/// keeps the connection.
#[test]
fn servers_are_told_of_a_disruption() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    for (server, received, broken) in [
        (SERVER_V4, "IcmpInDestUnreachs", "IcmpInErrors"),
        (SERVER_V6, "Icmp6InDestUnreachs", "Icmp6InErrors"),
    ] {
        for from in [&world.host, &world.client] {
            let counters =
                || stack_counters(&world.inet, [received, broken, "TcpExtOutOfWindowIcmps"]);
            let before = counters();
            let mut waits = connect(from, SocketAddr::new(server, PORT), 0);
            let mut other = connect(from, SocketAddr::new(server, PORT), 1);
            waits.echo(&[1; 10_000]);
            other.echo(&[2; 10_000]);
            let began = Instant::now();
            let mut tell = |active| {
                let tell = || datapath.indicate_disruption(UplinkId(0), active);
                world.host.enter(tell).expect("told")
            };
            assert_eq!(
                tell(Duration::from_millis(1)),
                0,
                "none was active since then"
            );
            // The other connections of the search for one by each uplink are closed.
            while tell(PATIENCE) == 0 {
                assert!(began.elapsed() < PATIENCE, "nobody was told");
            }
            assert!(began.elapsed() >= Duration::from_millis(500), "too early");
            let [received, broken, beside] = counters();
            assert_eq!(
                [received - before[0], broken - before[1], beside - before[2]],
                [1, 0, 0]
            );
            waits.echo(&[3; 10_000]);
            other.echo(&[4; 10_000]);
        }
    }
}
