//! Plumbing on a real kernel, each test in its own network namespace. Needs root.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use braid_core::UplinkId;
use braid_daemon::config::{Config, Overrides, Settings};
use braid_daemon::plumbing::{Bypass, Desired, Divert, Error, Plumbing};
use braid_daemon::rules::SystemIds;
use braid_host::sysctl::Saved;
use braid_uplink::{Selection, discover};
use nix::sched::{CloneFlags, unshare};

const PORTS: std::ops::RangeInclusive<u16> = 16384..=32767;

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

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn shell(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {error}");
}

fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

fn sysctl(key: &str) -> String {
    fs::read_to_string(Path::new("/proc/sys").join(key))
        .unwrap()
        .trim()
        .to_owned()
}

fn set_sysctl(key: &str, value: &str) {
    fs::write(Path::new("/proc/sys").join(key), value).unwrap();
}

/// A device with carrier.
fn ethernet(name: &str, address: &str) {
    ip(&format!("link add {name} type veth peer name {name}p"));
    ip(&format!("link set {name}p addrgenmode none up"));
    ip(&format!("link set {name} addrgenmode none up"));
    ip(&format!("addr add {address} dev {name}"));
}

/// A host with a DSL line that has both families, an LTE stick, and a LAN.
fn machine() {
    ip("link set lo up");
    ethernet("dsl", "10.1.0.2/24");
    ip("addr add 10.1.0.3/24 dev dsl");
    ip("addr add 2001:db8:1::2/64 dev dsl nodad");
    ethernet("lte", "10.2.0.2/24");
    ethernet("lan", "192.168.1.1/24");
    ip("link set lte mtu 1430");
    ip("route add default via 10.1.0.1 dev dsl");
    ip("route add default via 10.2.0.1 dev lte metric 50");
    ip("route add default via fe80::1 dev dsl");
    set_sysctl("net/ipv4/conf/dsl/rp_filter", "1");
    set_sysctl("net/ipv4/ip_local_reserved_ports", "8080,20000-20001");
    settle();
}

/// Waits until the kernel has seen every carrier: it then adds a multicast route for each device,
/// on its own and a little later.
fn settle() {
    let ends = ip("-o link show type veth").lines().count();
    let ready = || {
        ip("-6 route show table local type multicast")
            .lines()
            .count()
            == ends
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready() {
        assert!(Instant::now() < deadline, "devices did not come up");
        std::thread::yield_now();
    }
}

async fn desired(divert: Divert) -> Desired {
    let uplinks = discover(&Selection::Automatic).await.unwrap().uplinks;
    let uplinks = uplinks
        .into_iter()
        .zip(0..)
        .map(|(u, i)| (UplinkId(i), u))
        .collect();
    Desired {
        lans: vec!["lan".to_owned()],
        ..Desired::new(uplinks, vec![PORTS], divert)
    }
}

/// Returns all state that plumbing could have changed.
fn kernel_state() -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for arguments in [
        "-4 -d rule",
        "-6 -d rule",
        "-4 -d route show table all",
        "-6 -d route show table all",
        "-d link",
        "addr",
    ] {
        state.insert(arguments.to_owned(), ip(arguments));
    }
    for directory in ["net/ipv4", "net/ipv6"] {
        read_sysctls(&Path::new("/proc/sys").join(directory), &mut state);
    }
    state
}

/// Sysctls that change without us: a key that is made when it is first read, and the machine's
/// lists of congestion controls, which every namespace shows and any program anywhere extends by
/// choosing one (`tcp_set_default_congestion_control` in the kernel).
const NOT_OURS: [&str; 3] = [
    "tcp_fastopen_key",
    "tcp_allowed_congestion_control",
    "tcp_available_congestion_control",
];

fn read_sysctls(directory: &Path, state: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sysctls(&path, state);
        } else if let Ok(text) = fs::read_to_string(&path) {
            // Some cannot be read.
            if !NOT_OURS.iter().any(|name| path.ends_with(name)) {
                state.insert(path.display().to_string(), text);
            }
        }
    }
}

