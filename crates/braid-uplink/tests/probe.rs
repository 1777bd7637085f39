//! Probes over a real wire: two network namespaces and a cable, made by the test and gone with it.
//! Needs root.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use braid_core::UplinkId;
use braid_packet::checksum;
use braid_uplink::liveness::{ProbeId, ProbeOutcome, ProbeRequest, ProbeResult, Target};
use braid_uplink::probe::{MAX_PROBES, Prober, dns};
use braid_uplink::{Layer, NextHop, Uplink};
use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const HERE: [&str; 2] = ["10.7.0.2", "2001:db8:7::2"];
const THERE: [&str; 2] = ["10.7.0.1", "2001:db8:7::1"];
/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// For what is not to be answered.
const SHORT: Duration = Duration::from_millis(300);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    let status = status.expect("ip of iproute2");
    assert!(status.success(), "ip {arguments}: {status}");
}

/// Runs the test in a namespace with a cable to another, in which `far` runs its servers first.
/// Both namespaces end with their threads.
fn on_a_cable(far: impl FnOnce() + Send + 'static, test: impl AsyncFnOnce(Rig) + Send + 'static) {
    let near = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("network tests need root: cannot unshare");
        let (ready, is_ready) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            // The thread's id names its namespace to the other thread.
            ready.send(nix::unistd::gettid()).unwrap();
            may_go.recv().unwrap();
            ip("link set lo up");
            ip(&format!("addr add {}/24 dev far", THERE[0]));
            ip(&format!("addr add {}/64 dev far nodad", THERE[1]));
            ip("link set far up");
            far();
            ready.send(nix::unistd::gettid()).unwrap();
            // The namespace stays until the test is over.
            let _ = is_done.recv();
        });
        let there = is_ready.recv().unwrap();
        ip("link set lo up");
        ip(&format!(
            "link add wan type veth peer name far netns {there}"
        ));
        ip(&format!("addr add {}/24 dev wan", HERE[0]));
        ip(&format!("addr add {}/64 dev wan nodad", HERE[1]));
        ip("link set wan up");
        go.send(()).unwrap();
        is_ready.recv().expect("the other side");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async { test(Rig::new()).await });
        drop(runtime);
        drop(done);
        other.join().unwrap();
    });
    if let Err(panic) = near.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The near side.
struct Rig {
    prober: Prober,
    answers: UnboundedReceiver<ProbeResult>,
    uplink: Uplink,
    next: u64,
}

impl Rig {
    fn new() -> Rig {
        fn next_hop<A: std::str::FromStr>(address: &str) -> Option<NextHop<A>> {
            Some(NextHop {
                address: address.parse().ok()?,
                gateway: None,
                others: Vec::new(),
                metric: 0,
                advertised: false,
                on_link: None,
            })
        }
        let (tx, answers) = unbounded_channel();
        Rig {
            prober: Prober::new(tx),
            answers,
            uplink: Uplink {
                name: "wan".to_owned(),
                device: "wan".to_owned(),
                ifindex: 2,
                layer: Layer::L2,
                mtu: 1500,
                v4: next_hop(HERE[0]),
                v6: next_hop(HERE[1]),
                why: String::new(),
            },
            next: 0,
        }
    }

    fn send(&mut self, target: &Arc<Target>, timeout: Duration) -> ProbeId {
        self.next += 1;
        let id = ProbeId(self.next);
        let order = ProbeRequest {
            uplink: UplinkId(3),
            id,
            target: target.clone(),
            timeout,
        };
        self.prober.send(order, &self.uplink);
        id
    }

    async fn ask_target(&mut self, target: Target, timeout: Duration) -> ProbeOutcome {
        let id = self.send(&Arc::new(target), timeout);
        let answer = self.answers.recv().await.unwrap();
        assert_eq!((answer.uplink, answer.id), (UplinkId(3), id));
        answer.outcome
    }

    async fn ask(&mut self, target: &str, timeout: Duration) -> ProbeOutcome {
        self.ask_target(target.parse().unwrap(), timeout).await
    }
}

fn is_good(outcome: &ProbeOutcome) -> bool {
    matches!(outcome, ProbeOutcome::Answered { rtt } if *rtt < PATIENCE)
}

/// Returns the fault of a wrong answer.
fn wrong(outcome: ProbeOutcome) -> String {
    match outcome {
        ProbeOutcome::Wrong { what, .. } => what,
        other => panic!("not wrong but {other:?}"),
    }
}

