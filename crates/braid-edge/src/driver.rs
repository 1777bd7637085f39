//! The resequencer's thread: moves frames from the TAP device to the [`Reorderer`] and back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_core::Time;
use braid_device::PacketSender;

use crate::Error;
use crate::copies::{Copies, PacketCopy};
use crate::datapath::Layer;
use crate::frame::{Frame, packet_after_tag, strip_tag, tag_of};
use crate::pair_repair::{AskedEdge, CopiedPath, Repairs};
use crate::probe::{self, MissingRequest, TaggedReply};
use crate::reorder_tap::ReorderTap;
use crate::reorderer::{ReorderStats, Reorderer, Reordering};
use crate::table::Ingress;

/// Buffer size for a frame of an ordinary MTU with its tag; longer frames get larger buffers.
const COMMON_FRAME_BYTES: usize = 2048;
/// The longest frame that a TAP device delivers.
const MAX_FRAME_BYTES: usize = 65_536 + 64;
/// Frames read between two checks of deadlines.
const READ_BATCH: usize = 64;
/// Buffers kept for reuse.
const MAX_SPARE_BUFFERS: usize = 1024;
/// Limit of queued probe replies: anybody can send what looks like one.
pub const MAX_QUEUED_REPLIES: usize = 1024;
/// Limit for an answer of this thread, which it gives between two batches.
const STATS_TIMEOUT: Duration = Duration::from_secs(1);

/// Repair of losses: copies of what is sent by a path that loses some, which the other edge asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Repair {
    /// Where a path loses some packets, its queue is short, and another path loses fewer
    #[default]
    Auto,
    /// None: no copies are kept, and none are asked for
    Off,
}

/// A reply to a probe, and when it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeReply {
    /// Over a layer-3 path.
    Layer3 {
        /// Tag of its path.
        tag: u16,
        /// Nonce of the probe.
        nonce: u64,
        at: Instant,
    },
    /// Over a tagged path.
    Tagged { reply: TaggedReply, at: Instant },
}

/// Handle by which other threads reach this one.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    answered: Condvar,
    waker: UnixStream,
}

#[derive(Debug, Default)]
struct Inbox {
    table: Option<Vec<Ingress>>,
    repairs: Option<Repairs>,
    /// Packets that a path had lost and that were sent again, by its tag.
    repeated: BTreeMap<u16, u64>,
    /// The same by the tags of the paths that they were sent by.
    sent_copies: BTreeMap<u16, u64>,
    stats: BTreeMap<String, ReorderStats>,
    wants_stats: bool,
    end: bool,
}

impl Handle {
    /// Returns a handle and the socket that it wakes.
    pub fn pair() -> Result<(Handle, UnixStream), Error> {
        let failed = |source| Error::system("making a socket pair", source);
        let (waker, wakeups) = UnixStream::pair().map_err(failed)?;
        waker.set_nonblocking(true).map_err(failed)?;
        wakeups.set_nonblocking(true).map_err(failed)?;
        let shared = Shared {
            inbox: Mutex::new(Inbox::default()),
            answered: Condvar::new(),
            waker,
        };
        Ok((Handle(Arc::new(shared)), wakeups))
    }

    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        // A full socket wakes the thread as well.
        let _ = (&self.0.waker).write(&[1]);
    }

    /// Sets another table.
    pub fn set_table(&self, table: Vec<Ingress>) {
        self.change(|inbox| inbox.table = Some(table));
    }

    /// Sets the state of repair.
    pub fn set_repairs(&self, repairs: Repairs) {
        self.change(|inbox| inbox.repairs = Some(repairs));
    }

    /// Returns how many packets that a path had lost were sent again, by its tag.
    pub fn repeated(&self) -> BTreeMap<u16, u64> {
        let inbox = self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.repeated.clone()
    }

    /// Returns how many of these were sent by each path, by its tag.
    pub fn sent_copies(&self) -> BTreeMap<u16, u64> {
        let inbox = self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.sent_copies.clone()
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.change(|inbox| inbox.end = true);
    }

    /// Returns the current counters, or the last known ones if the thread does not answer within
    /// [`STATS_TIMEOUT`].
    pub fn stats(&self) -> BTreeMap<String, ReorderStats> {
        self.change(|inbox| inbox.wants_stats = true);
        let inbox = self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = &self.0.answered;
        let answer = answered.wait_timeout_while(inbox, STATS_TIMEOUT, |inbox| inbox.wants_stats);
        let (inbox, _) = answer.unwrap_or_else(PoisonError::into_inner);
        inbox.stats.clone()
    }
}