fn assert_same(now: &BTreeMap<String, String>, before: &BTreeMap<String, String>, when: &str) {
    for key in before.keys().chain(now.keys()) {
        assert_eq!(now.get(key), before.get(key), "{key} differs {when}");
    }
}

#[test]
fn applying_twice_changes_nothing_and_removing_restores_everything() {
    in_namespace(async || {
        machine();
        let before = kernel_state();
        let plumbing = Plumbing::open().unwrap();
        assert_eq!(plumbing.steer_ifindex().await.unwrap(), None);

        let plan = plumbing
            .plan(&desired(Divert::On).await, &Saved::default())
            .await
            .unwrap();
        plumbing.apply(&plan).await.unwrap();
        let again = plumbing
            .plan(&desired(Divert::On).await, &plan.saved)
            .await
            .unwrap();
        assert_eq!(again.to_string(), "");
        assert_eq!(again.saved, plan.saved);
        assert!(plumbing.steer_ifindex().await.unwrap().is_some());

        plumbing.remove(&again.saved).await.unwrap();
        assert_same(&kernel_state(), &before, "after removal");
        let nothing_left = plumbing.remove(&again.saved).await.unwrap();
        assert_eq!(nothing_left.to_string(), "");
    });
}

#[test]
fn what_diverts_comes_last_and_goes_first() {
    in_namespace(async || {
        machine();
        let plumbing = Plumbing::open().unwrap();
        let up = plumbing
            .plan(&desired(Divert::On).await, &Saved::default())
            .await
            .unwrap();
        assert_eq!(up.to_string(), UP);
        plumbing.apply(&up).await.unwrap();
        let down = plumbing.plan_removal(&up.saved).await.unwrap();
        assert_eq!(down.to_string(), DOWN);
        let undivert = plumbing.undivert().await.unwrap();
        assert!(DOWN.starts_with(&undivert.to_string()));
        assert_eq!(plumbing.undivert().await.unwrap().to_string(), "");
    });
}

const UP: &str = "\
sysctl -w net/ipv4/conf/dsl/rp_filter=2
sysctl -w net/ipv4/ip_local_reserved_ports='8080,16384-32767'
ip link add braid0 mtu 1430 group 45520 type veth peer name braid1 mtu 1430 group 45520
ip link set braid0 alias braid mtu 1430 arp off addrgenmode none
ip link set braid1 alias braid mtu 1430 arp off addrgenmode none
ip link set braid0 up
ip link set braid1 up
sysctl -w net/ipv4/conf/braid1/forwarding=0
sysctl -w net/ipv6/conf/braid1/disable_ipv6=1
sysctl -w net/ipv6/conf/braid0/disable_ipv6=0
ip addr add 192.0.0.8/32 dev braid0
ip addr add 64:ff9b:1:6272::8/128 dev braid0 nodad
ip -4 route replace default via 192.0.0.9 dev braid0 src 192.0.0.8 onlink table 45520 proto 98
ip -6 route replace default via 64:ff9b:1:6272::9 dev braid0 src 64:ff9b:1:6272::8 metric 1024 onlink table 45520 proto 98
ip -4 route replace default via 10.1.0.1 dev dsl onlink table 45521 proto 98
ip -6 route replace default via fe80::1 dev dsl metric 1024 onlink table 45521 proto 98
ip -4 route replace default via 10.2.0.1 dev lte onlink table 45522 proto 98
ip -4 rule add pref 32763 lookup main suppress_prefixlength 0 protocol 98
ip -4 rule add pref 32763 to 169.254.0.0/16 lookup main protocol 98
ip -4 rule add pref 32763 to 224.0.0.0/4 lookup main protocol 98
ip -4 rule add pref 32763 to 255.255.255.255 lookup main protocol 98
ip -4 rule add pref 32764 from 10.1.0.2 lookup 45521 protocol 98
ip -4 rule add pref 32764 from 10.1.0.3 lookup 45521 protocol 98
ip -4 rule add pref 32764 from 10.2.0.2 lookup 45522 protocol 98
ip -6 rule add pref 32763 lookup main suppress_prefixlength 0 protocol 98
ip -6 rule add pref 32764 from 2001:db8:1::2 lookup 45521 protocol 98
ip -4 rule add pref 32762 iif lan to 10.1.0.0/24 lookup 45520 protocol 98
ip -6 rule add pref 32762 iif lan to 2001:db8:1::/64 lookup 45520 protocol 98
ip -4 rule add pref 32762 iif lan to 10.2.0.0/24 lookup 45520 protocol 98
ip -4 rule add pref 32765 lookup 45520 protocol 98
ip -6 rule add pref 32765 lookup 45520 protocol 98
";

