//! Round trips inside TCP flows, and bytes, at the uplinks' devices: what capacities are measured by.
//!
//! The switch counts bytes once a second and reads no timestamps. A thread for each uplink reads copies of the TCP segments
//! of its flows, and notes what the programs do (`bpf/flow/timestamps.h`): the time from a segment's timestamp to its echo,
//! as far as it exceeds the flow's shortest, and the segments that the inside has repeated. The kernel stamps the copies, so
//! it matters little when the thread runs. Bytes are the devices' own counters, which miss nothing.
//!
//! Reading costs about a microsecond a segment, and a thread that woke for each would cost several more: it rests for a
//! [`PAUSE`] after those that were there. Beyond [`MAX_READ`] in a [`WINDOW`] the kernel copies nothing until the next one: on
//! lines that fast a round trip is much shorter than a window, unless the remote is far away. Where so many have told
//! nothing, as those of thousands of short flows do, it copies nothing for a [`REST`].

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid_balance::{Traffic, UplinkCounters};
use braid_device::{Direction, PacketTap, wait, watch};
use braid_packet::{Packet, Transport};

use super::port_filter::SegmentFilter;

/// Time in which at most so many segments are read.
const WINDOW: Duration = Duration::from_millis(200);
const MAX_READ: usize = 4096;
/// Time between two readings. The kernel keeps the packets of a Gbit/s for longer.
const PAUSE: Duration = Duration::from_millis(2);
const REST: Duration = Duration::from_secs(1);
/// Longest packet of a device that merges none.
const MAX_PACKET: usize = 9216;
/// Flows that are remembered; those that have been silent for [`IDLE`] give way to others, which is looked for once in a
/// [`REST`].
const MAX_FLOWS: usize = 1024;
const IDLE: Duration = Duration::from_secs(10);
/// As `MAX_STAMP_RTT_US` and `MIN_STAMP_PACKETS` of the programs.
const MAX_RTT: Duration = Duration::from_secs(2);
const MIN_PACKETS: u32 = 6;
/// Two NOPs, then timestamps (RFC 7323 appendix A): all but odd stacks send them this way.
const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];
const TCP_HEADER: usize = 20;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ETHERNET_HEADER: u64 = 14;
/// Statistics of the devices of this network namespace, one a line: proc_net(5).
pub(super) const DEVICES: &str = "/proc/self/net/dev";

/// Reads the segments of one uplink.
pub(super) struct FlowReader {
    ifindex: u32,
    flows: Arc<Mutex<Flows>>,
    /// The values that were told last.
    counters: UplinkCounters,
}

impl FlowReader {
    /// Starts to read the segments between these outer ports and the internet.
    ///
    /// # Errors
    /// The kernel refuses a socket or a thread, or the device has gone.
    pub fn start(ifindex: u32, ports: RangeInclusive<u16>) -> io::Result<Self> {
        let tap = PacketTap::open()?;
        tap.note_times()?;
        tap.follow(ifindex, &SegmentFilter { ports: &ports }.program())?;
        let flows = Arc::default();
        let weak = Arc::downgrade(&flows);
        thread::Builder::new()
            .name("uplink-flows".to_owned())
            .spawn(move || {
                if let Err(error) = run(&tap, ifindex, &ports, &weak) {
                    tracing::warn!(%error, "round trips of an uplink are no longer read");
                }
            })?;
        Ok(Self {
            ifindex,
            flows,
            counters: UplinkCounters::default(),
        })
    }

    /// Returns the counters so far, as far as capacities need them. `devices` is the contents of [`DEVICES`]; the bytes of a
    /// device that has gone stay as they were.
    pub fn counters(&mut self, devices: &str) -> UplinkCounters {
        let name = nix::net::if_::if_indextoname(self.ifindex).ok();
        let name = name.as_ref().and_then(|name| name.to_str().ok());
        if let Some([rx, tx]) = name.and_then(|name| traffic(devices, name)) {
            (self.counters.rx, self.counters.tx) = (rx, tx);
        }
        let flows = lock(&self.flows);
        UplinkCounters {
            queueing_us_sum: flows.queueing_us_sum,
            queueing_samples: flows.queueing_samples,
            queued_us: flows.queued_us,
            queue_unseen_us: since_epoch().saturating_sub(flows.queue_seen).as_micros() as u64,
            flow_rtt_us_sum: flows.flow_rtt_us_sum,
            jitter_us_sum: flows.jitter_us_sum,
            jitter_samples: flows.jitter_samples,
            repeats: flows.repeats,
            ..self.counters
        }
    }
}

