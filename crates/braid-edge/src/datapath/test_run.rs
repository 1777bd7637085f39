//! Runs the programs on single packets (`BPF_PROG_TEST_RUN`) and checks verdict, reasons and output; and on
//! random packets (`routing`, `random_frames`) against a reference that builds the expected output anew.

use std::cell::RefCell;
use std::net::IpAddr;
use std::process::Command;
use std::thread;

use aya::programs::{TestRun, TestRunOptions};
use braid_packet::{Packet, build};
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::pair_repair::CopiedPath;
use crate::probe::{MAX_REPORTS, Offer, TAGGED_REQUEST_LENGTH, TaggedReply, TaggedRequest};
use crate::shared::{ETH_P_PROBE, ETH_P_SHIM, MAX_HOSTS, PATH_COUNT_BYTES, ReasonKind, SHIM_BYTES};
use crate::table::EgressPath;

mod arrival;
mod fair_drop;
mod random_frames;
mod routing;

const ETHERNET: usize = 14;
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const HOST: Mac = Mac([2, 0, 0, 0, 0, 2]);
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ACK: u8 = 0x10;

/// `TC_ACT_OK` or `TC_ACT_UNSPEC`, `TC_ACT_SHOT` and `TC_ACT_REDIRECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Dropped,
    Sent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    verdict: Verdict,
    /// The reason of its one exit.
    reason: &'static str,
    events: Vec<&'static str>,
    frame: Vec<u8>,
}

impl Outcome {
    #[track_caller]
    fn is(self, verdict: Verdict, reason: &str) -> Self {
        assert_eq!((self.verdict, self.reason), (verdict, reason));
        self
    }

    /// Returns the IP packet and asserts that its checksums are right.
    #[track_caller]
    fn packet(&self) -> &[u8] {
        let packet = &self.frame[ETHERNET..];
        let read = Packet::parse(packet).expect("a readable packet");
        assert!(read.checksums_hold(), "wrong checksum in {read:x?}");
        packet
    }
}

impl Datapath {
    /// Returns the slot table of a target, as in the map.
    pub fn slots(&mut self, index: u32) -> [u16; SLOTS as usize] {
        let tables = self.array::<SlotTableEntry>("tables").expect("a map");
        tables.get(&index, 0).expect("a table").tags
    }
}

/// Loaded programs that are attached to no device.
struct Trial(RefCell<Datapath>);

impl Trial {
    fn new(layer: Layer) -> Trial {
        let mut datapath = Datapath::loaded(layer).expect("programs (needs root)");
        datapath.settings = Settings {
            inside: 1,
            outside: 1,
            hold: 1,
            epoch: 7,
            shim: 1,
            ..Settings::default()
        };
        datapath.outside = Some("lo".to_owned());
        datapath.renew().expect("settings");
        Trial(RefCell::new(datapath))
    }

    fn run(&self, program: &str, frame: &[u8]) -> Outcome {
        self.run_by(program, 0, frame)
    }

    /// The same for a packet with a priority.
    fn run_by(&self, program: &str, priority: u32, frame: &[u8]) -> Outcome {
        self.run_merged(program, priority, (0, 0), frame)
    }