const DOWN: &str = "\
ip -4 rule del pref 32762 iif lan to 10.1.0.0/24 lookup 45520 protocol 98
ip -4 rule del pref 32762 iif lan to 10.2.0.0/24 lookup 45520 protocol 98
ip -4 rule del pref 32765 lookup 45520 protocol 98
ip -6 rule del pref 32762 iif lan to 2001:db8:1::/64 lookup 45520 protocol 98
ip -6 rule del pref 32765 lookup 45520 protocol 98
ip -4 rule del pref 32763 lookup main suppress_prefixlength 0 protocol 98
ip -4 rule del pref 32763 to 169.254.0.0/16 lookup main protocol 98
ip -4 rule del pref 32763 to 224.0.0.0/4 lookup main protocol 98
ip -4 rule del pref 32763 to 255.255.255.255 lookup main protocol 98
ip -4 rule del pref 32764 from 10.1.0.2 lookup 45521 protocol 98
ip -4 rule del pref 32764 from 10.1.0.3 lookup 45521 protocol 98
ip -4 rule del pref 32764 from 10.2.0.2 lookup 45522 protocol 98
ip -6 rule del pref 32763 lookup main suppress_prefixlength 0 protocol 98
ip -6 rule del pref 32764 from 2001:db8:1::2 lookup 45521 protocol 98
ip link del braid0
ip -4 route del default via 10.1.0.1 dev dsl onlink table 45521 proto 98
ip -4 route del default via 10.2.0.1 dev lte onlink table 45522 proto 98
ip -6 route del default via fe80::1 dev dsl metric 1024 onlink table 45521 proto 98
sysctl -w net/ipv4/conf/dsl/rp_filter=1
sysctl -w net/ipv4/ip_local_reserved_ports='8080,20000-20001'
";