/// Returns the time as the kernel stamps packets.
fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn lock(flows: &Mutex<Flows>) -> MutexGuard<'_, Flows> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads until nobody needs it.
fn run(
    tap: &PacketTap,
    ifindex: u32,
    ports: &RangeInclusive<u16>,
    flows: &Weak<Mutex<Flows>>,
) -> io::Result<()> {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let end = Instant::now() + WINDOW;
        let mut read = 0;
        let mut told = false;
        while let Some(left) = end
            .checked_duration_since(Instant::now())
            .filter(|_| read < MAX_READ)
        {
            let mut fds = [watch(tap.as_fd().as_raw_fd())];
            wait(&mut fds, Some(left))?;
            let Some(flows) = flows.upgrade() else {
                return Ok(());
            };
            let mut flows = lock(&flows);
            let samples = flows.queueing_samples;
            while read < MAX_READ
                && let Some((direction, length, at)) = tap.next_timed(&mut buffer)
            {
                flows.note(at, direction, &buffer[..length]);
                read += 1;
            }
            told |= flows.queueing_samples > samples;
            drop(flows);
            thread::sleep(PAUSE);
        }
        if read >= MAX_READ {
            // Too many: without those that follow an echo may be taken for one that came later than it did.
            tap.ignore()?;
            while tap.next_timed(&mut buffer).is_some() {}
            if let Some(flows) = flows.upgrade() {
                lock(&flows).forget_stamps();
            }
            let rest = if told { Duration::ZERO } else { REST };
            thread::sleep(end.saturating_duration_since(Instant::now()) + rest);
            tap.follow(ifindex, &SegmentFilter { ports }.program())?;
        }
    }
}

/// Position of the figures of sending in a line of [`DEVICES`], behind eight of receiving.
const SENT: usize = 8;

/// Returns what a device has received and sent, in bytes of IP packets.
fn traffic(devices: &str, device: &str) -> Option<[Traffic; 2]> {
    let mut lines = devices.lines().filter_map(|line| line.split_once(':'));
    let (_, figures) = lines.find(|(name, _)| name.trim() == device)?;
    let figures = figures
        .split_whitespace()
        .map_while(|each| each.parse().ok());
    let figures: Vec<u64> = figures.collect();
    let traffic_at = |first: usize| {
        let &[bytes, packets] = figures.get(first..first + 2)? else {
            return None;
        };
        let bytes = bytes.saturating_sub(packets * ETHERNET_HEADER);
        Some(Traffic { packets, bytes })
    };
    Some([traffic_at(0)?, traffic_at(SENT)?])
}

/// Outer port of a flow, and its remote.
type FlowKey = (u16, SocketAddr);

#[derive(Debug, Default)]
struct Flows {
    by_ends: BTreeMap<FlowKey, Flow>,
    /// Time of the last search for silent flows.
    searched: Duration,
    queueing_us_sum: u64,
    queueing_samples: u64,
    queued_us: u64,
    /// Time of the last round trip that tells of the queue.
    queue_seen: Duration,
    /// Time of the last packet received.
    heard: Duration,
    flow_rtt_us_sum: u64,
    jitter_us_sum: u64,
    jitter_samples: u64,
    repeats: u64,
}

#[derive(Debug)]
struct Flow {
    /// A timestamp from inside whose echo is awaited.
    stamp: Option<Stamp>,
    min_rtt: Option<Duration>,
    /// The last round trip while it moved data.
    last_rtt: Option<Duration>,
    packets: u32,
    /// Sequence number after the last data from inside.
    next: Option<u32>,
    seen: Duration,
}

/// A round trip of a flow that moves data.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    rtt: Duration,
    /// By how much it exceeds the flow's shortest.
    queueing: Duration,
    /// By how much it differs from the one before.
    change: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    value: u32,
    at: Duration,
    /// Packets of the flow until then.
    packets: u32,
}