/// Serves each connection by these bytes, in the calling thread's namespace; `drip` between bytes.
fn serve(port: u16, answer: &'static [u8], drip: Duration) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                let read = stream.read(&mut request).unwrap_or(0);
                assert!(request[..read].is_empty() || request.starts_with(b"GET /"));
                if drip.is_zero() {
                    let _ = stream.write_all(answer);
                    return;
                }
                for byte in answer {
                    if stream.write_all(&[*byte]).is_err() {
                        break;
                    }
                    std::thread::sleep(drip);
                }
            });
        }
    });
}

#[test]
fn echo_requests_are_answered_in_both_families() {
    on_a_cable(
        || {},
        async |mut rig| {
            for there in THERE {
                let outcome = rig.ask(&format!("icmp:{there}"), PATIENCE).await;
                assert!(is_good(&outcome), "{there}: {outcome:?}");
            }
            // Nobody has these addresses: the neighbour's silence becomes an error, or time is up.
            for nobody in ["icmp:10.7.0.9", "icmp:2001:db8:7::9"] {
                assert_eq!(
                    rig.ask(nobody, SHORT).await,
                    ProbeOutcome::Silent,
                    "{nobody}"
                );
            }
        },
    );
}

/// Answers echo requests in the kernel's place, in the calling thread's namespace: first by ICMP errors that
/// quote another request between the same ends, then by an error that quotes this one if
/// `refuse`, else by the reply.
fn answer_after_errors(v6: bool, refuse: bool) {
    let (protocol, switch) = match v6 {
        false => (Protocol::ICMPV4, "net.ipv4.icmp_echo_ignore_all=1"),
        true => (Protocol::ICMPV6, "net.ipv6.icmp.echo_ignore_all=1"),
    };
    let status = Command::new("sysctl").args(["-qw", switch]).status();
    assert!(status.expect("sysctl of procps").success(), "{switch}");
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    let near: IpAddr = HERE[usize::from(v6)].parse().unwrap();
    let there: IpAddr = THERE[usize::from(v6)].parse().unwrap();
    let near_at = SocketAddr::new(near, 0).into();
    std::thread::spawn(move || {
        let mut bytes = [0; 1500];
        loop {
            let length = (&socket).read(&mut bytes).unwrap();
            let header = if v6 { 0 } else { 20 };
            let request = bytes[header..length].to_vec();
            if request[0] != if v6 { 128 } else { 8 } {
                continue;
            }
            let mut other = request.clone();
            other[4..8].fill(0);
            for _ in 0..100 {
                let error = icmp_error(near, there, &other);
                socket.send_to(&error, &near_at).unwrap();
            }
            if refuse {
                let error = icmp_error(near, there, &request);
                socket.send_to(&error, &near_at).unwrap();
                continue;
            }
            let mut reply = request;
            reply[0] = if v6 { 129 } else { 0 };
            reply[2..4].fill(0);
            let sum = checksum::of(&reply);
            reply[2..4].copy_from_slice(&sum.to_be_bytes());
            socket.send_to(&reply, &near_at).unwrap();
        }
    });
}