#[test]
fn the_kernel_routes_as_intended() {
    in_namespace(async || {
        machine();
        let plumbing = Plumbing::open().unwrap();
        let route = |to: &str| {
            let answer = ip(&format!("route get {to}"));
            answer
                .lines()
                .next()
                .unwrap()
                .split(" uid")
                .next()
                .unwrap()
                .trim()
                .to_owned()
        };
        let start = plumbing
            .plan(&desired(Divert::AsFound).await, &Saved::default())
            .await
            .unwrap();
        plumbing.apply(&start).await.unwrap();
        assert_eq!(
            route("198.51.100.1"),
            "198.51.100.1 via 10.1.0.1 dev dsl src 10.1.0.2"
        );

        let up = plumbing
            .plan(&desired(Divert::On).await, &start.saved)
            .await
            .unwrap();
        plumbing.apply(&up).await.unwrap();
        for (to, expected) in [
            (
                "198.51.100.1",
                "198.51.100.1 via 192.0.0.9 dev braid0 table 45520 src 192.0.0.8",
            ),
            (
                "2001:db8:ffff::1",
                "2001:db8:ffff::1 from :: via 64:ff9b:1:6272::9 dev braid0 table 45520 proto 98 src 64:ff9b:1:6272::8 \
                 metric 1024 pref medium",
            ),
            // Specific routes win.
            ("192.168.1.7", "192.168.1.7 dev lan src 192.168.1.1"),
            ("10.2.0.9", "10.2.0.9 dev lte src 10.2.0.2"),
            // Answers leave where the question came in.
            (
                "198.51.100.1 from 10.2.0.2",
                "198.51.100.1 from 10.2.0.2 via 10.2.0.1 dev lte table 45522",
            ),
            (
                "198.51.100.1 from 10.1.0.3",
                "198.51.100.1 from 10.1.0.3 via 10.1.0.1 dev dsl table 45521",
            ),
        ] {
            assert_eq!(route(to), expected);
        }
        // Multicast and broadcast follow the main table.
        for (to, expected) in [
            (
                "239.255.255.250",
                "multicast 239.255.255.250 dev dsl src 10.1.0.2",
            ),
            (
                "255.255.255.255",
                "broadcast 255.255.255.255 dev dsl src 10.1.0.2",
            ),
        ] {
            let route = route(to);
            assert!(route.starts_with(expected), "{route}");
        }

        // A restart keeps the diverting rules.
        let restart = plumbing
            .plan(&desired(Divert::AsFound).await, &up.saved)
            .await
            .unwrap();
        assert_eq!(restart.to_string(), "");
        let down = plumbing
            .plan(&desired(Divert::Off).await, &up.saved)
            .await
            .unwrap();
        plumbing.apply(&down).await.unwrap();
        assert_eq!(
            route("198.51.100.1"),
            "198.51.100.1 via 10.1.0.1 dev dsl src 10.1.0.2"
        );
    });
}

/// Rules that keep traffic away from us, and one that wants a part of it back.
fn bypasses() -> Vec<Bypass> {
    let text = "[[rule]]
        destination = ['198.51.100.7', '2001:db8:ffff::7']
        use = 'rr'
        [[rule]]
        destination = ['198.51.100.0/24', '2001:db8:ffff::/48']
        use = 'none'
        [[rule]]
        protocol = 'udp'
        port = ['53', '5000-5010']
        source_port = '7000-8000'
        use = 'none'
        [[rule]]
        uid = ['4000-4999', '77']
        use = 'none'";
    let config = Config::parse("test", text).unwrap();
    let settings = Settings::new(config, &Overrides::default()).unwrap();
    Bypass::all(&settings, &SystemIds::default())
}

#[test]
fn what_is_none_of_ours_follows_the_main_table() {
    in_namespace(async || {
        machine();
        let before = kernel_state();
        let plumbing = Plumbing::open().unwrap();
        let mut desired = desired(Divert::On).await;
        desired.bypasses = bypasses();
        let up = plumbing.plan(&desired, &Saved::default()).await.unwrap();
        plumbing.apply(&up).await.unwrap();
        let again = plumbing.plan(&desired, &up.saved).await.unwrap();
        assert_eq!(
            again.to_string(),
            "",
            "the kernel's rules read back as they were written"
        );
        let device = |to: &str| {
            let answer = ip(&format!("route get {to}"));
            let mut words = answer.split_whitespace().skip_while(|word| *word != "dev");
            words.nth(1).unwrap().to_owned()
        };
        for (to, expected) in [
            ("198.51.100.1", "dsl"),
            ("198.51.100.7", "braid0"),
            ("2001:db8:ffff::1", "dsl"),
            ("2001:db8:ffff::7", "braid0"),
            ("203.0.113.1", "braid0"),
            ("203.0.113.1 ipproto udp sport 7000 dport 53", "dsl"),
            ("203.0.113.1 ipproto udp sport 6999 dport 53", "braid0"),
            ("203.0.113.1 ipproto tcp sport 7000 dport 53", "braid0"),
            ("203.0.113.1 ipproto udp sport 8000 dport 5010", "dsl"),
            ("203.0.113.1 uid 4000", "dsl"),
            ("203.0.113.1 uid 77", "dsl"),
            ("203.0.113.1 uid 5000", "braid0"),
        ] {
            assert_eq!(device(to), expected, "{to}");
        }

        desired.bypasses.truncate(2);
        let fewer = plumbing.plan(&desired, &up.saved).await.unwrap();
        let steps = fewer.to_string();
        assert!(
            steps.lines().all(|step| step.contains(" rule del ")),
            "{steps}"
        );
        plumbing.apply(&fewer).await.unwrap();
        assert_eq!(device("203.0.113.1 uid 77"), "braid0");
        plumbing.remove(&up.saved).await.unwrap();
        assert_same(&kernel_state(), &before, "after removal");
    });
}