impl Flows {
    /// Takes a packet of an uplink's device, which passed at this time.
    fn note(&mut self, at: Duration, direction: Direction, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let Transport::Tcp {
            source,
            dest,
            sequence,
            flags,
            header,
            ..
        } = packet.transport
        else {
            return;
        };
        let key = match direction {
            Direction::Out => (source, SocketAddr::new(packet.ip.dest, dest)),
            Direction::In => (dest, SocketAddr::new(packet.ip.source, source)),
        };
        if flags & (SYN | FIN | RST) != 0 {
            self.by_ends.remove(&key);
            return;
        }
        let segment = packet.segment();
        let length = segment.len().saturating_sub(header) as u32;
        let Some(flow) = self.flow(key, at, length > 0) else {
            return;
        };
        flow.seen = at;
        flow.packets = flow.packets.wrapping_add(1);
        let times = timestamps(segment, header);
        match direction {
            Direction::Out => {
                let is_repeat = length > 0 && flow.is_repeat(sequence, length);
                flow.note_stamp(at, times);
                self.repeats += u64::from(is_repeat);
            }
            Direction::In => {
                let trip = flow.note_echo(at, times);
                // The senders may have had nothing to send.
                let silence = at.saturating_sub(self.heard);
                self.heard = at;
                if let Some(trip) = trip {
                    self.queueing_us_sum += trip.queueing.as_micros() as u64;
                    self.queueing_samples += 1;
                    let waited = trip.queueing.saturating_sub(silence);
                    let since = at.saturating_sub(self.queue_seen);
                    if !waited.is_zero() && !since.is_zero() {
                        self.queued_us += waited.min(since).as_micros() as u64;
                        self.queue_seen = at;
                    }
                    self.flow_rtt_us_sum += trip.rtt.as_micros() as u64;
                    self.jitter_us_sum += trip.change.unwrap_or_default().as_micros() as u64;
                    self.jitter_samples += u64::from(trip.change.is_some());
                }
            }
        }
    }

    /// Returns the state of a flow; `None` if there is no room for it, or it is not known and moves no data.
    fn flow(&mut self, key: FlowKey, at: Duration, has_data: bool) -> Option<&mut Flow> {
        if !self.by_ends.contains_key(&key) {
            if has_data
                && self.by_ends.len() >= MAX_FLOWS
                && at.saturating_sub(self.searched) >= REST
            {
                self.searched = at;
                self.by_ends
                    .retain(|_, flow| at.saturating_sub(flow.seen) < IDLE);
            }
            if !has_data || self.by_ends.len() >= MAX_FLOWS {
                return None;
            }
        }
        let new = || Flow {
            stamp: None,
            min_rtt: None,
            last_rtt: None,
            packets: 0,
            next: None,
            seen: at,
        };
        Some(self.by_ends.entry(key).or_insert_with(new))
    }

    fn forget_stamps(&mut self) {
        for flow in self.by_ends.values_mut() {
            flow.stamp = None;
        }
    }
}

impl Flow {
    /// Returns true if data from inside was sent before.
    fn is_repeat(&mut self, sequence: u32, length: u32) -> bool {
        let is_new = self
            .next
            .is_none_or(|next| sequence.wrapping_sub(next).cast_signed() >= 0);
        if is_new {
            self.next = Some(sequence.wrapping_add(length));
        }
        !is_new
    }

    /// Notes a segment from inside whose timestamp will be echoed, unless another echo is awaited.
    fn note_stamp(&mut self, at: Duration, times: Option<[u32; 2]>) {
        let is_awaited = |stamp: &Stamp| at.checked_sub(stamp.at).is_some_and(|age| age <= MAX_RTT);
        if self.stamp.as_ref().is_some_and(is_awaited) {
            return;
        }
        let packets = self.packets;
        self.stamp = times.map(|[value, _]| Stamp { value, at, packets });
    }

    /// Returns the round trip if a segment from outside shows one, in a flow that moves data: the remote of an idle one
    /// delays acknowledgements.
    fn note_echo(&mut self, at: Duration, times: Option<[u32; 2]>) -> Option<RoundTrip> {
        let (stamp, [_, echo]) = (self.stamp?, times?);
        if echo != stamp.value {
            // The echo was lost, or its segment did not advance the remote's window.
            if echo.wrapping_sub(stamp.value).cast_signed() > 0 {
                self.stamp = None;
            }
            return None;
        }
        self.stamp = None;
        let rtt = at.checked_sub(stamp.at).filter(|rtt| *rtt <= MAX_RTT)?;
        let shortest = self.min_rtt.map_or(rtt, |shortest| shortest.min(rtt));
        self.min_rtt = Some(shortest);
        let moves = self.packets.wrapping_sub(stamp.packets) >= MIN_PACKETS;
        moves.then(|| RoundTrip {
            rtt,
            queueing: rtt.saturating_sub(shortest),
            change: self.last_rtt.replace(rtt).map(|last| last.abs_diff(rtt)),
        })
    }
}