    /// The same for a packet merged of so many segments (0: not told) of this size (0: it is none).
    fn run_merged(
        &self,
        program: &str,
        priority: u32,
        (segments, size): (u32, u32),
        frame: &[u8],
    ) -> Outcome {
        let mut datapath = self.0.borrow_mut();
        let before = datapath.reasons().expect("reasons");
        let mut out = vec![0; frame.len() + 256];
        // struct __sk_buff up to and with gso_size, on the loopback device.
        let mut context = [0; 180];
        context[32..36].copy_from_slice(&priority.to_ne_bytes());
        context[36..40].copy_from_slice(&1_u32.to_ne_bytes());
        context[40..44].copy_from_slice(&1_u32.to_ne_bytes());
        context[164..168].copy_from_slice(&segments.to_ne_bytes());
        context[176..180].copy_from_slice(&size.to_ne_bytes());
        let ran = datapath.program(program).expect("a program");
        let ran = ran.test_run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            repeat: 1,
            ..TestRunOptions::new()
        });
        let ran = ran.expect("a test run");
        out.truncate(ran.data_size_out as usize);
        let after = datapath.reasons().expect("reasons");
        let counted: Vec<_> = REASONS
            .iter()
            .zip(before.iter().zip(&after))
            .flat_map(|(reason, (before, after))| (*before..*after).map(move |_| reason))
            .collect();
        let (events, exits): (Vec<_>, Vec<_>) = counted
            .into_iter()
            .partition::<Vec<&crate::Reason>, _>(|reason| reason.kind == ReasonKind::Event);
        assert_eq!(exits.len(), 1, "one exit for one packet: {exits:?}");
        let verdict = match ran.return_value {
            // TC_ACT_UNSPEC lets other programs run first.
            0 | u32::MAX => Verdict::Passed,
            2 => Verdict::Dropped,
            7 => Verdict::Sent,
            other => panic!("verdict {other}"),
        };
        let promised = match exits[0].kind {
            ReasonKind::Sent => Verdict::Sent,
            ReasonKind::Dropped => Verdict::Dropped,
            _ => Verdict::Passed,
        };
        assert_eq!(verdict, promised, "what {:?} promises", exits[0].name);
        Outcome {
            verdict,
            reason: exits[0].name,
            events: events.iter().map(|reason| reason.name).collect(),
            frame: out,
        }
    }

    /// Returns the packets sent by each of these paths.
    fn sent(&self, tags: [u16; 2]) -> [u64; 2] {
        let mut datapath = self.0.borrow_mut();
        tags.map(|tag| {
            datapath
                .traffic(Counted::Sent, tag)
                .expect("traffic")
                .packets
        })
    }
}

/// Runs `work` in a network namespace that `commands` set up. Its thread, and so the namespace, end with
/// it.
fn in_namespace<T: Send>(commands: &str, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace (needs root)");
            commands.lines().for_each(command);
            work()
        });
        inside
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn command(line: &str) {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let done = Command::new(program).args(words).status();
    assert!(done.expect(program).success(), "{line}");
}

fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    [MACS.as_slice(), &kind.to_be_bytes(), packet].concat()
}