#[test]
fn an_apply_that_stops_anywhere_is_continued_or_taken_back() {
    in_namespace(async || {
        machine();
        let before = kernel_state();
        let plumbing = Plumbing::open().unwrap();
        let mut desired = desired(Divert::On).await;
        desired.forward = true;
        let whole = plumbing.plan(&desired, &Saved::default()).await.unwrap();
        for stop in 0..=whole.steps.len() {
            for continued in [false, true] {
                let mut part = plumbing.plan(&desired, &Saved::default()).await.unwrap();
                assert_eq!(part, whole);
                part.steps.truncate(stop);
                plumbing.apply(&part).await.unwrap();
                // All that the next process has is what was stored.
                let mut saved = part.saved.clone();
                if continued {
                    let rest = plumbing.plan(&desired, &saved).await.unwrap();
                    plumbing.apply(&rest).await.unwrap();
                    saved = rest.saved;
                    let nothing = plumbing.plan(&desired, &saved).await.unwrap();
                    assert_eq!(nothing.to_string(), "", "stopped after {stop}");
                }
                plumbing.remove(&saved).await.unwrap();
                let when = format!("after {stop} steps, continued: {continued}");
                assert_same(&kernel_state(), &before, &when);
            }
        }
    });
}

#[test]
fn a_removal_that_stops_anywhere_is_continued() {
    in_namespace(async || {
        machine();
        let before = kernel_state();
        let plumbing = Plumbing::open().unwrap();
        let desired = desired(Divert::On).await;
        let mut stop = 0;
        loop {
            let up = plumbing.plan(&desired, &Saved::default()).await.unwrap();
            plumbing.apply(&up).await.unwrap();
            let mut part = plumbing.plan_removal(&up.saved).await.unwrap();
            let length = part.steps.len();
            part.steps.truncate(stop);
            plumbing.apply(&part).await.unwrap();
            plumbing.remove(&part.saved).await.unwrap();
            assert_same(&kernel_state(), &before, &format!("after a stop at {stop}"));
            if stop == length {
                break;
            }
            stop += 1;
        }
    });
}

#[test]
fn the_text_of_a_plan_does_the_same_as_the_plan() {
    in_namespace(async || {
        machine();
        let before = kernel_state();
        let plumbing = Plumbing::open().unwrap();
        let mut desired = desired(Divert::On).await;
        desired.forward = true;
        desired.bypasses = bypasses();
        let up = plumbing.plan(&desired, &Saved::default()).await.unwrap();
        for step in &up.steps {
            shell(&step.to_string());
        }
        let nothing = plumbing.plan(&desired, &up.saved).await.unwrap();
        assert_eq!(nothing.to_string(), "");
        let down = plumbing.plan_removal(&up.saved).await.unwrap();
        for step in &down.steps {
            shell(&step.to_string());
        }
        assert_same(&kernel_state(), &before, "after the removal's text");
    });
}

