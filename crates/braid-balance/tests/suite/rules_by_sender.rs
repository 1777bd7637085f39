//! Rules about who sends, with real sockets: the host's users and control groups, a LAN's devices.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use braid_balance::{ClassId, Datapath, HookKind, LbMethod, RuleEntry};
use braid_core::UplinkId;

use crate::support::choose::class;
use crate::support::net::{Client, Namespace};
use crate::support::unique;
use crate::support::world::{PORT, SERVER_V4, SERVER_V6, World, uplink_of};

/// A world whose flows leave by uplink 0, and by uplink 1 if they satisfy a rule.
fn world() -> (World, Datapath) {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let classes = [class(0, &[0]), class(1, &[1])];
    datapath.set_classes(&classes).expect("classes");
    (world, datapath)
}

fn to_class_one(rule: RuleEntry) -> [RuleEntry; 1] {
    [RuleEntry {
        class: ClassId(1),
        ..rule
    }]
}

/// The uplinks of a TCP connection to each server.
fn uplinks(from: &Namespace) -> [usize; 2] {
    [SERVER_V4, SERVER_V6]
        .map(|server| from.enter(|| uplink_of(Client::connect(SocketAddr::new(server, PORT)).seen)))
}

/// Connects as another user, which a thread alone can become.
fn uplink_as(host: &Namespace, uid: u32) -> usize {
    host.enter(|| {
        // SAFETY: the system call changes this thread's credentials and nothing else.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(result, 0, "becoming user {uid} (needs root)");
        uplink_of(Client::connect(SocketAddr::new(SERVER_V4, PORT)).seen)
    })
}

#[test]
fn users_go_by_their_own_uplink() {
    let (world, mut datapath) = world();
    let rule = RuleEntry {
        uid: Some(4000..=4099),
        ..RuleEntry::default()
    };
    datapath.set_rules(&to_class_one(rule)).expect("rules");
    assert_eq!(uplinks(&world.host), [0, 0]);
    assert_eq!(uplink_as(&world.host, 4050), 1);
    assert_eq!(uplink_as(&world.host, 4100), 0);
    assert_eq!(
        uplinks(&world.client),
        [0, 0],
        "a LAN's packets have no owner here"
    );
}

/// A control group of the unified hierarchy, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
        let mount = mounts
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words[2] == "cgroup2")
            .expect("a mounted cgroup2");
        let path = Path::new(mount[1]).join(unique());
        fs::create_dir(&path).expect("a control group (needs root)");
        Self(path)
    }

    fn below(&self, name: &str) -> Self {
        let path = self.0.join(name);
        fs::create_dir(&path).expect("a control group");
        Self(path)
    }

    /// Its id is its directory's inode.
    fn id(&self) -> u64 {
        fs::metadata(&self.0).expect("a directory").ino()
    }

    /// The uplink of a connection that a process in this group makes.
    fn uplink(&self, host: &Namespace) -> usize {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec 3<>/dev/tcp/{SERVER_V4}/{PORT} && head -n 1 <&3",
            self.0.display()
        );
        // `ip netns exec` would hide the hierarchy: it mounts a /sys of its own.
        let network = format!("--net=/run/netns/{}", host.name());
        let mut child = Command::new("nsenter")
            .args([&network, "bash", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter");
        let mut seen = String::new();
        let mut answer = child.stdout.take().expect("a pipe");
        answer.read_to_string(&mut seen).expect("text");
        assert!(child.wait().expect("an end").success(), "{script}");
        uplink_of(seen.trim().parse().expect("an address"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn control_groups_and_those_below_go_by_their_own_uplink() {
    let (world, mut datapath) = world();
    let outside = Cgroup::new();
    let group = Cgroup::new();
    let below = group.below("a");
    let deep = below.below("b");
    let rule = RuleEntry {
        cgroup: Some(group.id()),
        ..RuleEntry::default()
    };
    datapath.set_rules(&to_class_one(rule)).expect("rules");
    assert_eq!(group.uplink(&world.host), 1);
    assert_eq!(deep.uplink(&world.host), 1);
    assert_eq!(outside.uplink(&world.host), 0);
    assert_eq!(uplinks(&world.host), [0, 0]);
    // Dropped from the bottom: a group with others in it stays.
    drop(deep);
    drop(below);
}

#[test]
fn a_lans_devices_go_by_their_own_uplink() {
    let (world, mut datapath) = world();
    let link = world.client.ip("link show eth0");
    let text = link.split("link/ether ").nth(1).expect("an address");
    let mut bytes = text
        .split([':', ' '])
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
    let mac = std::array::from_fn(|_| bytes.next().expect("six bytes"));
    let rule = RuleEntry {
        mac: Some(mac),
        ..RuleEntry::default()
    };
    datapath.set_rules(&to_class_one(rule)).expect("rules");
    assert_eq!(uplinks(&world.client), [1, 1]);
    assert_eq!(uplinks(&world.host), [0, 0]);
    world
        .client
        .run("ip link set eth0 address 02:00:00:00:77:77");
    // The host's neighbour entry would send answers to the old address.
    world.host.ip("neigh flush dev lan0");
    assert_eq!(uplinks(&world.client), [0, 0]);
}

#[test]
fn a_browsers_connections_stay_together() {
    let (world, mut datapath) = world();
    let mut classes = class(0, &[0, 1]);
    classes.lb_method = LbMethod::RoundRobin;
    classes.sticky = Some(std::time::Duration::from_secs(600));
    datapath.set_classes(&[classes]).expect("classes");
    for server in [SERVER_V4, SERVER_V6] {
        let server = SocketAddr::new(server, PORT);
        let seen: Vec<_> = std::thread::scope(|scope| {
            let connect = || {
                world
                    .client
                    .enter(|| uplink_of(Client::connect(server).seen))
            };
            let all: Vec<_> = (0..16).map(|_| scope.spawn(connect)).collect();
            all.into_iter()
                .map(|one| one.join().expect("a connection"))
                .collect()
        });
        assert!(
            seen.iter().all(|uplink| *uplink == seen[0]),
            "{server}: {seen:?}"
        );
    }
    let entries = datapath.sticky().expect("sticky");
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry.uplink < UplinkId(2)));
}