fn framed(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 6 { IPV6 } else { IPV4 };
    frame(kind, packet)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn ends() -> ((IpAddr, u16), (IpAddr, u16)) {
    ((ip("10.1.0.7"), 4000), (ip("10.2.0.9"), 443))
}

fn data(bytes: usize) -> Vec<u8> {
    let (from, to) = ends();
    build::tcp(from, to, ACK, &vec![0; bytes])
}

fn datagram(bytes: usize) -> Vec<u8> {
    let (from, to) = ends();
    build::udp(from, to, &vec![0; bytes])
}

/// Uses both paths in turn.
fn egress(shim: bool) -> Egress {
    Egress {
        target: "hb".to_owned(),
        hosts: vec![HOST],
        slots: (0..SLOTS as u16).map(|slot| 10 + slot % 2).collect(),
        shim,
        max_rate_bit_s: 0,
        paths: Vec::new(),
    }
}

/// Uses both paths in turn, with shims if `shim`.
fn split(shim: bool) -> Trial {
    let trial = Trial::new(Layer::Two);
    let split = trial.0.borrow_mut().set_egress(&[egress(shim)]);
    split.expect("tables");
    trial
}

#[test]
fn segments_walk_the_slots_by_bytes() {
    let trial = split(false);
    let full = framed(&data(1460));
    assert_eq!(full.len(), 1514);
    for round in 1..=3 {
        trial.run("braid_split", &full).is(Verdict::Sent, "split");
        trial.run("braid_split", &full).is(Verdict::Sent, "split");
        assert_eq!(trial.sent([10, 11]), [round, round]);
    }
    // Small ones share a slot: 54 bytes each, so that 28 of them still stand on the first path's.
    for _ in 0..28 {
        let out = trial.run("braid_split", &framed(&data(0)));
        assert_eq!(out.frame, framed(&data(0)), "the tag is beside the packet");
    }
    assert_eq!(trial.sent([10, 11]), [3 + 28, 3]);
}

#[test]
fn all_hosts_may_be_others_at_once() {
    let trial = Trial::new(Layer::Two);
    let hosts = |first: u32| -> Vec<Mac> {
        let macs = (first..first + MAX_HOSTS).map(u32::to_be_bytes);
        macs.map(|[a, b, c, d]| Mac([2, 0, a, b, c, d])).collect()
    };
    let follow = |target: &str, hosts: Vec<Mac>| {
        let egress = Egress {
            target: target.to_owned(),
            hosts,
            slots: vec![10; SLOTS as usize],
            shim: false,
            max_rate_bit_s: 0,
            paths: Vec::new(),
        };
        trial.0.borrow_mut().set_egress(&[egress])
    };
    let sent = |Mac(mac): Mac, reason| {
        let mut frame = framed(&data(1));
        frame[..6].copy_from_slice(&mac);
        trial.run("braid_split", &frame).is(Verdict::Sent, reason);
    };
    let (before, after) = (hosts(0), hosts(MAX_HOSTS));
    follow("hb", before.clone()).expect("as many as there may be");
    sent(before[0], "split");
    follow("hc", after.clone()).expect("as many others");
    sent(after[0], "split");
    sent(before[0], "single_path");
    // Too many hosts are refused, and the next table is applied.
    let more = [before.clone(), after.clone()].concat();
    follow("hc", more).expect_err("twice as many");
    follow("hb", before.clone()).expect("as many as there may be");
    sent(before[0], "split");
    sent(after[0], "single_path");
}

#[test]
fn what_an_edge_does_with_everything_else() {
    let trial = split(false);
    let mut to_all = framed(&data(1));
    to_all[0] = 0xff;
    let mut stranger = framed(&data(1));
    stranger[5] = 99;
    for (frame, reason) in [
        (to_all, "multicast"),
        (stranger, "single_path"),
        (framed(&datagram(1200)), "sticky"),
        (frame(0x0806, &[0; 28]), "sticky"),
    ] {
        let out = trial.run("braid_split", &frame).is(Verdict::Sent, reason);
        assert_eq!(out.frame, frame);
    }
    let [one, other] = trial.sent([10, 11]);
    for _ in 0..9 {
        trial.run("braid_split", &framed(&datagram(1200)));
    }
    let [after, beside] = trial.sent([10, 11]);
    assert!(
        after - one == 9 || beside - other == 9,
        "one flow, one path"
    );
}

#[test]
fn hosts_cannot_number_packets_themselves() {
    let trial = split(true);
    let forged = [&[7, 0, 8, 0, 0, 0, 0, 1], datagram(100).as_slice()].concat();
    let to_edge = frame(ETH_P_SHIM as u16, &forged);
    let mut to_all = to_edge.clone();
    to_all[0] = 0xff;
    let mut stranger = to_edge.clone();
    stranger[5] = 99;
    for frame in [to_edge, to_all, stranger] {
        trial
            .run("braid_split", &frame)
            .is(Verdict::Dropped, "host_shim");
    }
    assert_eq!(trial.sent([10, 11]), [0, 0]);
}

/// Also with strict alignment, and within the stack limit of a kernel without a JIT.
#[test]
fn every_kernel_takes_the_programs() {
    for strict in [false, true] {
        let verified = braid_verifier::verify(OBJECT, strict);
        for each in verified.unwrap_or_else(|refused| panic!("{refused}")) {
            assert!(each.deepest.bytes < 512, "{each:?}");
        }
    }
    assert!(rehearse().is_empty());
}

#[test]
fn datagrams_are_numbered_where_they_fit() {
    in_namespace("ip link set lo mtu 1500", datagrams_are_numbered);
}

fn datagrams_are_numbered() {
    let trial = split(true);
    let longest = 1500 - SHIM_BYTES as usize - 28;
    for number in 0..3_u32 {
        let packet = datagram(longest);
        let out = trial.run("braid_split", &framed(&packet));
        let out = out.is(Verdict::Sent, "shim_added");
        let (head, rest) = out.frame.split_at(ETHERNET);
        assert_eq!(head, frame(ETH_P_SHIM as u16, &[]));
        let (shim, rest) = rest.split_at(SHIM_BYTES as usize);
        assert_eq!((shim[0], &shim[2..4]), (7, IPV4.to_be_bytes().as_slice()));
        assert_eq!(&shim[4..], number.to_be_bytes());
        assert_eq!(rest, packet);
    }
    // A flow keeps to its path for a moment after it got numbers.
    let mut sent = trial.sent([10, 11]);
    sent.sort_unstable();
    assert_eq!(sent, [0, 3]);
    let out = trial.run("braid_split", &framed(&datagram(longest + 1)));
    assert_eq!(out.events, ["no_shim_room"]);
    out.is(Verdict::Sent, "sticky");
    // Others of that flow keep their order with it.
    trial
        .run("braid_split", &framed(&datagram(9)))
        .is(Verdict::Sent, "sticky");
    // TCP has numbers of its own, and ARP is not IP: neither gets a shim.
    trial
        .run("braid_split", &framed(&data(9)))
        .is(Verdict::Sent, "split");
    trial
        .run("braid_split", &frame(0x0806, &[0; 28]))
        .is(Verdict::Sent, "sticky");
}

#[test]
fn merged_packets_count_as_those_that_they_are_and_get_no_numbers() {
    in_namespace("ip link set lo mtu 1500", || {
        let trial = split(true);
        let (from, to) = ((ip("fd00::1"), 4000), (ip("fd00::2"), 443));
        let run = |frame: &[u8], merged| {
            let before: u64 = trial.sent([10, 11]).iter().sum();
            let out = trial.run_merged("braid_split", 0, merged, frame);
            let after: u64 = trial.sent([10, 11]).iter().sum();
            (after - before, out)
        };
        for (merged, packets) in [((5, 240), 5), ((0, 240), 5), ((0, 239), 6), ((0, 1200), 1)] {
            for frame in [
                framed(&data(1200)),
                framed(&datagram(1200)),
                framed(&build::tcp(from, to, ACK, &[0; 1200])),
                framed(&build::udp(from, to, &[0; 1200])),
            ] {
                let (counted, out) = run(&frame, merged);
                assert_eq!(counted, packets, "{merged:?} {}", out.reason);
                let is_merged = out.events.contains(&"gso_packet");
                assert_eq!(is_merged, packets > 1, "{merged:?} {:?}", out.events);
            }
        }
        // The flow's others keep their order with a merged one.
        let frame = framed(&build::udp(from, to, &[0; 300]));
        trial.run("braid_split", &frame).is(Verdict::Sent, "sticky");
    });
}

/// Sends datagrams of so many flows; returns how many each of both paths carried.
fn sent_by_flows(trial: &Trial, flows: u16) -> [u64; 2] {
    let before = trial.sent([10, 11]);
    let (from, to) = ends();
    for port in 0..flows {
        let packet = build::udp((from.0, 5_000 + port), to, &[0; 100]);
        let out = trial.run("braid_split", &framed(&packet));
        out.is(Verdict::Sent, "sticky");
    }
    let after = trial.sent([10, 11]);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn flows_that_keep_to_one_path_avoid_those_that_they_are_to() {
    let trial = split(false);
    let avoid = |tags: &[u16]| {
        let tags = tags.iter().copied().collect();
        trial.0.borrow_mut().set_avoided(&tags).expect("a map");
    };
    let both = |sent: [u64; 2]| sent.iter().all(|count| *count > 60);
    assert!(both(sent_by_flows(&trial, 200)));
    for (avoided, sent) in [(10, [0, 200]), (11, [200, 0])] {
        avoid(&[avoided]);
        assert_eq!(sent_by_flows(&trial, 200), sent);
    }
    // Packets of such flows are counted, and segments take both paths all the same.
    let kept = trial.0.borrow_mut().traffic(Counted::Kept, 10);
    let before = trial.sent([10, 11]);
    assert_eq!(kept.expect("traffic").packets, before[0]);
    for _ in 0..4 {
        trial.run("braid_split", &framed(&data(1460)));
    }
    assert_eq!(trial.sent([10, 11]), [before[0] + 2, before[1] + 2]);
    avoid(&[10, 11]);
    assert!(both(sent_by_flows(&trial, 200)));
    avoid(&[]);
    assert!(both(sent_by_flows(&trial, 200)));
    // The other path has few of the slots, and none of those that are tried.
    avoid(&[10]);
    let path = |tag| EgressPath {
        tag,
        rate_bit_s: 100_000_000,
        delay_ms: 10.0,
        latency_ms: None,
    };
    let rare = Egress {
        slots: (0..SLOTS as u16)
            .map(|at| 10 + u16::from(at == 1000))
            .collect(),
        paths: [10, 11].map(path).to_vec(),
        ..egress(false)
    };
    trial.0.borrow_mut().set_egress(&[rare]).expect("a table");
    assert_eq!(sent_by_flows(&trial, 200), [0, 200]);
}

#[test]
fn a_number_has_room_as_long_as_the_device_has() {
    in_namespace("ip link set lo mtu 1500", || {
        let trial = split(true);
        let full = framed(&datagram(1500 - 28));
        for (mtu, events, reason) in [
            (1508, [].as_slice(), "shim_added"),
            (9000, &[], "shim_added"),
            (1507, &["no_shim_room"], "sticky"),
            (1500, &["no_shim_room"], "sticky"),
        ] {
            command(&format!("ip link set lo mtu {mtu}"));
            trial.0.borrow_mut().renew().expect("settings");
            let out = trial.run("braid_split", &full);
            assert_eq!(out.events, events, "{mtu}");
            out.is(Verdict::Sent, reason);
        }
    });
}

#[test]
fn a_flow_is_numbered_once_it_fills_its_path() {
    // A thousand Mbit/s are not filled by the packets that a test sends.
    for (mbit, first) in [(2, Some(26..40)), (1000, None)] {
        let trial = split(true);
        {
            let mut datapath = trial.0.borrow_mut();
            let settings = Settings {
                min_lane_bytes: MIN_LANE_BYTES,
                ..datapath.settings
            };
            datapath.set(settings).expect("settings");
            let path = |tag| EgressPath {
                tag,
                rate_bit_s: 1_000_000 * mbit,
                delay_ms: 10.0,
                latency_ms: None,
            };
            let egress = Egress {
                paths: [10, 11].map(path).to_vec(),
                ..egress(true)
            };
            datapath.set_egress(&[egress]).expect("a table");
        }
        let frame = framed(&datagram(1200));
        let numbered = |_: &usize| trial.run("braid_split", &frame).reason == "shim_added";
        let found = (0..60).find(numbered);
        match first {
            Some(range) => assert!(found.is_some_and(|at| range.contains(&at)), "{found:?}"),
            None => assert_eq!(found, None, "{mbit}"),
        }
        let Some(found) = found else { continue };
        // It keeps to the path that it had, so that none comes before those without numbers.
        let mut sent = trial.sent([10, 11]);
        sent.sort_unstable();
        assert_eq!(sent, [0, found as u64 + 1]);
        thread::sleep(Duration::from_millis(210));
        assert!((0..60).all(|at| numbered(&at)));
        assert!(trial.sent([10, 11]).iter().all(|count| *count > 10));
    }
}

/// As after a kill, where the programs do not end with their process.
#[test]
fn programs_that_are_left_behind_let_everything_pass() {
    let trial = split(true);
    let run = |program| trial.run(program, &framed(&data(9)));
    let lease = |lease_end_ns| {
        let mut datapath = trial.0.borrow_mut();
        let settings = Settings {
            lease_end_ns,
            ..datapath.settings
        };
        datapath.set(settings).expect("settings");
    };
    lease(u64::MAX);
    run("braid_split").is(Verdict::Sent, "split");
    lease(1);
    for program in Layer::Two.programs() {
        run(program).is(Verdict::Passed, "orphaned");
    }
}

#[test]
fn what_comes_without_a_tag_is_handed_on_and_probes_go_back() {
    let trial = split(false);
    let frames = [
        (frame(ETH_P_PROBE as u16, &[0; 60]), "probe"),
        (framed(&data(9)), "untagged"),
    ];
    for (frame, reason) in frames {
        let out = trial.run("braid_join", &frame).is(Verdict::Sent, reason);
        assert_eq!(out.frame, frame);
    }
    trial
        .run("braid_ordered", &framed(&data(9)))
        .is(Verdict::Sent, "resequenced");
}

/// Answers a probe of a path, given as by its tag; returns the reply that leaves.
fn answered(trial: &Trial, request: &TaggedRequest) -> TaggedReply {
    let frame = request.frame();
    let out = trial.run_by("braid_probed", request.tag.into(), &untagged(&frame));
    let mut reply = out.is(Verdict::Sent, "probe").frame;
    assert_eq!(reply.len(), TAGGED_REQUEST_LENGTH - TAG);
    // The tag is beside the packet.
    reply.splice(
        12..12,
        [&[0x81, 0x00], request.return_tag.to_be_bytes().as_slice()].concat(),
    );
    TaggedReply::parse(&reply).expect("a reply")
}

fn untagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &frame[12 + TAG..]].concat()
}