#[test]
fn a_machine_becomes_a_gateway_and_stops_being_one() {
    in_namespace(async || {
        machine();
        ip("-6 route del default");
        ip("-6 route add default via fe80::1 dev dsl proto ra");
        // Hardened, and odd: one device forwards although the machine does not.
        set_sysctl("net/ipv4/conf/all/accept_redirects", "0");
        set_sysctl("net/ipv4/conf/lan/forwarding", "1");
        set_sysctl("net/ipv6/conf/lan/forwarding", "1");
        let before = kernel_state();
        let plumbing = Plumbing::open().unwrap();
        let mut desired = desired(Divert::On).await;
        let plain = plumbing.plan(&desired, &Saved::default()).await.unwrap();
        assert!(!plain.to_string().contains("ip_forward"));

        desired.forward = true;
        let up = plumbing.plan(&desired, &Saved::default()).await.unwrap();
        plumbing.apply(&up).await.unwrap();
        assert_eq!(sysctl("net/ipv4/ip_forward"), "1");
        assert_eq!(sysctl("net/ipv6/conf/all/forwarding"), "1");
        assert_eq!(sysctl("net/ipv6/conf/dsl/accept_ra"), "2");
        // Packets that leave by the veth's other end go nowhere.
        assert_eq!(sysctl("net/ipv4/conf/braid1/forwarding"), "0");
        assert_eq!(
            plumbing
                .plan(&desired, &up.saved)
                .await
                .unwrap()
                .to_string(),
            ""
        );

        // The configuration's `[lan]` goes while the daemon runs …
        desired.forward = false;
        let off = plumbing.plan(&desired, &up.saved).await.unwrap();
        plumbing.apply(&off).await.unwrap();
        assert_eq!(sysctl("net/ipv4/ip_forward"), "0");
        assert_eq!(sysctl("net/ipv6/conf/dsl/accept_ra"), "1");
        // … comes back, and then all goes.
        desired.forward = true;
        let on = plumbing.plan(&desired, &off.saved).await.unwrap();
        plumbing.apply(&on).await.unwrap();
        plumbing.remove(&on.saved).await.unwrap();
        assert_same(&kernel_state(), &before, "after removal");
    });
}

#[test]
fn uplinks_come_go_and_renumber() {
    in_namespace(async || {
        machine();
        let plumbing = Plumbing::open().unwrap();
        let mut saved = Saved::default();
        let mut step = async || {
            let plan = plumbing
                .plan(&desired(Divert::On).await, &saved)
                .await
                .unwrap();
            plumbing.apply(&plan).await.unwrap();
            saved = plan.saved.clone();
            plan.to_string()
        };
        step().await;

        // With the last address of a device the kernel removes its routes, ours among them.
        ip("addr del 10.2.0.2/24 dev lte");
        ip("addr add 10.2.0.7/24 dev lte");
        ip("route add default via 10.2.0.1 dev lte metric 50");
        assert_eq!(
            step().await,
            "ip -4 rule del pref 32764 from 10.2.0.2 lookup 45522 protocol 98\n\
             ip -4 route replace default via 10.2.0.1 dev lte onlink table 45522 proto 98\n\
             ip -4 rule add pref 32764 from 10.2.0.7 lookup 45522 protocol 98\n"
        );

        ip("-6 route del default via fe80::1 dev dsl");
        assert_eq!(
            step().await,
            "ip -6 rule del pref 32762 iif lan to 2001:db8:1::/64 lookup 45520 protocol 98\n\
             ip -6 rule del pref 32765 lookup 45520 protocol 98\n\
             ip -6 rule del pref 32763 lookup main suppress_prefixlength 0 protocol 98\n\
             ip -6 rule del pref 32764 from 2001:db8:1::2 lookup 45521 protocol 98\n\
             ip -6 route del default via 64:ff9b:1:6272::9 dev braid0 src 64:ff9b:1:6272::8 metric 1024 onlink table 45520 proto 98\n\
             ip -6 route del default via fe80::1 dev dsl metric 1024 onlink table 45521 proto 98\n"
        );
        // Local sockets are bound to the inner address, and go on when IPv6 is back.
        assert!(ip("addr show dev braid0").contains("64:ff9b:1:6272::8"));

        // The kernel itself removes the routes of a device that goes down; the smaller MTU goes too.
        ip("link set lte down");
        assert_eq!(
            step().await,
            "ip -4 rule del pref 32762 iif lan to 10.2.0.0/24 lookup 45520 protocol 98\n\
             ip -4 rule del pref 32764 from 10.2.0.7 lookup 45522 protocol 98\n\
             ip link set braid0 alias braid mtu 1500 arp off addrgenmode none\n\
             ip link set braid1 alias braid mtu 1500 arp off addrgenmode none\n"
        );
        // Another program deletes Braid's rules and routes.
        ip("rule del pref 32765");
        ip("link set braid0 down");
        assert_eq!(
            step().await,
            "ip link set braid0 up\n\
             ip -4 route replace default via 192.0.0.9 dev braid0 src 192.0.0.8 onlink table 45520 proto 98\n\
             ip -4 rule add pref 32765 lookup 45520 protocol 98\n"
        );
        ip("link del braid1");
        assert!(step().await.starts_with("ip link add braid0"));
        assert_eq!(step().await, "");
    });
}

