//! Path MTU discovery of a link by probes (DPLPMTUD, RFC 8899).
//!
//! It relies on no ICMP: an answered padded PING proves its size. The search tries the sizes that
//! real networks have, from the largest down, so that the usual one is known after one round trip.
//! Until then the link uses [`BASE_PAYLOAD`], which every path carries.

use std::time::Duration;

use braid_core::Time;

/// UDP payload that every path carries: what is left of 1,280 bytes (RFC 8200 §5) over IPv6.
pub const BASE_PAYLOAD: u16 = 1232;

/// UDP payloads to probe, largest first: the remainder over IPv4 and IPv6 of 1500 (Ethernet), 1492
/// (PPPoE), 1460 (tunnels of mobile networks), 1420 (WireGuard) and 1380.
const PROBE_SIZES: [u16; 9] = [1472, 1464, 1452, 1444, 1432, 1412, 1392, 1372, 1332];

/// Time after which an unanswered probe is repeated. RFC 8899 §5.1.1 has 15 s; the round trips of a
/// tunnel's links are known to be much shorter, and a time-out is not taken as congestion here.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Probes of one size before the search gives it up (RFC 8899 §5.1.2: MAX_PROBES).
const MAX_PROBES: u32 = 3;

/// Time after which a larger size is tried again (RFC 8899 §5.1.1: PMTU_RAISE_TIMER).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The size `PROBE_SIZES[index]` is being probed.
    Searching {
        index: usize,
        probes: u32,
        due: Time,
    },
    /// The search is complete.
    Known { raise: Option<Time> },
    /// Nothing passes, or much is lost: probes would show nothing.
    Paused,
}

/// The search of one link.
#[derive(Clone, Debug)]
pub struct Mtu {
    payload: u16,
    /// No larger size is probed.
    max_payload: u16,
    state: State,
}

/// A probe to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// UDP payload, exactly.
    pub size: u16,
    /// Token of the PING, which [`Mtu::handle_pong`] recognises.
    pub token: u32,
}

impl Mtu {
    /// Begins a search; `max_payload` is the largest UDP payload that the device sends.
    #[must_use]
    pub fn new(now: Time, max_payload: u16) -> Self {
        Mtu {
            payload: BASE_PAYLOAD,
            max_payload,
            state: search(now, 0, max_payload),
        }
    }

    /// UDP payload that the link carries.
    #[must_use]
    pub fn payload(&self) -> u16 {
        self.payload
    }

    /// The probe to send now, if one is due.
    pub fn poll_probe(&mut self, now: Time) -> Option<Probe> {
        if matches!(self.state, State::Known { raise: Some(at) } if now >= at) {
            self.state = search(now, 0, self.max_payload);
        }
        let State::Searching { index, probes, due } = self.state else {
            return None;
        };
        if now < due {
            return None;
        }
        let (index, probes) = if probes == MAX_PROBES {
            (index + 1, 0)
        } else {
            (index, probes)
        };
        match PROBE_SIZES.get(index) {
            Some(size) if *size > self.payload => {
                let due = now + PROBE_TIMEOUT;
                let probes = probes + 1;
                self.state = State::Searching { index, probes, due };
                Some(Probe {
                    size: *size,
                    token: u32::from(*size),
                })
            }
            _ => {
                self.settle(now);
                None
            }
        }
    }

    /// Handles a PONG with this token. Returns true if the link now carries larger datagrams.
    pub fn handle_pong(&mut self, now: Time, token: u32) -> bool {
        let size = PROBE_SIZES.iter().find(|size| u32::from(**size) == token);
        let Some(size) = size.filter(|size| **size > self.payload) else {
            return false;
        };
        self.payload = *size;
        self.settle(now);
        true
    }

    fn settle(&mut self, now: Time) {
        let largest = PROBE_SIZES.iter().find(|size| **size <= self.max_payload);
        let raise = largest.filter(|largest| **largest > self.payload);
        self.state = State::Known {
            raise: raise.map(|_| now + RAISE_INTERVAL),
        };
    }