const TAG: usize = 4;

fn prober() -> Trial {
    let trial = Trial::new(Layer::Two);
    let loaded = trial.0.borrow_mut().load("braid_probed");
    loaded.expect("a program");
    trial
}

fn asking(tag: u16, nonce: u64, asked: [u16; MAX_REPORTS]) -> TaggedRequest {
    TaggedRequest {
        tag,
        return_tag: 20,
        nonce,
        asked,
    }
}

#[test]
fn a_probe_is_answered_with_what_came_last_by_each_path() {
    let trial = prober();
    let reply = answered(&trial, &asking(10, 0x1_0000_0007, [10, 11, 4094, 0]));
    assert_eq!((reply.tag, reply.nonce), (20, 0x1_0000_0007));
    let told = |reply: TaggedReply| reply.reports.map(|report| (report.tag, report.nonce));
    assert_eq!(told(reply), [(10, 7), (11, 0), (4094, 0), (0, 0)]);
    let reply = answered(&trial, &asking(11, 0x2_0000_0009, [10, 11, 0, 0]));
    assert_eq!(told(reply), [(10, 7), (11, 9), (0, 0), (0, 0)]);
    assert!(reply.reports.iter().all(|report| report.data_age.is_none()));
    trial.0.borrow_mut().forget_arrivals(10).expect("a map");
    let reply = answered(&trial, &asking(11, 0x3_0000_000a, [10, 11, 0, 0]));
    assert_eq!(told(reply)[..2], [(10, 0), (11, 10)]);
}