#[test]
fn what_others_do_meanwhile_is_respected() {
    in_namespace(async || {
        machine();
        let plumbing = Plumbing::open().unwrap();
        let up = plumbing
            .plan(&desired(Divert::On).await, &Saved::default())
            .await
            .unwrap();
        plumbing.apply(&up).await.unwrap();
        assert_eq!(
            sysctl("net/ipv4/ip_local_reserved_ports"),
            "8080,16384-32767"
        );

        set_sysctl("net/ipv4/ip_local_reserved_ports", "9090,16384-32767");
        set_sysctl("net/ipv4/conf/dsl/rp_filter", "0");
        ip("rule add pref 32764 from 10.9.9.9 lookup main");
        ip("route add default dev lan table 4711 proto 98");
        plumbing.remove(&up.saved).await.unwrap();
        assert_eq!(
            sysctl("net/ipv4/ip_local_reserved_ports"),
            "9090,20000-20001"
        );
        assert_eq!(sysctl("net/ipv4/conf/dsl/rp_filter"), "0");
        assert!(ip("rule").contains("32764:\tfrom 10.9.9.9 lookup main"));
        assert!(ip("route show table 4711").contains("default dev lan"));
    });
}

#[test]
fn rules_of_others_that_come_first_are_found() {
    in_namespace(async || {
        machine();
        let plumbing = Plumbing::open().unwrap();
        let up = plumbing
            .plan(&desired(Divert::On).await, &Saved::default())
            .await
            .unwrap();
        plumbing.apply(&up).await.unwrap();
        ip("rule add pref 2001 fwmark 0x100/0x3f00 lookup 1");
        ip("rule add pref 2002 lookup main suppress_prefixlength 0");
        ip("rule add pref 40000 lookup 2");
        ip("-6 rule add pref 300 from 2001:db8::/64 iif lan lookup 7");
        // As a VPN adds it: the kernel picks the preference, and that is before ours.
        ip("rule add not fwmark 0xca6c lookup 51820");
        let rules = plumbing.earlier_rules().await.unwrap();
        let rules: Vec<_> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            rules,
            [
                "-4 pref 2000 not fwmark 0xca6c/0xffffffff lookup 51820",
                "-4 pref 2001 fwmark 0x100/0x3f00 lookup 1",
                "-6 pref 300 iif lan from 2001:db8::/64 lookup 7",
            ]
        );
    });
}

#[test]
fn a_foreign_device_of_our_name_is_refused_and_survives() {
    in_namespace(async || {
        machine();
        ethernet("braid0", "10.5.0.1/24");
        let plumbing = Plumbing::open().unwrap();
        let refused = plumbing
            .plan(&desired(Divert::On).await, &Saved::default())
            .await;
        let error = refused.unwrap_err();
        assert!(
            matches!(error, Error::ForeignDevice { device: "braid0" }),
            "{error}"
        );
        assert_eq!(
            plumbing
                .remove(&Saved::default())
                .await
                .unwrap()
                .to_string(),
            ""
        );
        assert_eq!(plumbing.steer_ifindex().await.unwrap(), None);
        assert!(ip("link").contains("braid0"));
    });
}