/// "Host unreachable" about an ICMP message between these ends. For IPv6 the kernel fills in the checksum.
fn icmp_error(source: IpAddr, dest: IpAddr, message: &[u8]) -> Vec<u8> {
    let mut error = match source {
        IpAddr::V4(_) => vec![3, 1, 0, 0, 0, 0, 0, 0],
        IpAddr::V6(_) => vec![1, 3, 0, 0, 0, 0, 0, 0],
    };
    match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let mut header = [0; 20];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&(20 + message.len() as u16).to_be_bytes());
            header[8..10].copy_from_slice(&[64, 1]);
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&dest.octets());
            let sum = checksum::of(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            error.extend_from_slice(&header);
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            let mut header = [0; 40];
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(message.len() as u16).to_be_bytes());
            header[6..8].copy_from_slice(&[58, 64]);
            header[8..24].copy_from_slice(&source.octets());
            header[24..].copy_from_slice(&dest.octets());
            error.extend_from_slice(&header);
        }
        _ => unreachable!("both ends are of one family"),
    }
    error.extend_from_slice(message);
    let sum = checksum::of(&error);
    if source.is_ipv4() {
        error[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    error
}

#[test]
fn icmp_errors_about_other_requests_end_no_probe() {
    for v6 in [false, true] {
        on_a_cable(
            move || answer_after_errors(v6, false),
            async move |mut rig| {
                let there = THERE[usize::from(v6)];
                let outcome = rig.ask(&format!("icmp:{there}"), PATIENCE).await;
                assert!(is_good(&outcome), "{there}: {outcome:?}");
            },
        );
    }
}

#[test]
fn an_icmp_error_about_this_request_ends_the_probe_at_once() {
    for v6 in [false, true] {
        on_a_cable(
            move || answer_after_errors(v6, true),
            async move |mut rig| {
                let there = THERE[usize::from(v6)];
                let began = Instant::now();
                let outcome = rig.ask(&format!("icmp:{there}"), 12 * PATIENCE).await;
                assert_eq!(outcome, ProbeOutcome::Silent, "{there}");
                assert!(began.elapsed() < PATIENCE, "{there}: {:?}", began.elapsed());
            },
        );
    }
}

#[test]
fn probes_leave_by_their_uplink_and_not_where_routes_point() {
    on_a_cable(
        || {},
        async |mut rig| {
            // A nearer way to the same place, to a device that swallows everything.
            ip("link add hole type veth peer name bottom");
            ip("link set bottom up");
            ip("link set hole up");
            ip(&format!("route add {}/32 dev hole", THERE[0]));
            let outcome = rig.ask(&format!("icmp:{}", THERE[0]), PATIENCE).await;
            assert!(is_good(&outcome), "{outcome:?}");
            rig.uplink.device = "hole".to_owned();
            let outcome = rig.ask(&format!("icmp:{}", THERE[0]), SHORT).await;
            assert_eq!(outcome, ProbeOutcome::Silent);
            rig.uplink.device = "gone".to_owned();
            let outcome = rig.ask(&format!("icmp:{}", THERE[0]), SHORT).await;
            assert!(
                matches!(outcome, ProbeOutcome::NotSent { .. }),
                "{outcome:?}"
            );
        },
    );
}

#[test]
fn a_family_that_the_uplink_lacks_is_not_asked() {
    on_a_cable(
        || {},
        async |mut rig| {
            rig.uplink.v6 = None;
            let outcome = rig.ask(&format!("icmp:{}", THERE[1]), PATIENCE).await;
            assert!(
                matches!(outcome, ProbeOutcome::NotSent { .. }),
                "{outcome:?}"
            );
        },
    );
}

#[test]
fn connections_open_or_are_refused_or_swallowed() {
    on_a_cable(
        || serve(4000, b"", Duration::ZERO),
        async |mut rig| {
            for target in [
                "tcp:10.7.0.1:4000",
                "tcp:[2001:db8:7::1]:4000",
                "tcp:10.7.0.1:4001",
            ] {
                let outcome = rig.ask(target, PATIENCE).await;
                assert!(is_good(&outcome), "{target}: {outcome:?}");
            }
            assert_eq!(
                rig.ask("tcp:10.7.0.9:4000", SHORT).await,
                ProbeOutcome::Silent
            );
        },
    );
}

#[test]
fn questions_over_dns_hear_their_own_answer_only() {
    let server = || {
        let socket = UdpSocket::bind(SocketAddr::new(IpAddr::from([0; 16]), 53)).unwrap();
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                let question = &question[..length];
                let mut answer = question.to_vec();
                answer[2] |= 0x80;
                let mut other_id = answer.clone();
                other_id[0] ^= 1;
                let mut other_name = answer.clone();
                other_name[14] ^= 1;
                let silent = question
                    == dns::question(
                        u16::from_be_bytes([question[0], question[1]]),
                        "silent.example",
                    );
                let refuse = question
                    == dns::question(
                        u16::from_be_bytes([question[0], question[1]]),
                        "refused.example",
                    );
                answer[3] |= if refuse { 5 } else { 0 };
                let _ = socket.send_to(b"", from);
                let _ = socket.send_to(&other_id, from);
                let _ = socket.send_to(&other_name, from);
                let _ = socket.send_to(&vec![0xff; 4000], from);
                if !silent {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
    };
    on_a_cable(server, async |mut rig| {
        for target in ["dns:10.7.0.1/example.org", "dns:2001:db8:7::1"] {
            let outcome = rig.ask(target, PATIENCE).await;
            assert!(is_good(&outcome), "{target}: {outcome:?}");
        }
        let outcome = rig.ask("dns:10.7.0.1/silent.example", SHORT).await;
        assert_eq!(outcome, ProbeOutcome::Silent);
        let outcome = rig.ask("dns:10.7.0.1/refused.example", PATIENCE).await;
        assert_eq!(wrong(outcome), "response code 5");
        // A port that nobody listens on: the machine says so.
        assert_eq!(
            rig.ask("dns:10.7.0.1:5353", PATIENCE).await,
            ProbeOutcome::Silent
        );
    });
}

#[test]
fn answers_over_http_have_to_be_exact() {
    let huge: &'static [u8] =
        Vec::leak([&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[b'x'; 1_000_000]].concat());
    let headers: &'static [u8] =
        Vec::leak([&b"HTTP/1.1 204 No Content\r\nX: "[..], &[b'x'; 1_000_000]].concat());
    let servers = move || {
        serve(80, b"HTTP/1.1 204 No Content\r\n\r\n", Duration::ZERO);
        serve(
            81,
            b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n",
            Duration::ZERO,
        );
        serve(
            82,
            b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsuccess\n",
            Duration::ZERO,
        );
        serve(
            83,
            b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nlogin\n",
            Duration::ZERO,
        );
        serve(84, b"SSH-2.0-OpenSSH_9.2\r\n", Duration::ZERO);
        serve(
            85,
            b"HTTP/1.1 204 No Content\r\n\r\n",
            Duration::from_millis(100),
        );
        serve(86, huge, Duration::ZERO);
        serve(87, headers, Duration::ZERO);
        serve(88, b"", Duration::ZERO);
        serve(
            89,
            b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsucc",
            Duration::ZERO,
        );
    };
    on_a_cable(servers, async |mut rig| {
        for target in [
            "http://10.7.0.1/",
            "http://[2001:db8:7::1]/generate_204?x=1",
        ] {
            let outcome = rig.ask(target, PATIENCE).await;
            assert!(is_good(&outcome), "{target}: {outcome:?}");
        }
        let expecting = |port: u16| {
            let target: Target = format!("http://10.7.0.1:{port}/").parse().unwrap();
            target.expecting("success\n".to_owned())
        };
        let outcome = rig.ask_target(expecting(82), PATIENCE).await;
        assert!(is_good(&outcome), "{outcome:?}");
        let outcome = rig.ask("http://10.7.0.1:81/", PATIENCE).await;
        assert_eq!(wrong(outcome), "status 302 instead of 204");
        let outcome = rig.ask_target(expecting(83), PATIENCE).await;
        assert_eq!(wrong(outcome), "another body of 6 bytes than was expected");
        let outcome = rig.ask("http://10.7.0.1:84/", PATIENCE).await;
        assert_eq!(wrong(outcome), "an answer that is no HTTP");
        let outcome = rig.ask_target(expecting(86), PATIENCE).await;
        assert_eq!(wrong(outcome), "more than 8 bytes of body");
        let outcome = rig.ask("http://10.7.0.1:87/", PATIENCE).await;
        assert_eq!(wrong(outcome), "an answer that is no HTTP");
        for port in [85, 88, 90] {
            let outcome = rig.ask(&format!("http://10.7.0.1:{port}/"), SHORT).await;
            assert_eq!(outcome, ProbeOutcome::Silent, "{port}");
        }
        let outcome = rig.ask_target(expecting(89), PATIENCE).await;
        assert_eq!(outcome, ProbeOutcome::Silent);
    });
}

#[test]
fn a_name_that_cannot_be_looked_up_says_nothing_about_the_uplink() {
    on_a_cable(
        || {},
        async |mut rig| {
            // No resolver can be reached from here, and nobody has this name (RFC 6761 §6.4).
            let outcome = rig.ask("http://braid.invalid/", 4 * PATIENCE).await;
            assert!(
                matches!(outcome, ProbeOutcome::NotSent { .. }),
                "{outcome:?}"
            );
        },
    );
}

/// Open files of this process.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn probes_are_bounded_and_leave_nothing_behind() {
    on_a_cable(
        || {},
        async |mut rig| {
            let silent = Arc::new("icmp:10.7.0.9".parse().unwrap());
            let before = open_files();
            let asked = MAX_PROBES + 50;
            for _ in 0..asked {
                rig.send(&silent, SHORT);
            }
            let began = Instant::now();
            let mut refused = 0;
            for _ in 0..asked {
                let answer = rig.answers.recv().await.unwrap();
                refused += usize::from(matches!(answer.outcome, ProbeOutcome::NotSent { .. }));
            }
            assert!(refused >= 50, "{refused} of {asked} were refused");
            assert!(began.elapsed() < PATIENCE);
            // Other tests of this process open files meanwhile, but none a thousand.
            assert!(open_files() < before + MAX_PROBES / 2);
        },
    );
}