/// Returns the timestamp of a TCP segment and the one that it echoes.
fn timestamps(segment: &[u8], header: usize) -> Option<[u32; 2]> {
    let options = segment.get(TCP_HEADER..header)?;
    let (kind, numbers) = options.split_first_chunk()?;
    let (value, numbers) = numbers.split_first_chunk()?;
    let (echo, _) = numbers.split_first_chunk()?;
    (*kind == TIMESTAMPS).then(|| [u32::from_be_bytes(*value), u32::from_be_bytes(*echo)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_packet::{build, protocol};

    const OUTER: &str = "100.64.0.2:16400";
    const REMOTE: &str = "198.51.100.1:443";
    const ACK: u8 = 0x10;

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A segment with these timestamps.
    fn segment(
        (from, to): (&str, &str),
        flags: u8,
        sequence: u32,
        [value, echo]: [u32; 2],
        data: usize,
    ) -> Vec<u8> {
        let (from, to) = (end(from), end(to));
        let mut bytes: Vec<u8> = [from.port(), to.port()].map(u16::to_be_bytes).concat();
        bytes.extend([sequence, 0].map(u32::to_be_bytes).concat());
        bytes.extend([8 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(TIMESTAMPS);
        bytes.extend([value, echo].map(u32::to_be_bytes).concat());
        bytes.resize(bytes.len() + data, 0);
        build::packet(from.ip(), to.ip(), protocol::TCP, bytes, Some(16))
    }

    const MS: Duration = Duration::from_millis(1);

    /// A download: each acknowledgement brings four segments of data, the first after the round trip of its step.
    fn download(flows: &mut Flows, rtts: &[u32]) {
        let mut now = Duration::from_secs(1000);
        let request = segment((OUTER, REMOTE), ACK, 0, [7, 0], 1);
        flows.note(now, Direction::Out, &request);
        for (step, rtt) in rtts.iter().enumerate() {
            let stamp = 7 + step as u32;
            let out = segment((OUTER, REMOTE), ACK, 1, [stamp, 0], 0);
            flows.note(now, Direction::Out, &out);
            for more in 1..=6 {
                flows.note(now + MS * more / 100, Direction::Out, &out);
            }
            now += MS * *rtt;
            for _ in 0..4 {
                let back = segment((REMOTE, OUTER), ACK, 1, [9, stamp], 1000);
                flows.note(now, Direction::In, &back);
            }
        }
    }

    #[test]
    fn round_trips_count_by_what_they_exceed_the_shortest() {
        let mut flows = Flows::default();
        download(&mut flows, &[20, 30, 10, 60]);
        assert_eq!(flows.queueing_samples, 4);
        assert_eq!(flows.queueing_us_sum, (10 + 50) * 1000);
        assert_eq!(flows.flow_rtt_us_sum, (20 + 30 + 10 + 60) * 1000);
        assert_eq!(flows.jitter_us_sum, (10 + 20 + 50) * 1000);
        assert_eq!(flows.jitter_samples, 3);
        assert_eq!(flows.repeats, 0);
        assert_eq!(flows.queued_us, 0, "the sender may have paused");
    }

    #[test]
    fn a_time_in_which_two_flows_show_a_queue_counts_once() {
        let mut flows = Flows::default();
        let other = "100.64.0.2:16401";
        let mut note = |at: u32, direction: Direction, from: &'static str, stamp: u32| {
            let (at, times) = (Duration::from_secs(1000) + MS * at, [stamp, stamp]);
            let ends = match direction {
                Direction::Out => (from, REMOTE),
                Direction::In => (REMOTE, from),
            };
            for _ in 0..7 {
                flows.note(at, direction, &segment(ends, ACK, 1, times, 1000));
            }
        };
        // Both have shown 10 ms; then one waits from 100 to 150 ms, and the other from 120 to 160 ms, and nothing comes for
        // a millisecond before.
        for (from, stamp) in [(OUTER, 1), (other, 2)] {
            note(10 * stamp, Direction::Out, from, stamp);
            note(10 * stamp + 10, Direction::In, from, stamp);
        }
        note(90, Direction::Out, OUTER, 3);
        note(110, Direction::Out, other, 4);
        for (at, from, stamp) in [(150, OUTER, 3), (160, other, 4)] {
            note(at - 1, Direction::In, from, 2);
            note(at, Direction::In, from, stamp);
        }
        assert_eq!(flows.queueing_us_sum, (50 + 40) * 1000);
        assert_eq!(flows.queued_us, (49 + 10) * 1000);
    }

    #[test]
    fn an_idle_flow_tells_nothing() {
        let mut flows = Flows::default();
        let mut now = Duration::from_secs(1);
        for stamp in 0..10 {
            let out = segment((OUTER, REMOTE), ACK, 1, [stamp, 0], 10);
            flows.note(now, Direction::Out, &out);
            now += MS * 40;
            let back = segment((REMOTE, OUTER), ACK, 1, [9, stamp], 10);
            flows.note(now, Direction::In, &back);
        }
        assert_eq!(flows.queueing_samples, 0);
    }

    #[test]
    fn an_echo_that_was_missed_or_comes_too_late_is_none() {
        let mut flows = Flows::default();
        let now = Duration::from_secs(1);
        let out = segment((OUTER, REMOTE), ACK, 1, [7, 0], 10);
        for (echo, after) in [(8, MS), (7, MAX_RTT + MS)] {
            flows.note(now, Direction::Out, &out);
            for _ in 0..10 {
                let back = segment((REMOTE, OUTER), ACK, 1, [9, echo], 1000);
                flows.note(now + after, Direction::In, &back);
            }
            let back = segment((REMOTE, OUTER), ACK, 1, [9, 7], 1000);
            flows.note(now + after, Direction::In, &back);
        }
        flows.note(now, Direction::Out, &out);
        flows.forget_stamps();
        flows.note(
            now + MS,
            Direction::In,
            &segment((REMOTE, OUTER), ACK, 1, [9, 7], 10),
        );
        assert_eq!(flows.queueing_samples, 0);
    }

    #[test]
    fn data_that_is_sent_again_is_counted() {
        let mut flows = Flows::default();
        let now = Duration::from_secs(1);
        let start = u32::MAX - 1500;
        for step in [0, 1, 1, 0, 2, 3, 3] {
            let out = segment(
                (OUTER, REMOTE),
                ACK,
                start.wrapping_add(step * 1000),
                [7, 0],
                1000,
            );
            flows.note(now, Direction::Out, &out);
        }
        assert_eq!(flows.repeats, 3);
        // A new connection between the same ends begins with other numbers.
        flows.note(
            now,
            Direction::Out,
            &segment((OUTER, REMOTE), SYN, 5, [7, 0], 0),
        );
        flows.note(
            now,
            Direction::Out,
            &segment((OUTER, REMOTE), ACK, 6, [7, 0], 1000),
        );
        assert_eq!(flows.repeats, 3);
    }

    #[test]
    fn many_flows_take_no_more_than_their_room() {
        let mut flows = Flows::default();
        let remote = |number: usize| format!("198.51.100.1:{}", 1000 + number);
        let at = |second: u64| Duration::from_secs(second);
        for number in 0..MAX_FLOWS + 100 {
            let out = segment((OUTER, &remote(number)), ACK, 1, [7, 0], 10);
            flows.note(at(1), Direction::Out, &out);
        }
        assert_eq!(flows.by_ends.len(), MAX_FLOWS);
        let late = segment((OUTER, &remote(MAX_FLOWS + 200)), ACK, 1, [7, 0], 10);
        flows.note(at(1) + IDLE, Direction::Out, &late);
        assert_eq!(flows.by_ends.len(), 1);
    }

    #[test]
    fn a_flow_that_has_ended_takes_no_room() {
        let mut flows = Flows::default();
        let now = Duration::from_secs(1);
        for last in [FIN | ACK, RST] {
            for (flags, data) in [(SYN, 0), (ACK, 0), (ACK, 10), (last, 0), (ACK, 0)] {
                let known = flows.by_ends.len();
                let out = segment((OUTER, REMOTE), flags, 1, [7, 0], data);
                flows.note(now, Direction::Out, &out);
                assert_eq!(flows.by_ends.len() > known, data > 0);
            }
            assert!(flows.by_ends.is_empty());
        }
    }

    #[test]
    fn the_kernels_table_tells_bytes_of_ip_packets() {
        let devices = "Inter-|   Receive    |  Transmit\n face |bytes packets errs drop fifo frame \
                       compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
                       lo:  10 1 0 0 0 0 0 0  10 1 0 0 0 0 0 0\n\
                       dsl: 1288 28 0 2 0 0 0 0 108296336 541504 0 594369 0 0 0 0\n";
        let [rx, tx] = traffic(devices, "dsl").unwrap();
        assert_eq!((rx.packets, rx.bytes), (28, 1288 - 28 * 14));
        assert_eq!(
            (tx.packets, tx.bytes),
            (541_504, 108_296_336 - 541_504 * 14)
        );
        assert_eq!(traffic(devices, "ds"), None);
        assert_eq!(traffic("dsl: 1 2 3", "dsl"), None);
    }
}