/// The resequencer's thread.
pub struct Driver {
    tap: ReorderTap,
    reordering: Reordering,
    reorderer: Reorderer,
    shared: Arc<Shared>,
    wakeups: UnixStream,
    origin: Instant,
    spare: Vec<Vec<u8>>,
    lost: u64,
    layer: Layer,
    /// Receiver of probe replies.
    answers: SyncSender<ProbeReply>,
    /// Sends tagged frames; none over layer-3 paths.
    sender: Option<PacketSender>,
    copies: Copies,
    /// Paths of which copies come.
    copied: BTreeMap<u16, CopiedPath>,
    /// Tags under which copies came: while no path to here has such a tag, its packets are for no host here.
    own_tags: BTreeSet<u16>,
    /// Other edges that may be asked for copies.
    asked: BTreeMap<String, AskedEdge>,
}

impl Driver {
    pub fn new(
        tap: ReorderTap,
        reordering: Reordering,
        layer: Layer,
        answers: SyncSender<ProbeReply>,
        sender: Option<PacketSender>,
    ) -> Result<(Driver, Handle), Error> {
        let (handle, wakeups) = Handle::pair()?;
        let driver = Driver {
            tap,
            reordering,
            reorderer: Reorderer::new(),
            shared: Arc::clone(&handle.0),
            wakeups,
            origin: Instant::now(),
            spare: Vec::new(),
            lost: 0,
            layer,
            answers,
            sender,
            copies: Copies::default(),
            copied: BTreeMap::new(),
            own_tags: BTreeSet::new(),
            asked: BTreeMap::new(),
        };
        Ok((driver, handle))
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Runs until [`Handle::end`].
    pub fn run(mut self) -> Result<(), Error> {
        if let Err(error) = braid_device::set_real_time() {
            tracing::info!(%error, "running with ordinary priority: a busy machine delays packets");
        }
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        loop {
            let (frames, woken) = self.wait()?;
            if woken && self.read_inbox() {
                return Ok(());
            }
            if frames {
                self.take_frames(&mut buffer)?;
            }
            let now = self.now();
            let (tap, spare, lost) = (&self.tap, &mut self.spare, &mut self.lost);
            self.reorderer
                .handle_timeout(now, |frame| pass(tap, spare, lost, frame));
            self.ask_for_missing();
        }
    }

    /// Waits for frames, a wakeup, or a deadline.
    fn wait(&self) -> Result<(bool, bool), Error> {
        let timeout = self
            .reorderer
            .poll_timeout()
            .map(|due| due.since(self.now()));
        let mut fds = [self.tap.fd(), self.wakeups.as_raw_fd()].map(braid_device::watch);
        braid_device::wait(&mut fds, timeout)
            .map_err(|source| Error::system("waiting for packets", source))?;
        let [frames, woken] = fds.map(|fd| fd.revents != 0);
        Ok((frames, woken))
    }

    /// Handles requests of other threads; returns true if the thread is to end.
    fn read_inbox(&mut self) -> bool {
        let mut bytes = [0; 64];
        while matches!((&self.wakeups).read(&mut bytes), Ok(count) if count == bytes.len()) {}
        let now = self.now();
        let mut inbox = self
            .shared
            .inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (table, repairs) = (inbox.table.take(), inbox.repairs.take());
        let is_other = table.is_some() || repairs.is_some();
        if let Some(table) = table {
            self.reorderer.set(now, self.reordering, &table);
        }
        if let Some(repairs) = repairs {
            self.own_tags.extend(repairs.copied.keys());
            if repairs.copied.is_empty() {
                self.copies.clear();
            }
            (self.copied, self.asked) = (repairs.copied, repairs.asked);
        }
        if is_other {
            let asked = &self.asked;
            self.reorderer
                .set_repairs(|source| asked.get(source).map(|edge| edge.offer.wait));
        }
        if std::mem::take(&mut inbox.wants_stats) {
            inbox.stats = self.reorderer.stats();
            self.shared.answered.notify_all();
        }
        inbox.end
    }

    /// Sends copies of what another edge misses by another path. One that is lost is as if there were none.
    fn repeat(&mut self, request: &MissingRequest) {
        let Some(sender) = &self.sender else {
            return;
        };
        let now = self.now();
        for copy in self.copies.take(now, request, &self.copied) {
            match sender.send(&copy.frame) {
                Ok(()) => {
                    let inbox = self.shared.inbox.lock();
                    let mut inbox = inbox.unwrap_or_else(PoisonError::into_inner);
                    *inbox.repeated.entry(copy.tag).or_default() += 1;
                    if let Some(by) = tag_of(&copy.frame) {
                        *inbox.sent_copies.entry(by).or_default() += 1;
                    }
                }
                Err(error) => tracing::debug!(tag = copy.tag, %error, "a copy was not sent"),
            }
        }
    }

    /// Asks other edges for copies of what is missing.
    fn ask_for_missing(&mut self) {
        let Some(sender) = &self.sender else {
            return;
        };
        while let Some((missing, source)) = self.reorderer.poll_missing() {
            let Some(AskedEdge { offer, by }) = self.asked.get(source) else {
                continue;
            };
            let token = offer.token;
            for tag in by {
                let request = MissingRequest { token, missing };
                if let Err(error) = sender.send(&request.frame(*tag)) {
                    tracing::debug!(tag, %error, "a request for copies was not sent");
                }
            }
        }
    }

    /// Returns true if a frame is a copy of a packet that goes to another edge, and keeps it.
    fn is_copy(&mut self, buffer: &mut [u8]) -> bool {
        // The controller gives tags to other paths in time.
        let is_own = |tag: &u16| self.own_tags.contains(tag) && !self.reorderer.is_in_use(*tag);
        let Some(tag) = tag_of(buffer).filter(is_own) else {
            return false;
        };
        let frame = buffer.to_vec();
        let span = strip_tag(buffer).and_then(|read| read.segment);
        if let Some((key, _, seq, length)) = span
            && self.copied.contains_key(&tag)
        {
            let copy = PacketCopy { tag, length, frame };
            self.copies.keep(self.now(), key, seq, copy);
        }
        true
    }

    /// Returns true if a frame of a tagged path is a probe's reply, which is passed on, or a request for
    /// copies.
    fn is_for_edge(&mut self, frame: &[u8]) -> bool {
        // There, a packet of a host may look like one.
        if self.layer == Layer::Three {
            return false;
        }
        let at = Instant::now();
        if let Some(reply) = TaggedReply::parse(frame) {
            return self.pass_reply(ProbeReply::Tagged { reply, at });
        }
        let request = MissingRequest::parse(frame);
        if let Some(request) = &request {
            self.repeat(request);
        }
        request.is_some()
    }

    /// The same for a packet of a layer-3 path.
    fn is_reply(&self, tag: u16, frame: &[u8]) -> bool {
        let nonce = match self.layer {
            Layer::Two => None,
            Layer::Three => probe::parse_reply(packet_after_tag(frame)),
        };
        let at = Instant::now();
        nonce.is_some_and(|nonce| self.pass_reply(ProbeReply::Layer3 { tag, nonce, at }))
    }

    fn pass_reply(&self, reply: ProbeReply) -> bool {
        // A closed channel means that the process is about to end. If the channel is full, the reply
        // counts as lost on the way.
        let _ = self.answers.try_send(reply);
        true
    }

    fn take_frames(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        for _ in 0..READ_BATCH {
            let Some(length) = self.tap.read(buffer)? else {
                break;
            };
            if self.is_for_edge(&buffer[..length]) || self.is_copy(&mut buffer[..length]) {
                continue;
            }
            // Frames that the kernel itself sends on every device have no tag: ignored.
            let Some(read) = strip_tag(&mut buffer[..length]) else {
                continue;
            };
            if read.segment.is_none() && self.is_reply(read.tag, &buffer[..length]) {
                continue;
            }
            let mut bytes = self
                .spare
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(COMMON_FRAME_BYTES));
            bytes.clear();
            bytes.extend_from_slice(&buffer[read.start..length]);
            let now = self.now();
            let (tap, spare, lost) = (&self.tap, &mut self.spare, &mut self.lost);
            self.reorderer.handle(now, read, Frame(bytes), |frame| {
                pass(tap, spare, lost, frame);
            });
        }
        Ok(())
    }
}

