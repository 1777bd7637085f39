//! Frames that come by paths, and probes among them.

use super::*;
use crate::shared::{NO_DATA_AGE, PROBE_MAGIC, PROBE_MISSING, PROBE_REPLY, PROBE_REQUEST};

/// Offset of the probe in a frame without its tag, and of its reports.
const PROBE: usize = ETHERNET + SHIM_BYTES as usize;
const REPORTS: usize = PROBE + 16;
const REPORT: usize = 8;
/// End of the reports, where an offer begins, and its end, where packet counts begin.
const OFFER: usize = REPORTS + MAX_REPORTS * REPORT;
const COUNTS: usize = OFFER + OFFER_BYTES as usize;

/// Tags that come: to forward, to put in order, and to drop.
const FORWARD: u16 = 10;
const RESEQUENCE: u16 = 11;
const DROP: u16 = 12;

/// The program of frames that come by paths, and what it is to remember of each path.
struct Joiner {
    trial: Trial,
    has_shims: bool,
    /// By tag: second half of the nonce of the last probe.
    nonces: RefCell<BTreeMap<u16, [u8; 4]>>,
    /// By tag: packets that came, of paths by which some did; and those before the last probe.
    packets: RefCell<BTreeMap<u16, u32>>,
    counted: RefCell<BTreeMap<u16, u32>>,
}

const OFFERED: u16 = 20;

fn offer() -> Offer {
    Offer {
        wait: Duration::from_millis(50),
        token: 0x0123_4567_89ab_cdef,
    }
}

impl Joiner {
    fn new(has_shims: bool) -> Joiner {
        let trial = Trial::new(Layer::Two);
        let actions = [
            (FORWARD, TagAction::Forward),
            (RESEQUENCE, TagAction::Resequence),
            (DROP, TagAction::Drop),
        ];
        let repairs = Repairs {
            offers: [(OFFERED, offer())].into(),
            ..Repairs::default()
        };
        {
            let mut datapath = trial.0.borrow_mut();
            datapath.load("braid_tagged").expect("a program");
            datapath.set_tag_actions(actions).expect("a map");
            datapath.set_repairs(&repairs).expect("maps");
            let settings = Settings {
                shim: has_shims.into(),
                offers_end_ns: u64::MAX,
                ..datapath.settings
            };
            datapath.set(settings).expect("settings");
        }
        Joiner {
            trial,
            has_shims,
            nonces: RefCell::default(),
            packets: RefCell::default(),
            counted: RefCell::default(),
        }
    }

    /// Returns the exit of a frame without a tag, or of one with it, and the frame that leaves if it is another one.
    fn twin(
        &self,
        tag: Option<u16>,
        frame: &[u8],
        out: &Outcome,
    ) -> (&'static str, Option<Vec<u8>>) {
        let protocol = protocol_of(frame);
        let is_shim = protocol == ETH_P_SHIM as u16;
        if protocol == ETH_P_PROBE as u16 {
            return ("probe", None);
        }
        let Some(tag) = tag.map(|tag| tag & 0x0fff) else {
            return ("untagged", None);
        };
        if ![FORWARD, RESEQUENCE].contains(&tag) {
            return ("unknown_tag", None);
        }
        if is_shim && number(frame, 16) == ETH_P_SHIM as u16 {
            return self.probed(tag, frame, out);
        }
        *self.packets.borrow_mut().entry(tag).or_default() += 1;
        match is_shim {
            true if !self.has_shims => ("unexpected_shim", None),
            true => ("to_lane_resequencer", None),
            false if tag == RESEQUENCE && kind_of(frame) == Kind::Sequenced => {
                ("to_resequencer", None)
            }
            // The kernel puts a further tag in the place of the one that it removes, beside the packet.
            false if [0x8100, 0x88a8].contains(&protocol) => {
                ("forwarded", Some([&frame[..12], &frame[16..]].concat()))
            }
            false => ("forwarded", None),
        }
    }

