//! Two machines that may become clients, a hub, and an internet:
//!
//! ```text
//!  ┌──────┐ wan0 10.1.M.2 ── 10.1.M.1 ┌─────┐ up0 203.0.113.2 ── 203.0.113.1 ┌──────────┐
//!  │ M    │                           │ hub │     2001:db8:5::2   2001:db8:5::1 │ internet │
//!  └──────┘ wan1 10.2.M.2 ── 10.2.M.1 └─────┘                                  └──────────┘
//!                                      192.0.2.1
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use braid_bond::io::{ClientConfig, ClientEvent, ClientHandle, LinkSpec, Policy, Tun, client};
use braid_bond::proto::handshake::terms::{Refusal, Terms, enrol};
use braid_bond::proto::handshake::{Identity, PublicKey};
use braid_bond::proto::tunnel::Event;
use braid_bond::token::{Host, Token};
use braid_multipath::LinkId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::net::{Namespace, run};

/// Deadline for expected events on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Address at which the machines reach the hub.
pub const HUB: &str = "192.0.2.1";
/// The internet.
pub const INTERNET: [&str; 2] = ["203.0.113.1", "2001:db8:5::1"];
/// The hub's address there.
pub const OUTSIDE: [&str; 2] = ["203.0.113.2", "2001:db8:5::2"];

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Namespaces, and the hub's directory.
pub struct World {
    pub machines: Vec<Namespace>,
    pub hub: Namespace,
    pub internet: Namespace,
    pub folder: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("brh{}x{serial}", std::process::id());
        let new = |what: &str| Namespace::new(&format!("{name}-{what}"));
        let world = World {
            machines: vec![new("m0"), new("m1")],
            hub: new("hub"),
            internet: new("net"),
            folder: tempfile::tempdir().expect("room"),
        };
        let hub = &world.hub;
        hub.ip(&format!("addr add {HUB}/32 dev lo"));
        for (number, machine) in world.machines.iter().enumerate() {
            for line in 1..=2 {
                let (near, far) = (format!("wan{line}"), format!("m{number}l{line}"));
                pair(machine, &near, hub, &far);
                let net = format!("10.{line}.{number}");
                machine.ip(&format!("addr add {net}.2/24 dev {near}"));
                hub.ip(&format!("addr add {net}.1/24 dev {far}"));
                machine.ip(&format!(
                    "route add default via {net}.1 dev {near} metric {line}"
                ));
            }
        }
        pair(hub, "up0", &world.internet, "eth0");
        for (namespace, device, addresses) in
            [(hub, "up0", OUTSIDE), (&world.internet, "eth0", INTERNET)]
        {
            namespace.ip(&format!("addr add {}/24 dev {device}", addresses[0]));
            namespace.ip(&format!("addr add {}/64 dev {device} nodad", addresses[1]));
        }
        world
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Starts a hub with this configuration, in which the store is named. Returns once it serves, whether
    /// or not it reports health problems.
    pub fn start_hub(&self, config: &str) -> Hub {
        let hub = self.try_start_hub(config);
        wait_for(
            || matches!(self.braid(&["status"]).status.code(), Some(0 | 4)) || !hub.is_alive(),
            || hub.log(),
        );
        assert!(hub.is_alive(), "{}", hub.log());
        hub
    }

    /// The directory of the hub's credentials, which is not there at first.
    pub fn credentials(&self) -> PathBuf {
        self.folder.path().join("credentials")
    }

