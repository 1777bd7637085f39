//! The resequencer's thread: moves frames from the TAP device to the [`Reorderer`] and back.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_core::Time;

use crate::Error;
use crate::datapath::Layer;
use crate::frame::{Frame, packet_after_tag, strip_tag};
use crate::probe::{self, TaggedReply};
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
}

impl Driver {
    pub fn new(
        tap: ReorderTap,
        reordering: Reordering,
        layer: Layer,
        answers: SyncSender<ProbeReply>,
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
        if let Some(table) = inbox.table.take() {
            self.reorderer.set(now, self.reordering, &table);
        }
        if std::mem::take(&mut inbox.wants_stats) {
            inbox.stats = self.reorderer.stats();
            self.shared.answered.notify_all();
        }
        inbox.end
    }

    /// Returns true if a frame of a tagged path is a probe's reply, and passes that on.
    fn is_tagged_reply(&self, frame: &[u8]) -> bool {
        let reply = match self.layer {
            Layer::Two => TaggedReply::parse(frame),
            // There, a packet of a host may look like one.
            Layer::Three => None,
        };
        let at = Instant::now();
        reply.is_some_and(|reply| self.pass_reply(ProbeReply::Tagged { reply, at }))
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
            if self.is_tagged_reply(&buffer[..length]) {
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
