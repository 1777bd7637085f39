//! Frames that hosts send.

use braid_multipath::resequence::SegmentKind;

use super::*;
use crate::frame::{StreamKey, strip_tag};
use crate::table::EgressPath;

/// Bytes of the longest frame that the outside device carries.
const MAX_FRAME: usize = 1_514;
/// Edges that ask for shims, the one whose packets are dropped for fairness, and the one whose packets are copied.
const SHIMMED: [usize; 2] = [0, 2];
const FAIR: usize = 3;
const COPIED: usize = 0;

/// The edge that the frame goes to takes IP packets without numbers of their own with a shim.
fn wants_shim(frame: &[u8]) -> bool {
    let is_asked = SHIMMED.iter().any(|at| frame[..6] == mac(*at));
    is_asked && [IPV4, IPV6].contains(&protocol_of(frame))
}

fn is_too_long(frame: &[u8]) -> bool {
    frame.len() + SHIM_BYTES as usize > MAX_FRAME && kind_of(frame) == Kind::Other
}

/// The program of hosts' frames, and the numbers that the next ones get, by target and lane.
struct Splitter {
    trial: Trial,
    next: RefCell<BTreeMap<(usize, u8), u32>>,
    /// Targets to which a packet went that has no room for a number: its lane gets none for a moment, and its lane is not
    /// known.
    too_long: RefCell<BTreeSet<usize>>,
}

impl Splitter {
    fn new() -> Splitter {
        let trial = Trial::new(Layer::Two);
        let path = |tag| EgressPath {
            tag,
            rate_bit_s: 1_000_000 * u64::from(tag),
            delay_ms: f64::from(tag),
            latency_ms: None,
        };
        let egress = |(at, tags): (usize, &[u16; 2])| Egress {
            target: format!("edge-{at}"),
            hosts: vec![Mac(mac(at))],
            slots: tags.iter().copied().cycle().take(SLOTS as usize).collect(),
            shim: SHIMMED.contains(&at),
            max_rate_bit_s: if at == FAIR { 80_000 } else { 0 },
            paths: match at {
                2 => tags.map(path).to_vec(),
                _ => Vec::new(),
            },
        };
        let egress: Vec<Egress> = PATHS.iter().enumerate().map(egress).collect();
        let copied = CopiedPath {
            by: 12,
            token: 0,
            is_clear: true,
        };
        let repairs = Repairs {
            copied: PATHS[COPIED].iter().map(|tag| (*tag, copied)).collect(),
            ..Repairs::default()
        };
        {
            let mut datapath = trial.0.borrow_mut();
            datapath.set_egress(&egress).expect("tables");
            datapath.set_repairs(&repairs).expect("maps");
            let settings = Settings {
                max_frame_bytes: MAX_FRAME as u32,
                ..datapath.settings
            };
            datapath.set(settings).expect("settings");
        }
        Splitter {
            trial,
            next: RefCell::default(),
            too_long: RefCell::default(),
        }
    }

    /// Returns what all paths have sent.
    fn sent(&self) -> TrafficCounters {
        let mut datapath = self.trial.0.borrow_mut();
        let mut sum = TrafficCounters::default();
        for tag in PATHS.into_iter().flatten() {
            let sent = datapath.traffic(Counted::Sent, tag).expect("traffic");
            sum.packets += sent.packets;
            sum.bytes += sent.bytes;
        }
        sum
    }