    /// The hub's store.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("state/hub.redb")
    }

    fn configure(&self, config: &str) -> PathBuf {
        let file = self.folder.path().join("hub.toml");
        let store = self.store();
        fs::write(&file, format!("store = {store:?}\n{config}")).expect("room");
        file
    }

    /// As above, for a hub that may not start.
    pub fn try_start_hub(&self, config: &str) -> Hub {
        let file = self.configure(config);
        let log = self.folder.path().join("hub.log");
        let output = File::options().create(true).append(true).open(&log);
        // Without SIGXFSZ a write beyond RLIMIT_FSIZE is an error, as on a full disk.
        let child = Command::new("sh")
            .args([
                "-c",
                "trap '' XFSZ; exec \"$0\" \"$@\"",
                "ip",
                "netns",
                "exec",
                self.hub.name(),
                env!("CARGO_BIN_EXE_braid"),
            ])
            .env("CREDENTIALS_DIRECTORY", self.credentials())
            .arg("--run-dir")
            .arg(self.directory())
            .args(["hub", "--config"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output.expect("room"))
            .spawn()
            .expect("the program");
        Hub { child, log }
    }

    /// Runs `braid hub WORDS…`.
    pub fn braid(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let command = command.arg("--run-dir").arg(self.directory());
        command
            .arg("hub")
            .args(words)
            .output()
            .expect("the program")
    }

    /// Runs it with `--json`, whether or not the hub is degraded.
    pub fn json(&self, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        let output = self.braid(&words);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{words:?}: {}", error(&output)))
    }

    /// Returns the answer to a GET request of the hub's API.
    pub fn get(&self, path: &str) -> String {
        let socket = self.directory().join("hub/braid.sock");
        let mut stream = UnixStream::connect(socket).expect("the hub listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// Returns a token for a new client.
    pub fn invite(&self, name: &str, more: &[&str]) -> Token {
        let words = [&["invite", name, "--address", HUB], more].concat();
        let output = self.braid(&words);
        assert!(output.status.success(), "{}", error(&output));
        let said = String::from_utf8(output.stdout).expect("text");
        said.parse().expect("a token and nothing else")
    }

    /// Returns the hub's report on the newest client of that name.
    pub fn client(&self, name: &str) -> Value {
        let clients = self.json(&["clients"]);
        let clients = clients["clients"].as_array().expect("a list");
        let named = clients.iter().rev().find(|client| client["name"] == name);
        named.expect("it is in the list").clone()
    }

    /// Joins a machine with a token and a key.
    pub fn join(&self, machine: usize, token: &Token, key: u8) -> Client<'_> {
        let namespace = &self.machines[machine];
        let Host::Address(hub) = token.addresses[0].host else {
            panic!("the token names an address")
        };
        let (tell, events) = channel();
        let links = (1..=2u8).map(|line| LinkSpec {
            id: LinkId(line),
            device: format!("wan{line}"),
            source: format!("10.{line}.{machine}.2")
                .parse()
                .expect("an address"),
            hub: SocketAddr::new(hub, token.addresses[0].port),
            tier: 0,
            cap: None,
            quota: None,
        });
        let handle = namespace.enter(|| {
            client::start(ClientConfig {
                tun: Tun::open("bond0", 1500).expect("a TUN device"),
                identity: Identity::new([key; 32]),
                hub: token.hub,
                psk: token.secret.psk(),
                options: enrol(token.secret.id()),
                policy: Policy::default(),
                gre: false,
                links: links.collect(),
                mark: None,
                events: Box::new(move |event| _ = tell.send(event)),
            })
            .expect("a client")
        });
        Client {
            namespace,
            events,
            handle,
        }
    }
}

fn pair(one: &Namespace, near: &str, other: &Namespace, far: &str) {
    one.ip(&format!(
        "link add {near} type veth peer name {far} netns {}",
        other.name()
    ));
    one.ip(&format!("link set {near} up"));
    other.ip(&format!("link set {far} up"));
}

/// Returns a command's standard error.
pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running hub; killed when dropped.
pub struct Hub {
    child: Child,
    pub log: PathBuf,
}

impl Hub {
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A thread's name, and the fields of its /proc/PID/task/TID/status.
    pub fn threads(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let tasks: PathBuf = format!("/proc/{}/task", self.pid()).into();
        let status = |task: PathBuf| {
            let text = fs::read_to_string(task.join("status")).expect("a thread");
            let fields = text.lines().filter_map(|line| line.split_once(":\t"));
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let tasks = fs::read_dir(tasks).expect("a process");
        let all = tasks.map(|task| status(task.expect("a thread").path()));
        all.map(|fields| (fields["Name"].clone(), fields)).collect()
    }

    pub fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// Waits until it ends. Returns true if it succeeded.
    pub fn wait(mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status.success();
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reloads it with another configuration.
    pub fn reload(&self, world: &World, config: &str) {
        world.configure(config);
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGHUP).expect("it is ours");
    }

    /// Asks it to stop.
    pub fn end(self) -> bool {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGTERM).expect("it is ours");
        self.wait()
    }

    /// Kills it, as in a crash.
    pub fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine that joined with a token.
pub struct Client<'a> {
    namespace: &'a Namespace,
    events: Receiver<ClientEvent>,
    /// Carries its packets until it is dropped.
    handle: ClientHandle,
}

impl Client<'_> {
    /// Waits for an event of its tunnel; those before it are dropped.
    pub fn until<T>(&self, what: impl Fn(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).expect("the event comes");
            if let ClientEvent::Tunnel(event) = &event
                && let Some(found) = what(event)
            {
                return found;
            }
        }
    }

    /// Waits until it is admitted, and configures its addresses; everything but the hub
    /// is behind the tunnel then.
    pub fn until_in(&self) -> Terms {
        let terms = self.until(|event| match event {
            Event::Established { options, .. } => Some(Terms::read(options)),
            _ => None,
        });
        for (address, length) in &terms.addresses {
            let nodad = if address.is_ipv6() { " nodad" } else { "" };
            self.namespace
                .ip(&format!("addr replace {address}/{length} dev bond0{nodad}"));
        }
        for network in ["203.0.113.0/24", "2001:db8:5::/64"] {
            self.namespace
                .ip(&format!("route replace {network} dev bond0"));
        }
        terms
    }

    /// Has it use this key of the hub, as a daemon does once it has stored it.
    pub fn set_hub(&self, key: PublicKey) {
        self.handle.set_hub(key);
    }

    /// Waits until it is refused.
    pub fn until_refused(&self) -> Refusal {
        self.until(|event| match event {
            Event::Refused(refusal) => Some(*refusal),
            Event::Established { .. } => panic!("it was let in"),
            _ => None,
        })
    }

    /// Returns true if a ping is answered; retries until the deadline.
    pub fn reaches(&self, address: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self
                .namespace
                .succeeds(&format!("ping -c 1 -W 1 {address}"))
            {
                return true;
            }
        }
        false
    }

    /// Returns true if none of several pings is answered.
    pub fn does_not_reach(&self, words: &str) -> bool {
        !self
            .namespace
            .succeeds(&format!("ping -c 3 -i 0.2 -W 1 {words}"))
    }

    /// Sends far more than a few 100 kbit/s carry, and checks that the hub dropped much of it.
    pub fn expect_held_back(&self, world: &World, name: &str) {
        self.namespace
            .succeeds("ping -q -c 400 -i 0.002 -s 1400 -W 1 10.73.0.1");
        let capped = world.client(name)["capped_packets"]
            .as_u64()
            .expect("a count");
        assert!(
            capped > 100,
            "{capped} of 400 packets of 1.4 kB were too many"
        );
    }

    /// Runs a command on the machine.
    pub fn run(&self, line: &str) -> String {
        self.namespace.run(line)
    }

    /// The machine.
    pub fn namespace(&self) -> &Namespace {
        self.namespace
    }
}

/// One of a client's own addresses.
pub fn own(terms: &Terms, v4: bool) -> IpAddr {
    let mut addresses = terms.addresses.iter().map(|(address, _)| *address);
    let found = addresses.find(|address| address.is_ipv4() == v4);
    found.expect("it has one")
}

/// Polls a condition every few milliseconds until it holds.
pub fn wait_for(is_so: impl Fn() -> bool, describe: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never was so: {}", describe());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the hub's filter table; empty if there is none.
pub fn filter(world: &World) -> String {
    let tables = run(&format!(
        "ip netns exec {} nft list ruleset",
        world.hub.name()
    ));
    tables
        .lines()
        .filter(|line| line.contains("braid_hub"))
        .collect()
}