#[test]
fn a_reply_offers_copies_to_the_edge_that_it_goes_to() {
    let trial = prober();
    let offer = Offer {
        wait: Duration::from_millis(50),
        token: 0x0123_4567_89ab_cdef,
    };
    let set = |offers: &[u16]| {
        let repairs = Repairs {
            offers: offers.iter().map(|tag| (*tag, offer)).collect(),
            ..Repairs::default()
        };
        trial.0.borrow_mut().set_repairs(&repairs).expect("maps");
    };
    let offered = || answered(&trial, &asking(10, 7, [10, 0, 0, 0])).offer;
    for (offers, told) in [(&[21][..], None), (&[20, 21], Some(offer)), (&[21], None)] {
        set(offers);
        assert_eq!(offered(), told);
    }
    // A process that stands still sends none.
    set(&[20]);
    let end = |offers_end_ns| {
        let mut datapath = trial.0.borrow_mut();
        let settings = Settings {
            offers_end_ns,
            ..datapath.settings
        };
        datapath.set(settings).expect("settings");
    };
    end(1);
    assert_eq!(offered(), None);
    trial.0.borrow_mut().renew().expect("settings");
    assert_eq!(offered(), Some(offer));
    // A probe of an earlier version has no room for one.
    let frame = untagged(&asking(10, 7, [10, 0, 0, 0]).frame());
    let frame = &frame[..frame.len() - COUNTS_BYTES - OFFER_BYTES as usize];
    let out = trial.run_by("braid_probed", 10, frame);
    assert_eq!(out.is(Verdict::Sent, "probe").frame.len(), frame.len());
}

