//! The whole emulator between two network namespaces of its own. Fails without root.

use std::fs::File;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::thread::JoinHandleExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_emulate::io::control::{Request, send_request};
use braid_emulate::io::{Emulator, EmulatorError, Options};
use braid_emulate::{Config, Settings};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Two namespaces with an emulated link between them; all of it is removed on drop.
struct Lab {
    id: String,
    folder: TempDir,
    emulator: Option<JoinHandle<Result<Value, EmulatorError>>>,
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("ip runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "ip {arguments}: {said} (this test needs root)"
    );
}

impl Lab {
    /// Creates namespaces `<id>-a` and `<id>-b`, unique to this run and test.
    fn new(test: &str) -> Lab {
        let lab = Lab {
            id: format!("bre{}{test}", std::process::id()),
            folder: tempfile::tempdir().expect("a folder"),
            emulator: None,
        };
        ip(&format!("netns add {}-a", lab.id));
        ip(&format!("netns add {}-b", lab.id));
        lab
    }

    fn options(&self, settings: Value) -> Options {
        let settings: Settings = serde_json::from_value(settings).expect("settings");
        let config = settings
            .applied_to(&Config::default())
            .expect("a configuration");
        Options {
            a: format!("{}-a:link", self.id).parse().expect("an end"),
            b: format!("{}-b:link", self.id).parse().expect("an end"),
            mac_a: None,
            mac_b: Some("02:00:00:00:0b:0b".parse().expect("an address")),
            up: config.clone(),
            down: config,
            seed: 1,
            control: Some(self.socket()),
            log: Some(self.log()),
            run_for: None,
        }
    }

    /// Starts the emulator with these settings for both directions and assigns addresses to its
    /// ends.
    fn emulate(&mut self, settings: Value) {
        let options = self.options(settings);
        let (send, ready) = mpsc::channel();
        self.emulator = Some(std::thread::spawn(move || {
            let mut emulator = Emulator::start(options)?;
            // The receiver is gone only if the test has already failed.
            let _ = send.send(emulator.ready());
            emulator.run()
        }));
        let ready = ready.recv().expect("devices that are up");
        assert_eq!(ready.b.mac, "02:00:00:00:0b:0b");
        ip(&format!("-n {}-a addr add 10.99.0.1/24 dev link", self.id));
        ip(&format!("-n {}-b addr add 10.99.0.2/24 dev link", self.id));
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log.csv")
    }

    fn tell(&self, request: Value) -> Result<Value, String> {
        let request: Request = serde_json::from_value(request).map_err(|e| e.to_string())?;
        send_request(&self.socket(), &request).map_err(|error| error.to_string())
    }

