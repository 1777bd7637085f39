//! Throughput of a client and a hub on this machine, one thread each, over lines without limit:
//! needs root, iperf3 and a quiet machine.
//!
//! `cargo bench -p braid-bond --bench io -- SECONDS`

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use counting::ALLOCATIONS;
use world::{Client, HUB, Outer, World, link};

#[path = "../../braid-emulate/tests/support/counting.rs"]
mod counting;
#[path = "../tests/support/epochs.rs"]
mod epochs;
#[path = "../../braid-balance/tests/support/net.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod net;
#[path = "../tests/io/world.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod world;

/// Processor time of this process, seconds: both ends, nothing else.
fn cpu() -> f64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let usage = usage.expect("our own usage");
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Inner packets moved by both ends.
fn packets(client: &Client) -> u64 {
    let tun = client.status().tun;
    tun.read.packets + tun.written.packets
}

/// The number after a key in iperf3's statistics of received data.
fn goodput(json: &str) -> f64 {
    let received = json.split("\"sum_received\"").nth(1).expect(json);
    let rate = received.split("\"bits_per_second\":").nth(1);
    let rate = rate.and_then(|rest| rest.split([',', '\n']).next());
    rate.expect("a rate").trim().parse().expect("a number")
}

fn measure(world: &World, client: &Client, name: &str, arguments: &str, seconds: u32) {
    let [server, _] = HUB;
    let mut listener = Command::new("ip");
    listener.args(["netns", "exec", world.hub.name(), "iperf3", "-s", "-1"]);
    let mut listener = listener.stdout(Stdio::null()).spawn().expect("iperf3");
    let listens = || world.hub.run("ss -Htln sport = :5201");
    world::wait_for(|| !listens().is_empty(), listens);
    let (cpu_before, packets_before) = (cpu(), packets(client));
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    let line = format!("iperf3 -J -c {server} -t {seconds} {arguments}");
    let json = world.client.run(&line);
    listener.wait().expect("it ends after one test");
    let gbit = goodput(&json) * f64::from(seconds) * 1e-9;
    let packets = (packets(client) - packets_before) as f64;
    println!(
        "{name:16} {:7.0} Mbit/s  {:5.2} s of processor per Gbit, both ends  {:.2} allocations per packet  {:.0} packets/s",
        gbit * 1000.0 / f64::from(seconds),
        (cpu() - cpu_before) / gbit,
        (ALLOCATIONS.load(Ordering::Relaxed) - allocations) as f64 / packets / 2.0,
        packets / f64::from(seconds),
    );
}

fn main() {
    let seconds = std::env::args().find_map(|argument| argument.parse().ok());
    let seconds = seconds.unwrap_or(5);
    for lines in 1..=2 {
        let world = World::new();
        let _hub = world.start_hub(true);
        let client = world.start_client(true, (0..lines).map(|id| link(id, Outer::V4)).collect());
        client.until_in_use(&(0..lines).collect::<Vec<_>>());
        for (name, arguments) in [
            ("up", "-C cubic"),
            ("down", "-C cubic -R"),
            ("200 byte", "-C cubic -M 160"),
            // Too large for a datagram; the senders do not know that.
            ("in parts", "-u -b 0 -l 1452"),
        ] {
            let name = format!("{lines} {name}");
            measure(&world, &client, &name, arguments, seconds);
        }
    }
}