/// Bytes behind an offer.
const COUNTS_BYTES: usize = MAX_REPORTS * PATH_COUNT_BYTES as usize;

#[test]
fn a_reply_counts_the_packets_that_had_come_before_each_probe() {
    let trial = prober();
    let loaded = trial.0.borrow_mut().load("braid_tagged");
    loaded.expect("a program");
    let actions = [10, 11].map(|tag| (tag, TagAction::Forward));
    let set = trial.0.borrow_mut().set_tag_actions(actions);
    set.expect("a map");
    let bring = |tag: u16, count: u32| {
        for _ in 0..count {
            let out = trial.run_by("braid_tagged", tag.into(), &framed(&data(9)));
            out.is(Verdict::Sent, "forwarded");
        }
    };
    let asked = [10, 11, 12, 0];
    let counted = |tag, nonce| {
        let reply = answered(&trial, &asking(tag, nonce, asked));
        reply.reports.map(|report| report.packets)
    };
    bring(10, 3);
    let first = counted(11, 1);
    assert_eq!(first, [None, Some(0), None, None], "no probe came by 10");
    assert_eq!(counted(10, 2), [Some(3), Some(0), None, None]);
    bring(10, 2);
    bring(11, 4);
    // Those that came after the last probe by their path are none of it.
    assert_eq!(counted(11, 3), [Some(3), Some(4), None, None]);
    assert_eq!(counted(10, 4), [Some(5), Some(4), None, None]);
    // A probe of an earlier version has no room for counts.
    let frame = untagged(&asking(10, 7, asked).frame());
    let frame = &frame[..frame.len() - COUNTS_BYTES];
    let out = trial.run_by("braid_probed", 10, frame);
    assert_eq!(out.is(Verdict::Sent, "probe").frame.len(), frame.len());
}

