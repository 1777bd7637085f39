//! Frames that nobody would send, against a twin of the programs that knows the frame and what the maps say: it tells the
//! exit, and every byte of what leaves. `make fuzz` runs it for longer.

use std::env;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::routing::{INNER, packet};
use super::*;

mod of_hosts;
mod of_paths;
mod over_layer_3;

/// Frames that each test tries at least.
const CASES: u32 = 3_000;

/// Commands for a namespace without routes.
const NO_ROUTES: &str = "ip link set lo up";

/// Tags of the paths to each of the other edges; the last one has none.
const PATHS: [[u16; 2]; 5] = [[10, 11], [12, 13], [14, 15], [16, 17], [0, 0]];

fn mac(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, host as u8]
}

/// Exits that frames have taken.
type Seen = RefCell<BTreeSet<&'static str>>;

/// Runs `test` on as many frames in a namespace that commands set up, each time with new programs and maps, until
/// `BPF_FUZZ_SECONDS` have passed. The frames must take all of `exits` at least.
fn try_frames<S: Strategy + Sync, T>(
    namespace: &str,
    strategy: &S,
    exits: &[&'static str],
    fresh: impl Fn() -> T + Sync,
    test: impl Fn(&T, &Seen, S::Value) -> Result<(), TestCaseError> + Sync,
) {
    let seconds = env::var("BPF_FUZZ_SECONDS").map_or(0, |text| text.parse().expect("seconds"));
    in_namespace(namespace, || {
        let (began, mut tried) = (Instant::now(), 0);
        while tried == 0 || began.elapsed() < Duration::from_secs(seconds) {
            let (trial, seen) = (fresh(), Seen::default());
            let mut runner = TestRunner::new(Config {
                cases: CASES,
                failure_persistence: None,
                ..Config::default()
            });
            runner
                .run(strategy, |value| test(&trial, &seen, value))
                .unwrap_or_else(|error| panic!("{error}"));
            let seen = seen.into_inner();
            let missed: Vec<_> = exits.iter().filter(|exit| !seen.contains(*exit)).collect();
            assert!(missed.is_empty(), "no frame has come to {missed:?}");
            tried += u64::from(CASES);
        }
        if seconds > 0 {
            eprintln!("stat::number_of_executed_units: {tried}");
        }
    });
}

/// Form of a frame.
#[derive(Debug, Clone, Copy)]
enum Form {
    Packet,
    /// With a tag of the hosts' own.
    HostVlan,
    Arp,
    Shim,
    Probe,
}

/// Forms of frames, mostly those that hosts or other edges send.
fn forms(by_edges: u32) -> impl Strategy<Value = Form> {
    prop_oneof![
        12 => Just(Form::Packet),
        1 => Just(Form::HostVlan),
        1 => Just(Form::Arp),
        by_edges => Just(Form::Shim),
        by_edges => Just(Form::Probe),
    ]
}

/// A frame to a host behind some edge, to a stranger or to all, with some bytes changed and some missing.
fn frames(forms: impl Strategy<Value = Form>) -> impl Strategy<Value = Vec<u8>> {
    let lengths = prop_oneof![1 => Just(0), 2 => 0..1_473_usize, 1 => 1_440..1_473_usize];
    // TCP segments more often than other packets.
    let kinds = prop_oneof![Just(0), any::<u8>()];
    let packets = (0..2_usize, [0..4_u64, 0..4_u64], kinds, lengths);
    let changes = proptest::collection::vec((0..90_usize, any::<u8>()), 0..4);
    let cut = prop_oneof![Just(0), 0..120_usize];
    // Of IPv4: whole, more fragments, one that must not be cut; of TCP: all flags.
    let fields = (
        prop_oneof![4 => Just(0), 1 => Just(0x20), 1 => Just(0x40)],
        prop_oneof![0..64_u8, (0..6_u8).prop_map(|bit| 1 << bit)],
    );
    let all = (
        0..PATHS.len() + 2,
        forms,
        packets,
        fields,
        any::<[u16; 5]>(),
        changes,
        cut,
    );
    all.prop_map(
        |(host, form, packets, (fragment, flags), tags, changes, cut)| {
            let (family, hosts, kind, length) = packets;
            let mut inside = packet(INNER[family], hosts, kind, &vec![0; length]);
            if kind % 5 == 0 {
                inside[[20, 40][family] + 13] = flags;
            }
            if family == 0 {
                inside[6] |= fragment;
            }
            let protocol = if family == 0 { IPV4 } else { IPV6 };
            let [high, low] = protocol.to_be_bytes();
            let mut bytes = match form {
                Form::Packet => frame(protocol, &inside),
                Form::HostVlan => {
                    frame(0x8100, &[&[0, kind, high, low], inside.as_slice()].concat())
                }
                Form::Arp => frame(0x0806, &[kind; 28]),
                Form::Shim => {
                    let shim = [7, kind, high, low, 0, 0, 0, 1];
                    frame(ETH_P_SHIM as u16, &[shim.as_slice(), &inside].concat())
                }
                Form::Probe => {
                    let [return_tag, asked @ ..] = tags;
                    let request = TaggedRequest {
                        tag: 1,
                        // Some that have an offer, and some that report.
                        return_tag: return_tag % 4_200 / (1 + u16::from(kind % 2) * 200),
                        nonce: length as u64,
                        asked: asked.map(|tag| tag % if kind % 2 == 0 { 16 } else { 5_000 }),
                    };
                    untagged(&request.frame())
                }
            };
            let to = match host.checked_sub(PATHS.len()) {
                None => mac(host),
                Some(0) => mac(99),
                _ => [0xff; 6],
            };
            bytes[..6].copy_from_slice(&to);
            mutilate(&mut bytes, changes, cut);
            bytes
        },
    )
}

/// Changes bytes of a frame, and cuts some off its end.
fn mutilate(frame: &mut Vec<u8>, changes: Vec<(usize, u8)>, cut: usize) {
    for (at, to) in changes {
        let at = at % frame.len();
        frame[at] = to;
    }
    // The kernel's test run wants a whole IP header of whatever the frame says it has.
    let header = if protocol_of(frame) == IPV6 { 40 } else { 20 };
    frame.truncate(frame.len().saturating_sub(cut).max(ETHERNET + header));
}

fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn protocol_of(frame: &[u8]) -> u16 {
    number(frame, 12)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not TCP, or a fragment.
    Other,
    PureAck,
    Sequenced,
}

/// Kind of a packet, as docs/fabric-core.md has it.
fn kind_of(frame: &[u8]) -> Kind {
    let packet = &frame[ETHERNET..];
    let (header, length) = match protocol_of(frame) {
        IPV4 if packet[9] == 6 && number(packet, 6) & 0x3fff == 0 => {
            let header = 4 * usize::from(packet[0] & 15);
            let Some(length) = usize::from(number(packet, 2)).checked_sub(header) else {
                return Kind::Other;
            };
            (header, length)
        }
        IPV6 if packet[6] == 6 => (40, usize::from(number(packet, 4))),
        _ => return Kind::Other,
    };
    let Some(tcp) = packet.get(header..header + 14) else {
        return Kind::Other;
    };
    let has_number = tcp[13] & 7 != 0 || length > 4 * usize::from(tcp[12] >> 4);
    if has_number {
        Kind::Sequenced
    } else {
        Kind::PureAck
    }
}
