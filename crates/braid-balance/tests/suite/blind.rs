//! Segments of a sender that sees nothing but knows both ends of a connection: they change nothing that the datapath
//! believes, and pass, since the connection's own end refuses them.

use std::net::IpAddr;

use braid_balance::FlowState;
use braid_packet::build;

use crate::support::probe::{Probe, Verdict};
use crate::support::talk::{ACK, FIN, INNER, RST, SERVER, SYN};
use crate::support::world::uplink_of;

const PORT: u16 = 4000;
const FORGED: u32 = 1000;
/// First numbers of the two ends.
const INSIDE: u32 = 0xffff_ff00;
const OUTSIDE: u32 = 0x7fff_fff0;

/// Numbers that hit no window: spread over all of them, but for those near the connection's own.
fn guesses() -> impl Iterator<Item = [u32; 2]> {
    (0..FORGED).map(|nth| {
        let step = nth.wrapping_mul(4_000_000).wrapping_add(80_000_000);
        [OUTSIDE.wrapping_add(step), INSIDE.wrapping_add(step)]
    })
}

struct Connection {
    probe: Probe,
    uplink: usize,
    outer: (IpAddr, u16),
}

impl Connection {
    /// The host's SYN has left.
    fn begun() -> Self {
        let probe = Probe::new();
        let syn = build::segment((INNER, PORT), SERVER, [INSIDE, 0], SYN, b"");
        probe.out(&syn).is(Verdict::Sent, "out_new");
        let outer = probe.flow((INNER, PORT)).expect("open").outer;
        Self {
            probe,
            uplink: uplink_of(outer),
            outer: (outer.ip(), outer.port()),
        }
    }

    /// Both ends have sent 100 bytes.
    fn open() -> Self {
        let made = Self::begun();
        made.arrives([OUTSIDE, INSIDE.wrapping_add(1)], SYN | ACK, b"");
        let inside = |numbers, data: &[u8]| {
            let segment = build::segment((INNER, PORT), SERVER, numbers, ACK, data);
            made.probe.out(&segment).is(Verdict::Sent, "out_flow");
        };
        inside([INSIDE.wrapping_add(1), OUTSIDE + 1], &[0; 100]);
        made.arrives([OUTSIDE + 1, INSIDE.wrapping_add(101)], ACK, &[0; 100]);
        inside([INSIDE.wrapping_add(101), OUTSIDE + 101], b"");
        made
    }

    /// A segment from the server's address arrives; returns true if it counts as out of the window.
    fn arrives(&self, numbers: [u32; 2], flags: u8, data: &[u8]) -> bool {
        let segment = build::segment(SERVER, self.outer, numbers, flags, data);
        let got = self.probe.back(self.uplink, &segment);
        let events = got.events.clone();
        got.is(Verdict::Passed, "in_stack");
        events.contains(&"in_out_of_window")
    }

    fn state(&self) -> FlowState {
        self.probe.flow((INNER, PORT)).expect("open").state
    }

    /// Data packets, and those that look lost, once the flow has handed them over.
    fn losses(&self) -> (u64, u64) {
        let counters = self.probe.datapath.borrow().counters().expect("counters");
        let counters = &counters.uplinks[self.uplink].1;
        (counters.data_packets, counters.lost)
    }
}

#[test]
fn forged_data_looks_like_no_loss() {
    let connection = Connection::open();
    for numbers in guesses() {
        assert!(connection.arrives(numbers, ACK, b"data"), "{numbers:x?}");
    }
    // The connection's own segments still count: a batch of them, of which one is lost.
    for nth in (0..100).filter(|nth| *nth != 50) {
        let numbers = [OUTSIDE + 101 + nth * 10, INSIDE.wrapping_add(101)];
        assert!(!connection.arrives(numbers, ACK, &[0; 10]));
    }
    let (packets, lost) = connection.losses();
    assert!((64..=101).contains(&packets), "{packets}");
    assert_eq!(lost, 1);
}

#[test]
fn forged_ends_leave_a_connection_open() {
    let connection = Connection::open();
    for numbers in guesses() {
        for flags in [RST, RST | ACK, FIN | ACK] {
            assert!(connection.arrives(numbers, flags, b""), "{numbers:x?}");
        }
    }
    assert_eq!(connection.state(), FlowState::Established);
    // The server's own reset, which answers a segment of the inside.
    assert!(!connection.arrives([OUTSIDE + 101, 0], RST, b""));
    assert_eq!(connection.state(), FlowState::Reset);
}

#[test]
fn forged_answers_to_a_syn_are_no_round_trip() {
    let connection = Connection::begun();
    let samples = || {
        let counters = connection.probe.datapath.borrow().counters();
        let counters = counters.expect("counters").uplinks;
        counters[connection.uplink].1.rtt_samples
    };
    for numbers in guesses() {
        for flags in [SYN | ACK, RST | ACK, RST] {
            assert!(connection.arrives(numbers, flags, b""), "{numbers:x?}");
        }
    }
    assert_eq!((connection.state(), samples()), (FlowState::New, 0));
    assert!(!connection.arrives([OUTSIDE, INSIDE.wrapping_add(1)], SYN | ACK, b""));
    assert_eq!((connection.state(), samples()), (FlowState::Answered, 1));
}

#[test]
fn a_connection_that_begins_anew_has_new_numbers() {
    let connection = Connection::begun();
    let lower = INSIDE - 0x1000_0000;
    let syn = build::segment((INNER, PORT), SERVER, [lower, 0], SYN, b"");
    connection.probe.out(&syn);
    assert!(!connection.arrives([OUTSIDE, lower + 1], SYN | ACK, b""));
    assert_eq!(connection.state(), FlowState::Answered);
}
