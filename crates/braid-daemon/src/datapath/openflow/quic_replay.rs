//! The last short packets of QUIC flows, to be sent again when an uplink dies.
//!
//! A client that only downloads sends nothing once nothing arrives, so its flow would stay on a dead uplink until its own
//! time-out. Its last acknowledgements, sent again by another uplink, move it (RFC 9000 §9.3). The very last packets are
//! not enough: those are probes without acknowledgements, and what was acknowledged in vain would fill the server's
//! congestion window. A thread copies them on braid0, before the bridge translates them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use braid_device::{Direction, PacketTap, wait, watch};
use braid_packet::{Packet, Transport};

use super::port_filter::PortFilter;
use super::recent_items::RecentItems;
use crate::datapath::QUIC_PORT;

/// Longest packet that is kept: acknowledgements and requests, no data of uploads.
const MAX_PACKET: usize = 512;
/// Packets kept of a flow; they reach back to before the uplink fell silent.
const MAX_PACKETS: usize = 16;
/// Flows with packets; the one that has been silent longest gives way.
const MAX_FLOWS: usize = 1024;
/// Age at which a packet is no longer sent again.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Time after which the thread sees that nobody needs it.
const END_POLL: Duration = Duration::from_secs(1);

/// The packets that are kept.
pub(super) struct QuicReplay {
    tap: PacketTap,
    kept: Arc<Mutex<Kept>>,
}

impl QuicReplay {
    /// Starts the thread; there are no packets before [`QuicReplay::follow`].
    pub fn start() -> io::Result<Self> {
        let tap = PacketTap::open()?;
        let kept = Arc::default();
        let (copies, weak) = (tap.try_clone()?, Arc::downgrade(&kept));
        thread::Builder::new()
            .name("quic-replay".to_owned())
            .spawn(move || run(&copies, &weak))?;
        Ok(Self { tap, kept })
    }

    /// Keeps the packets of this device.
    pub fn follow(&self, ifindex: u32) -> io::Result<()> {
        let filter = PortFilter {
            port: QUIC_PORT,
            from_port: false,
            max_length: MAX_PACKET as u32,
        };
        self.tap.follow(ifindex, &filter.program())
    }

    /// Takes out the packets of the flows with these inside and remote ends, oldest first.
    pub fn take(&self, which: impl Fn(SocketAddr, SocketAddr) -> bool) -> Vec<Vec<u8>> {
        lock(&self.kept).take(Instant::now(), which)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(tap: &PacketTap, kept: &Weak<Mutex<Kept>>) {
    let mut buffer = [0; MAX_PACKET];
    loop {
        let mut fds = [watch(tap.as_fd().as_raw_fd())];
        if let Err(error) = wait(&mut fds, Some(END_POLL)) {
            tracing::warn!(%error, "QUIC packets are no longer kept");
            return;
        }
        let Some(kept) = kept.upgrade() else { return };
        let now = Instant::now();
        while let Some((direction, length)) = tap.next(&mut buffer) {
            if direction == Direction::Out {
                lock(&kept).note(now, &buffer[..length]);
            }
        }
    }
}

/// Inside and remote end.
type Ends = (SocketAddr, SocketAddr);

#[derive(Default)]
struct Kept(RecentItems<Ends, Vec<u8>, MAX_FLOWS, MAX_PACKETS>);

impl Kept {
    fn note(&mut self, now: Instant, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let Transport::Udp { source, dest } = packet.transport else {
            return;
        };
        let ends = (
            SocketAddr::new(packet.ip.source, source),
            SocketAddr::new(packet.ip.dest, dest),
        );
        self.0.note(now, ends, bytes.to_vec());
    }

    fn take(
        &mut self,
        now: Instant,
        which: impl Fn(SocketAddr, SocketAddr) -> bool,
    ) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        self.0.by_key.retain(|(inner, remote), packets| {
            let chosen = which(*inner, *remote);
            if chosen {
                let fresh = packets
                    .drain(..)
                    .filter(|(at, _)| now.saturating_duration_since(*at) < MAX_AGE);
                taken.extend(fresh.map(|(_, bytes)| bytes));
            }
            !chosen
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_packet::build;

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn datagram(inner: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let remote = end("198.51.100.1:443");
        let ends = [inner, remote].map(|end| (end.ip(), end.port()));
        build::udp(ends[0], ends[1], payload)
    }

    #[test]
    fn the_last_packets_of_a_flow_are_kept_for_a_while() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let (one, other) = (end("192.0.0.8:5000"), end("192.0.0.8:5001"));
        kept.note(now, &datagram(other, b"other"));
        for number in 0..=MAX_PACKETS {
            kept.note(now, &datagram(one, &[number as u8]));
        }
        let taken = kept.take(now, |inner, _| inner == one);
        assert_eq!(taken.len(), MAX_PACKETS);
        assert_eq!(taken[0], datagram(one, &[1]));
        assert!(kept.take(now, |inner, _| inner == one).is_empty());
        assert!(kept.take(now + MAX_AGE, |_, _| true).is_empty());
    }

    #[test]
    fn the_most_silent_flow_gives_way() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        for number in 0..=MAX_FLOWS {
            let inner = SocketAddr::new(end("192.0.0.8:0").ip(), number as u16);
            kept.note(
                now + Duration::from_millis(number as u64),
                &datagram(inner, b"x"),
            );
        }
        assert_eq!(kept.0.by_key.len(), MAX_FLOWS);
        assert!(kept.take(now, |inner, _| inner.port() == 0).is_empty());
    }
}