    /// Large packets may be lost on this link: [`BASE_PAYLOAD`] holds until [`Mtu::handle_return`] (RFC 8899 §4.3).
    pub fn handle_black_hole(&mut self) {
        (self.payload, self.state) = (BASE_PAYLOAD, State::Paused);
    }

    /// The link carries packets again: the search begins anew after a black hole.
    pub fn handle_return(&mut self, now: Time) {
        if self.state == State::Paused {
            self.state = search(now, 0, self.max_payload);
        }
    }

    /// The link leads over another path, of which nothing is known.
    pub fn handle_new_path(&mut self, now: Time) {
        *self = Mtu::new(now, self.max_payload);
    }

    /// The time at which [`Mtu::poll_probe`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            State::Searching { due, .. } => Some(due),
            State::Known { raise } => raise,
            State::Paused => None,
        }
    }
}

fn search(now: Time, from: usize, max_payload: u16) -> State {
    let skipped = PROBE_SIZES[from..]
        .iter()
        .take_while(|size| **size > max_payload);
    State::Searching {
        index: from + skipped.count(),
        probes: 0,
        due: now,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Probes at each time-out, answered within 20 ms if the path carries them.
    fn search_on(path: u16, max_payload: u16) -> (Mtu, Vec<u16>) {
        let mut mtu = Mtu::new(Time::ZERO, max_payload);
        let mut tried = Vec::new();
        while matches!(mtu.state, State::Searching { .. }) {
            let now = mtu.poll_timeout().expect("it searches");
            let Some(probe) = mtu.poll_probe(now) else {
                continue;
            };
            tried.push(probe.size);
            if probe.size <= path {
                let answered = now + Duration::from_millis(20);
                assert!(mtu.handle_pong(answered, probe.token));
                assert!(!mtu.handle_pong(answered, probe.token), "once");
            }
        }
        (mtu, tried)
    }

    #[test]
    fn an_ethernet_path_is_known_after_one_probe() {
        let (mtu, tried) = search_on(1472, 1472);
        assert_eq!((mtu.payload(), tried), (1472, vec![1472]));
        assert_eq!(mtu.poll_timeout(), None, "there is nothing larger");
    }

    #[test]
    fn a_smaller_path_is_found_and_asked_again_later() {
        let (mut mtu, tried) = search_on(1452, 1472);
        assert_eq!(mtu.payload(), 1452);
        assert_eq!(tried, [1472, 1472, 1472, 1464, 1464, 1464, 1452]);
        let raise = mtu.poll_timeout().expect("it may grow");
        assert!(
            mtu.poll_probe(raise.before(Duration::from_nanos(1)))
                .is_none()
        );
        assert_eq!(mtu.poll_probe(raise).map(|probe| probe.size), Some(1472));
        assert_eq!(mtu.payload(), 1452, "what is proven is used meanwhile");
        mtu.handle_return(raise);
        assert_eq!(mtu.payload(), 1452, "there was no black hole");
        mtu.handle_black_hole();
        assert_eq!(mtu.payload(), BASE_PAYLOAD);
        assert_eq!(mtu.poll_timeout(), None, "probes are lost as well");
        assert_eq!(mtu.poll_probe(raise + RAISE_INTERVAL), None);
        let back = raise + 2 * RAISE_INTERVAL;
        mtu.handle_return(back);
        assert_eq!(mtu.poll_probe(back).map(|probe| probe.size), Some(1472));
        assert!(mtu.handle_pong(back, 1472));
        mtu.handle_new_path(back);
        assert_eq!(mtu.payload(), BASE_PAYLOAD);
        assert_eq!(mtu.poll_timeout(), Some(back));
    }

    proptest! {
        #[test]
        fn the_search_finds_the_largest_size_that_the_path_carries(path in 1232u16..2000, max_payload in 1232u16..2000) {
            let (mtu, tried) = search_on(path, max_payload);
            let best = PROBE_SIZES.into_iter().find(|size| *size <= path.min(max_payload));
            prop_assert_eq!(mtu.payload(), best.unwrap_or(BASE_PAYLOAD));
            prop_assert!(tried.iter().all(|size| *size <= max_payload));
            prop_assert!(tried.len() <= PROBE_SIZES.len() * MAX_PROBES as usize);
        }
    }
}