fn pass(tap: &ReorderTap, spare: &mut Vec<Vec<u8>>, lost: &mut u64, frame: Frame) {
    if !tap.write(&frame.0) {
        *lost += 1;
        tracing::debug!(lost, "the kernel did not take a frame");
    }
    if spare.len() < MAX_SPARE_BUFFERS && frame.0.capacity() <= 2 * COMMON_FRAME_BYTES {
        spare.push(frame.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use braid_multipath::resequence::SegmentKind;
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::frame::{ParsedFrame, StreamKey};
    use crate::probe::Offer;
    use crate::table::{DeliveryOrder, IngressPath};

    /// Runs in a network namespace with a driver that reads nothing by itself.
    fn with_driver(work: impl FnOnce(Driver, Handle) + Send) {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).expect("a namespace (needs root)");
                let tap = ReorderTap::create("hold").expect("a device");
                let (answers, _) = mpsc::sync_channel(1);
                let made = Driver::new(tap, Reordering::Adaptive, Layer::Two, answers, None);
                let (driver, handle) = made.expect("a driver");
                work(driver, handle);
            });
            inside.join().expect("no panic");
        });
    }

    fn from(source: &str, tags: [u16; 2]) -> Ingress {
        Ingress {
            source: source.to_owned(),
            order: DeliveryOrder::Resequence,
            threshold_packets: 16,
            size_packets: 32,
            paths: tags
                .map(|tag| IngressPath {
                    tag,
                    latency_ms: None,
                })
                .to_vec(),
            path_withdrawn: false,
        }
    }

    /// Copies are kept of path 2, and asked for at `hb`.
    fn repairs() -> Repairs {
        let offer = Offer {
            wait: Duration::from_millis(50),
            token: 7,
        };
        let copied = CopiedPath {
            by: 3,
            token: 8,
            is_clear: true,
        };
        let asked = AskedEdge {
            offer,
            by: vec![2, 3],
        };
        Repairs {
            copied: BTreeMap::from([(2, copied)]),
            offers: BTreeMap::new(),
            asked: BTreeMap::from([("hb".to_owned(), asked)]),
        }
    }

    /// A frame under a path's tag.
    fn tagged(tag: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[0x81, 0x00]);
        frame[14..16].copy_from_slice(&tag.to_be_bytes());
        frame
    }

    #[test]
    fn a_tag_that_was_given_to_a_path_to_here_is_no_copys() {
        with_driver(|mut driver, handle| {
            handle.set_table(vec![from("hb", [10, 11])]);
            handle.set_repairs(repairs());
            driver.read_inbox();
            assert!(driver.is_copy(&mut tagged(2)));
            assert!(!driver.is_copy(&mut tagged(10)));
            // Copies on their way when their path is healthy again are no packets for a host here.
            handle.set_repairs(Repairs::default());
            driver.read_inbox();
            assert!(driver.is_copy(&mut tagged(2)));
            // The table comes from one thread, and what is repaired from another, which may be behind.
            handle.set_table(vec![from("hb", [10, 2])]);
            driver.read_inbox();
            assert!(!driver.is_copy(&mut tagged(2)));
            handle.set_repairs(repairs());
            driver.read_inbox();
            assert!(!driver.is_copy(&mut tagged(2)));
        });
    }

    #[test]
    fn an_edge_that_comes_later_is_asked_for_copies_too() {
        with_driver(|mut driver, handle| {
            handle.set_repairs(repairs());
            driver.read_inbox();
            handle.set_table(vec![from("hb", [10, 11])]);
            driver.read_inbox();
            let now = driver.now();
            // The second one is lost.
            for number in [0, 2, 3, 4] {
                let key = StreamKey::Lane { epoch: 1, lane: 2 };
                let read = ParsedFrame {
                    tag: 10 + number % 2,
                    start: 0,
                    segment: Some((key, SegmentKind::Data, number.into(), 1)),
                };
                driver
                    .reorderer
                    .handle(now, read, Frame(Vec::new()), |_| {});
            }
            assert!(driver.reorderer.poll_missing().is_some());
        });
    }
}
