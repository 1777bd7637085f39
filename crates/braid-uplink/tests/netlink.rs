//! Reading and watching a real kernel, each test in a network namespace of its own. Needs root.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use braid_uplink::{Layer, Selection, choose, discover, subscribe};
use nix::sched::{CloneFlags, unshare};

/// Runs a test on a thread with its own network namespace, which goes when the thread does.
fn in_namespace(test: impl AsyncFnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("network tests need root: cannot unshare");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments in the calling thread's namespace.
fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .expect("ip of iproute2");
    assert!(status.success(), "ip {arguments}: {status}");
}

/// A device with an address and a peer that gives it carrier.
fn ethernet(name: &str, address: &str) {
    ip(&format!("link add {name} type veth peer name {name}p"));
    ip(&format!("link set {name}p up"));
    ip(&format!("link set {name} up"));
    ip(&format!("addr add {address} dev {name}"));
}

/// Netlink messages dropped for want of space in a receiver's buffer, over all sockets.
fn dropped_events() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let drops = |line: &str| line.split_whitespace().nth(8)?.parse::<u64>().ok();
    table.lines().skip(1).filter_map(drops).sum()
}

#[test]
fn an_empty_namespace_has_no_uplink() {
    in_namespace(async || {
        let found = discover(&Selection::Automatic).await.unwrap();
        assert_eq!((found.uplinks.len(), found.rejected.len()), (0, 0));
    });
}

#[test]
fn uplinks_of_both_families_and_layers_are_read() {
    in_namespace(async || {
        ethernet("dsl", "10.1.0.2/24");
        ip("addr add 2001:db8:1::2/64 dev dsl nodad");
        ip("route add default via 10.1.0.1 dev dsl metric 100");
        ip("route add default via fe80::1 dev dsl metric 300 proto ra mtu 1480");
        ethernet("ecmp", "10.2.0.2/24");
        ip("tuntap add tun0 mode tun");
        ip("link set tun0 up");
        ip("addr add 10.8.0.2 peer 10.8.0.1 dev tun0");
        ethernet("braid0", "192.0.0.8/32");
        ip("route add default metric 7 dev braid0");
        ip("route add default dev ecmp table 77 via 10.2.0.1");
        ip("route add default dev ecmp metric 3 via 10.2.0.1 proto 98");
        ip("route add unreachable default metric 4000000");
        ip(
            "route add default metric 200 nexthop via 10.2.0.1 dev ecmp nexthop via 10.2.0.9 dev ecmp",
        );
        ip("route add default metric 400 dev tun0");

        let found = discover(&Selection::Automatic).await.unwrap();
        let [dsl, ecmp] = &found.uplinks[..] else {
            panic!("{found:#?}")
        };
        assert_eq!(
            (dsl.device.as_str(), dsl.layer, dsl.mtu),
            ("dsl", Layer::L2, 1480)
        );
        assert_eq!(
            dsl.why,
            "default route metric 100; IPv6: default route metric 300"
        );
        let (v4, v6) = (dsl.v4.as_ref().unwrap(), dsl.v6.as_ref().unwrap());
        assert_eq!(v4.gateway, Some("10.1.0.1".parse().unwrap()));
        assert_eq!(
            v6.address,
            "2001:db8:1::2".parse::<std::net::Ipv6Addr>().unwrap()
        );
        assert_eq!(v6.gateway, Some("fe80::1".parse().unwrap()));
        assert!(v6.advertised && !v4.advertised);
        assert_eq!(
            ecmp.v4.as_ref().unwrap().gateway,
            Some("10.2.0.1".parse().unwrap())
        );
        let rejected: Vec<_> = found.rejected.iter().map(ToString::to_string).collect();
        // A tun device whose other end nobody holds has no carrier.
        assert_eq!(
            rejected,
            [
                "ecmp: second gateway 10.2.0.9 on one device",
                "tun0: no carrier"
            ]
        );
    });
}

#[test]
fn a_change_wakes_the_watcher_and_a_burst_wakes_it_once() {
    in_namespace(async || {
        let mut changes = subscribe().unwrap();
        let quiet = tokio::time::timeout(Duration::from_millis(100), changes.next()).await;
        assert!(quiet.is_err(), "woken although nothing happened");

        ethernet("dsl", "10.1.0.2/24");
        ip("route add default via 10.1.0.1 dev dsl");
        let name = |s: &braid_uplink::Snapshot| {
            choose(s, &Selection::Automatic)
                .uplinks
                .first()
                .map(|u| u.name.clone())
        };
        let snapshot = changes.next().await.unwrap();
        assert_eq!(name(&snapshot), Some("dsl".to_owned()));

        ip("link set dslp down");
        while name(&changes.next().await.unwrap()).is_some() {}
    });
}

#[test]
fn a_caller_with_a_shorter_timer_still_gets_its_change() {
    in_namespace(async || {
        let mut changes = subscribe().unwrap();
        ethernet("dsl", "10.1.0.2/24");
        ip("route add default via 10.1.0.1 dev dsl");
        // Shorter than the rest after a burst, and than reading takes.
        let tick = Duration::from_millis(1);
        let snapshot = loop {
            if let Ok(change) = tokio::time::timeout(tick, changes.next()).await {
                break change.unwrap();
            }
        };
        assert_eq!(choose(&snapshot, &Selection::Automatic).uplinks.len(), 1);
    });
}

#[test]
fn an_overrun_of_the_event_buffer_loses_nothing() {
    in_namespace(async || {
        let mut changes = subscribe().unwrap();
        ethernet("busy", "10.254.0.1/24");
        // Far more events than the default receive buffer holds.
        let mut batch = String::new();
        for i in 0..4000 {
            batch += &format!("route add 10.{}.{}.0/24 dev busy\n", i / 250, i % 250);
        }
        let mut script = tempfile::NamedTempFile::new().unwrap();
        script.write_all(batch.as_bytes()).unwrap();
        ip(&format!("-batch {}", script.path().display()));
        assert!(
            dropped_events() > 0,
            "the buffer held it all: this test needs more events"
        );
        ethernet("dsl", "10.255.0.2/24");
        ip("route add default via 10.255.0.1 dev dsl");
        loop {
            let snapshot = changes.next().await.unwrap();
            if !choose(&snapshot, &Selection::Automatic).uplinks.is_empty() {
                break;
            }
        }
    });
}