    fn probed(&self, tag: u16, frame: &[u8], out: &Outcome) -> (&'static str, Option<Vec<u8>>) {
        if frame.len() < OFFER || frame[PROBE..PROBE + 4] != PROBE_MAGIC.to_be_bytes() {
            return ("bad_probe", None);
        }
        let kind = u32::from(number(frame, PROBE + 4));
        if [PROBE_REPLY, PROBE_MISSING].contains(&kind) {
            return ("probe", None);
        }
        let (back, nonce) = (number(frame, PROBE + 6), &frame[PROBE + 12..PROBE + 16]);
        if kind != PROBE_REQUEST || nonce == [0; 4] || !(1..4_095).contains(&back) {
            return ("bad_probe", None);
        }
        let mut nonces = self.nonces.borrow_mut();
        nonces.insert(tag, nonce.try_into().expect("four bytes"));
        let packets = self.packets.borrow();
        let mut counted = self.counted.borrow_mut();
        counted.insert(tag, packets.get(&tag).copied().unwrap_or(0));
        let mut counts = Vec::new();
        let mut reply = frame.to_vec();
        reply[PROBE + 5] = PROBE_REPLY as u8;
        for (at, report) in reply[REPORTS..OFFER].chunks_mut(REPORT).enumerate() {
            let tag = number(report, 0) & 0x0fff;
            report[2..4].copy_from_slice(&(NO_DATA_AGE as u16).to_be_bytes());
            if packets.contains_key(&tag) {
                // Any age but that of none.
                let age = number(&out.frame, REPORTS + at * REPORT + 2);
                report[2..4].copy_from_slice(&age.min(NO_DATA_AGE as u16 - 1).to_be_bytes());
            }
            report[4..].copy_from_slice(&nonces.get(&tag).copied().unwrap_or_default());
            // One more, since 0 says that none is told.
            let count = counted.get(&tag).map_or(0, |count| count + 1);
            counts.extend(count.to_be_bytes());
        }
        if let Some(place) = reply.get_mut(COUNTS..COUNTS + counts.len()) {
            place.copy_from_slice(&counts);
        }
        if let Some(place) = reply.get_mut(OFFER..OFFER + OFFER_BYTES as usize) {
            let none = [0; OFFER_BYTES as usize];
            place.copy_from_slice(&if back == OFFERED {
                offer().to_bytes()
            } else {
                none
            });
        }
        ("probe", Some(reply))
    }
}

#[test]
fn frames_of_paths_arrive_as_the_twin_says() {
    // With all bits of a tag, of which twelve name the path.
    let known = prop_oneof![Just(FORWARD), Just(RESEQUENCE), Just(DROP)];
    let known = (known, 0..16_u16).prop_map(|(tag, bits)| tag | bits << 12);
    let tag = prop_oneof![4 => known, 1 => any::<u16>()];
    let test = |joiners: &[Joiner; 2], seen: &Seen, (tag, frame): (u16, Vec<u8>)| {
        for joiner in joiners {
            let trial = &joiner.trial;
            for (tag, out) in [
                (None, trial.run("braid_join", &frame)),
                (Some(tag), trial.run_by("braid_tagged", tag.into(), &frame)),
            ] {
                let (exit, changed) = joiner.twin(tag, &frame, &out);
                seen.borrow_mut().insert(out.reason);
                prop_assert_eq!(out.reason, exit);
                prop_assert_eq!(&out.frame, changed.as_ref().unwrap_or(&frame));
                prop_assert!(out.events.is_empty(), "{:?}", out.events);
            }
            let ordered = trial.run("braid_ordered", &frame);
            prop_assert_eq!((ordered.reason, &ordered.frame), ("resequenced", &frame));
        }
        Ok(())
    };
    let exits = [
        "untagged",
        "unknown_tag",
        "probe",
        "bad_probe",
        "unexpected_shim",
        "to_lane_resequencer",
        "to_resequencer",
        "forwarded",
    ];
    let fresh = || [true, false].map(Joiner::new);
    try_frames(NO_ROUTES, &(tag, frames(forms(6))), &exits, fresh, test);
}