    /// Returns the replies to `count` pings and their mean round trip in ms.
    fn ping(&self, count: u32) -> (u32, f64) {
        let output = Command::new("ip")
            .args(["netns", "exec", &format!("{}-a", self.id)])
            .args([
                "ping",
                "-n",
                "-q",
                "-i",
                "0.05",
                "-W",
                "1",
                "-c",
                &count.to_string(),
                "10.99.0.2",
            ])
            .output()
            .expect("ping runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let received = text
            .split(", ")
            .find_map(|part| part.strip_suffix(" received"));
        let mean = text.lines().last().and_then(|line| line.split('/').nth(4));
        let mean = mean.and_then(|mean| mean.parse().ok()).unwrap_or(f64::NAN);
        (
            received.and_then(|count| count.parse().ok()).expect(&text),
            mean,
        )
    }

    /// Returns a UDP socket in one of the namespaces, which any thread may use.
    fn udp(&self, end: char, address: &str) -> UdpSocket {
        let path = format!("/run/netns/{}-{end}", self.id);
        let address = address.to_owned();
        let inside = std::thread::spawn(move || {
            setns(
                File::open(path).expect("a namespace"),
                CloneFlags::CLONE_NEWNET,
            )
            .expect("enter");
            UdpSocket::bind(address).expect("a socket")
        });
        inside.join().expect("a socket")
    }

    /// Ends the emulator with SIGTERM, and returns its statistics.
    fn stop(&mut self) -> Option<Value> {
        let emulator = self.emulator.take()?;
        // SAFETY: the thread has not been joined, so its handle is valid; it blocks the signal and
        // reads it from a descriptor, or has ended.
        unsafe { libc::pthread_kill(emulator.as_pthread_t(), libc::SIGTERM) };
        Some(emulator.join().expect("no panic").expect("no error"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
        for end in ["a", "b"] {
            let name = format!("{}-{end}", self.id);
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

#[test]
fn a_ping_takes_twice_the_delay() {
    let mut lab = Lab::new("d");
    lab.emulate(json!({ "rate": "50 Mbit/s", "delay": "20 ms" }));
    // The first ping also waits for ARP.
    assert_eq!(lab.ping(1).0, 1);
    let (received, mean) = lab.ping(20);
    assert_eq!(received, 20);
    assert!((40.0..43.0).contains(&mean), "{mean} ms");
}

#[test]
fn the_black_hole_and_settings_change_live() {
    let mut lab = Lab::new("c");
    lab.emulate(json!({ "delay": "1 ms" }));
    assert_eq!(lab.ping(1).0, 1);
    lab.tell(json!({ "blackhole": { "direction": "down", "on": true } }))
        .expect("black hole on");
    assert_eq!(lab.ping(3).0, 0);
    lab.tell(json!({ "blackhole": { "on": false } }))
        .expect("black hole off");
    assert_eq!(lab.ping(3).0, 3);
    lab.tell(json!({ "set": { "direction": "down", "delay": "30 ms" } }))
        .expect("a delay");
    let (_, mean) = lab.ping(5);
    assert!((31.0..34.0).contains(&mean), "{mean} ms");

    let nothing = lab.folder.path().join("nothing").display().to_string();
    let refused = lab
        .tell(json!({ "set": { "trace": nothing } }))
        .unwrap_err();
    let expected = format!("trace {nothing}: No such file");
    assert!(refused.starts_with(&expected), "{refused}");
    assert!(
        lab.tell(json!({ "set": {} }))
            .unwrap_err()
            .starts_with("nothing to set")
    );

    let stats = lab.tell(json!({ "stats": {} })).expect("statistics");
    // Echo replies; the kernel's neighbour discovery may add to them.
    assert!(stats["stats"]["down"]["packets"]["black_hole"]["packets"].as_u64() >= Some(3));
    assert_eq!(stats["stats"]["up"]["packets"]["black_hole"]["packets"], 0);
    let end = lab.stop().expect("statistics");
    assert_eq!(end["stats"]["up"]["kernel_dropped_before"], 0);
    assert!(!lab.socket().exists(), "the socket goes with the emulator");
}

#[test]
fn udp_gets_the_rate_and_no_more() {
    let mut lab = Lab::new("r");
    lab.emulate(json!({ "rate": "20 Mbit/s", "queue": "50 ms" }));
    let receiver = lab.udp('b', "10.99.0.2:9000");
    receiver
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a time-out");
    let sender = lab.udp('a', "10.99.0.1:9000");
    // 40 Mbit/s of frames of 1442 bytes for 1.5 s: 1400, UDP 8, IP 20, Ethernet 14.
    let sending = std::thread::spawn(move || {
        let start = Instant::now();
        for number in 0..5200u32 {
            let due = start + Duration::from_nanos(288_400) * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            sender.send_to(&[0; 1400], "10.99.0.2:9000").expect("sent");
        }
    });
    let (mut buffer, mut times) = ([0; 2048], Vec::new());
    loop {
        match receiver.recv(&mut buffer) {
            Ok(_) => times.push(Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    sending.join().expect("sent all");
    let span = times
        .last()
        .expect("packets")
        .duration_since(times[0])
        .as_secs_f64();
    let rate = (times.len() - 1) as f64 * 1442.0 * 8.0 / span / 1e6;
    // The receiver's own clock readings may be a few ms late.
    assert!((19.0..20.2).contains(&rate), "{rate} Mbit/s");

    let end = lab.stop().expect("statistics");
    let up = &end["stats"]["up"];
    assert!(
        up["packets"]["queue_full"]["packets"].as_u64() > Some(1000),
        "{up}"
    );
    assert_eq!(
        (&up["kernel_dropped_before"], &up["device_refused"]),
        (&json!(0), &json!(0))
    );
    assert!(the_log_never_exceeds(&lab.log(), 20e6) > 2000);
}

/// Checks the decision log's upstream packets against the rate, over every window of ten packets;
/// returns how many were delivered.
fn the_log_never_exceeds(log: &PathBuf, rate: f64) -> usize {
    let text = std::fs::read_to_string(log).expect("a log");
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("direction,number,bytes,arrived_ns,started_ns,due_ns,fate,written_ns")
    );
    let rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let up: Vec<(f64, f64)> = rows
        .filter(|row| row[0] == "up" && row[6] == "delivered")
        .map(|row| {
            (
                row[5].parse().expect("a time"),
                row[2].parse().expect("a length"),
            )
        })
        .collect();
    for window in up.windows(10) {
        let bits: f64 = window[1..].iter().map(|(_, bytes)| bytes * 8.0).sum();
        let seconds = (window[9].0 - window[0].0) / 1e9;
        assert!(bits <= seconds * rate + 1.0, "{bits} bits in {seconds} s");
    }
    up.len()
}

#[test]
fn a_removed_device_ends_the_emulator_with_its_name() {
    let mut lab = Lab::new("g");
    lab.emulate(json!({}));
    ip(&format!("-n {}-b link del dev link", lab.id));
    let emulator = lab.emulator.take().expect("an emulator");
    let error = emulator
        .join()
        .expect("no panic")
        .expect_err("an end")
        .to_string();
    let place = format!("network namespace \"{}-b\"", lab.id);
    assert_eq!(
        error,
        format!("device \"link\" in {place}: it was removed, and the link is cut")
    );
    assert!(
        lab.tell(json!({ "stats": {} }))
            .unwrap_err()
            .contains("no emulator listens on it")
    );
}

#[test]
fn what_cannot_be_made_is_named() {
    let mut lab = Lab::new("e");
    let error = |options| Emulator::start(options).expect_err("refused").to_string();

    let mut options = lab.options(json!({}));
    options.a = "no-such-namespace:link".parse().expect("an end");
    assert_eq!(
        error(options),
        "network namespace \"no-such-namespace\": not found in /run/netns (\"ip netns list\" \
         shows those that exist)"
    );

    ip(&format!(
        "-n {}-b link add other type veth peer name more",
        lab.id
    ));
    let mut options = lab.options(json!({}));
    options.b.device = "other".to_owned();
    let place = format!("network namespace \"{}-b\"", lab.id);
    assert!(error(options).starts_with(&format!("device \"other\" already exists in {place}")));

    lab.emulate(json!({}));
    let taken = error(lab.options(json!({})));
    assert!(
        taken.starts_with("device \"link\" already exists"),
        "{taken}"
    );
    let mut options = lab.options(json!({}));
    (options.a.device, options.b.device) = ("link2".to_owned(), "link2".to_owned());
    assert!(error(options).ends_with("another process listens on it"));
}