#[test]
fn copies_are_made_of_numbered_packets_by_some_paths_alone() {
    let trial = split(true);
    let run = |packet: &[u8]| trial.run("braid_split", &framed(packet)).events;
    // One in two takes path 11.
    let copied = |packet: &[u8]| (0..4).filter(|_| run(packet) == ["copied"]).count();
    assert_eq!(copied(&data(1460)), 0);
    let set = |tags: &[u16]| {
        let path = CopiedPath {
            by: 12,
            token: 0,
            is_clear: true,
        };
        let repairs = Repairs {
            copied: tags.iter().map(|tag| (*tag, path)).collect(),
            ..Repairs::default()
        };
        trial.0.borrow_mut().set_repairs(&repairs).expect("maps");
    };
    set(&[11]);
    assert_eq!(copied(&data(1460)), 2);
    assert_eq!(copied(&data(0)), 0, "acknowledgements");
    set(&[10, 11]);
    assert_eq!(copied(&data(1460)), 4);
    assert_eq!(copied(&datagram(1000)), 4);
    set(&[]);
    assert_eq!(copied(&data(1460)), 0);
}

#[test]
fn a_reply_goes_to_the_prober_and_what_is_no_probe_nowhere() {
    let trial = prober();
    let frame = untagged(&asking(10, 7, [10, 0, 0, 0]).frame());
    let kind = 14 + SHIM_BYTES as usize + 5;
    let reply = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = frame.clone();
        change(&mut frame);
        let before = frame.clone();
        let out = trial.run_by("braid_probed", 10, &frame);
        assert_eq!(out.frame, before);
        (out.verdict, out.reason)
    };
    // Replies, and requests for copies.
    for number in 2..=3 {
        let passed = reply(&|frame| frame[kind] = number);
        assert_eq!(passed, (Verdict::Sent, "probe"));
    }
    let dropped = (Verdict::Dropped, "bad_probe");
    assert_eq!(reply(&|frame| frame[kind] = 4), dropped);
    // Another magic number, no or an impossible way back, a nonce that says that none came, no end.
    assert_eq!(reply(&|frame| frame[kind - 5] ^= 1), dropped);
    assert_eq!(reply(&|frame| frame[kind + 2] = 0), dropped);
    assert_eq!(
        reply(&|frame| frame[kind + 1..kind + 3].fill(0xff)),
        dropped
    );
    assert_eq!(reply(&|frame| frame[kind + 10] = 0), dropped);
    assert_eq!(
        reply(&|frame| frame.truncate(frame.len() - 1 - COUNTS_BYTES - OFFER_BYTES as usize)),
        dropped
    );
    let untouched = answered(&trial, &asking(11, 9, [10, 0, 0, 0]));
    assert_eq!(untouched.reports[0].nonce, 0, "none of them counted");
}