    /// Returns the exits that a frame may take, and the frame that leaves if it is another one.
    fn twin(&self, frame: &[u8], out: &Outcome) -> (Vec<&'static str>, Option<Vec<u8>>) {
        let protocol = protocol_of(frame);
        let target = (0..PATHS.len()).find(|host| frame[..6] == mac(*host));
        if protocol == ETH_P_SHIM as u16 {
            return (vec!["host_shim"], None);
        }
        if frame[0] & 1 == 1 {
            return (vec!["multicast"], None);
        }
        let Some(target) = target.filter(|target| PATHS[*target] != [0, 0]) else {
            return (vec!["single_path"], None);
        };
        let kind = kind_of(frame);
        if kind != Kind::Other {
            let may_yield =
                target == FAIR && kind == Kind::Sequenced && 2 * frame.len() >= MAX_FRAME;
            let exits = ["split", "fair_drop"];
            return (exits[..1 + usize::from(may_yield)].to_vec(), None);
        }
        if !wants_shim(frame) {
            return (vec!["sticky"], None);
        }
        if is_too_long(frame) {
            self.too_long.borrow_mut().insert(target);
            return (vec!["sticky"], None);
        }
        if out.reason == "sticky" && self.too_long.borrow().contains(&target) {
            return (vec!["sticky"], None);
        }
        // The lane is a hash of the kernel's; each has its own numbers.
        let lane = out.frame.get(15).copied().unwrap_or_default();
        let mut next = self.next.borrow_mut();
        let next = next.entry((target, lane)).or_default();
        let number = next.to_be_bytes();
        *next += 1;
        let shim = [&[7, lane], &frame[12..14], &number].concat();
        let sent = [
            &frame[..12],
            &(ETH_P_SHIM as u16).to_be_bytes(),
            &shim,
            &frame[14..],
        ];
        (vec!["shim_added"], Some(sent.concat()))
    }
}

#[test]
fn frames_of_hosts_leave_as_the_twin_says() {
    let test = |splitter: &Splitter, seen: &Seen, frame: Vec<u8>| {
        let before = splitter.sent();
        let out = splitter.trial.run("braid_split", &frame);
        let after = splitter.sent();
        let (exits, changed) = splitter.twin(&frame, &out);
        seen.borrow_mut().insert(out.reason);
        seen.borrow_mut().extend(&out.events);
        prop_assert!(
            exits.contains(&out.reason),
            "{} is none of {exits:?}",
            out.reason
        );
        prop_assert_eq!(&out.frame, changed.as_ref().unwrap_or(&frame));
        // A path counts the frames that it sends, without the tag in their lengths.
        let by_path = ["split", "sticky", "shim_added"].contains(&out.reason);
        let counted = TrafficCounters {
            packets: before.packets + u64::from(by_path),
            bytes: before.bytes + if by_path { out.frame.len() as u64 } else { 0 },
        };
        prop_assert_eq!(after, counted);
        let kind = kind_of(&frame);
        let is_numbered = out.reason == "shim_added" || by_path && kind == Kind::Sequenced;
        let is_copied = is_numbered && frame[..6] == mac(COPIED);
        let is_too_long = wants_shim(&frame) && is_too_long(&frame);
        let events = [("copied", is_copied), ("no_shim_room", is_too_long)];
        let events = events.into_iter().filter(|(_, is_counted)| *is_counted);
        let events: Vec<&str> = events.map(|(event, _)| event).collect();
        prop_assert_eq!(&out.events, &events, "{}", out.reason);
        // The far edge's resequencer reads the same numbers, and hands on what the host has sent.
        if by_path {
            let tag = [0x81, 0x00, 0, 10];
            let mut tagged = [&out.frame[..12], &tag, &out.frame[12..]].concat();
            let read = strip_tag(&mut tagged).expect("a tag");
            prop_assert_eq!(&tagged[read.start..], &frame);
            let is_right = match read.segment {
                Some((StreamKey::Lane { .. }, ..)) => out.reason == "shim_added",
                Some((StreamKey::Flow(_), kind, _, length)) => match kind_of(&frame) {
                    Kind::Sequenced => length > 0 || kind == SegmentKind::Reset,
                    Kind::PureAck => length == 0,
                    // Behind IPv6 extension headers.
                    Kind::Other => out.reason == "sticky",
                },
                None => out.reason != "shim_added",
            };
            prop_assert!(is_right, "{:?} of {}", read.segment, out.reason);
        }
        Ok(())
    };
    let exits = [
        "host_shim",
        "multicast",
        "single_path",
        "split",
        "sticky",
        "shim_added",
        "copied",
        "no_shim_room",
    ];
    try_frames(NO_ROUTES, &frames(forms(1)), &exits, Splitter::new, test);
}
