//! The resequencer's thread: frames from the hold device to the [`Orderer`] and back.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_core::Time;

use crate::Error;
use crate::frame::{Frame, take_tag, without_tag};
use crate::hold::Hold;
use crate::order::{Account, Orderer, Ordering};
use crate::probe;
use crate::table::Inward;

/// A frame of an ordinary MTU with its tag; longer ones get a buffer of their own.
const ORDINARY: usize = 2048;
/// The longest frame that a TAP device hands over.
const LONGEST: usize = 65_536 + 64;
/// Frames read before deadlines are looked at again.
const BATCH: usize = 64;
/// Buffers kept for what comes next.
const SPARE: usize = 1024;
/// Probes' answers that may wait to be looked at: anybody can send what looks like one.
pub const ANSWERS: usize = 1024;
/// It answers between two batches.
const PATIENCE: Duration = Duration::from_secs(1);

/// A probe that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Its path.
    pub tag: u16,
    /// What was asked.
    pub nonce: u64,
    /// When it came.
    pub at: Instant,
}

/// How the other threads reach this one.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    answered: Condvar,
    bell: UnixStream,
}

#[derive(Debug, Default)]
struct Inbox {
    table: Option<Vec<Inward>>,
    accounts: BTreeMap<String, Account>,
    wants_accounts: bool,
    end: bool,
}

impl Handle {
    /// For a thread that listens to the other end.
    pub fn pair() -> Result<(Handle, UnixStream), Error> {
        let failed = |source| Error::system("making a socket pair", source);
        let (bell, ear) = UnixStream::pair().map_err(failed)?;
        bell.set_nonblocking(true).map_err(failed)?;
        ear.set_nonblocking(true).map_err(failed)?;
        let shared = Shared {
            inbox: Mutex::new(Inbox::default()),
            answered: Condvar::new(),
            bell,
        };
        Ok((Handle(Arc::new(shared)), ear))
    }

    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        // A bell that is full of rings is heard as well.
        let _ = (&self.0.bell).write(&[1]);
    }

    /// Has it go by another table.
    pub fn set_table(&self, table: Vec<Inward>) {
        self.change(|inbox| inbox.table = Some(table));
    }

    /// Has it end.
    pub fn end(&self) {
        self.change(|inbox| inbox.end = true);
    }

    /// What it has done so far; of a thread that does not answer within [`PATIENCE`], what it said
    /// last.
    pub fn accounts(&self) -> BTreeMap<String, Account> {
        self.change(|inbox| inbox.wants_accounts = true);
        let inbox = self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = &self.0.answered;
        let answer = answered.wait_timeout_while(inbox, PATIENCE, |inbox| inbox.wants_accounts);
        let (inbox, _) = answer.unwrap_or_else(PoisonError::into_inner);
        inbox.accounts.clone()
    }
}

/// The thread's own side.
pub struct Driver {
    hold: Hold,
    ordering: Ordering,
    orderer: Orderer,
    shared: Arc<Shared>,
    ear: UnixStream,
    origin: Instant,
    spare: Vec<Vec<u8>>,
    lost: u64,
    /// Who wants probes' answers; none where paths are of layer 2.
    answers: Option<SyncSender<Answer>>,
}

impl Driver {
    pub fn new(
        hold: Hold,
        ordering: Ordering,
        answers: Option<SyncSender<Answer>>,
    ) -> Result<(Driver, Handle), Error> {
        let (handle, ear) = Handle::pair()?;
        let driver = Driver {
            hold,
            ordering,
            orderer: Orderer::new(),
            shared: Arc::clone(&handle.0),
            ear,
            origin: Instant::now(),
            spare: Vec::new(),
            lost: 0,
            answers,
        };
        Ok((driver, handle))
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Runs until told to end.
    pub fn run(mut self) -> Result<(), Error> {
        if let Err(error) = braid_device::set_real_time() {
            tracing::info!(%error, "running with ordinary priority: a busy machine delays packets");
        }
        let mut buffer = vec![0; LONGEST];
        loop {
            let (frames, rung) = self.wait()?;
            if rung && self.read_inbox() {
                return Ok(());
            }
            if frames {
                self.take_frames(&mut buffer)?;
            }
            let now = self.now();
            let (hold, spare, lost) = (&self.hold, &mut self.spare, &mut self.lost);
            self.orderer
                .handle_timeout(now, |frame| pass(hold, spare, lost, frame));
        }
    }

    /// Waits for frames, the bell, or a deadline.
    fn wait(&self) -> Result<(bool, bool), Error> {
        let timeout = self.orderer.poll_timeout().map(|due| due.since(self.now()));
        let mut fds = [self.hold.fd(), self.ear.as_raw_fd()].map(braid_device::watch);
        braid_device::wait(&mut fds, timeout)
            .map_err(|source| Error::system("waiting for packets", source))?;
        let [frames, rung] = fds.map(|fd| fd.revents != 0);
        Ok((frames, rung))
    }

    /// Whether to end.
    fn read_inbox(&mut self) -> bool {
        let mut rings = [0; 64];
        while matches!((&self.ear).read(&mut rings), Ok(count) if count == rings.len()) {}
        let now = self.now();
        let mut inbox = self
            .shared
            .inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = inbox.table.take() {
            self.orderer.set(now, self.ordering, &table);
        }
        if std::mem::take(&mut inbox.wants_accounts) {
            inbox.accounts = self.orderer.accounts();
            self.shared.answered.notify_all();
        }
        inbox.end
    }

    /// Takes a probe's answer to who waits for it.
    fn is_answer(&self, tag: u16, frame: &[u8]) -> bool {
        let Some(answers) = &self.answers else {
            return false;
        };
        let Some(nonce) = probe::answer(without_tag(frame)) else {
            return false;
        };
        let at = Instant::now();
        // Who does not listen any more is about to end; for whom too many wait, one more is lost as
        // on the way.
        let _ = answers.try_send(Answer { tag, nonce, at });
        true
    }

    fn take_frames(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        for _ in 0..BATCH {
            let Some(length) = self.hold.read(buffer)? else {
                break;
            };
            // What the kernel itself says on every device has no tag, and is nobody's.
            let Some(read) = take_tag(&mut buffer[..length]) else {
                continue;
            };
            if read.segment.is_none() && self.is_answer(read.tag, &buffer[..length]) {
                continue;
            }
            let mut bytes = self
                .spare
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(ORDINARY));
            bytes.clear();
            bytes.extend_from_slice(&buffer[read.start..length]);
            let now = self.now();
            let (hold, spare, lost) = (&self.hold, &mut self.spare, &mut self.lost);
            self.orderer.handle(now, read, Frame(bytes), |frame| {
                pass(hold, spare, lost, frame);
            });
        }
        Ok(())
    }
}

fn pass(hold: &Hold, spare: &mut Vec<Vec<u8>>, lost: &mut u64, frame: Frame) {
    if !hold.write(&frame.0) {
        *lost += 1;
        tracing::debug!(lost, "the kernel did not take a frame");
    }
    if spare.len() < SPARE && frame.0.capacity() <= 2 * ORDINARY {
        spare.push(frame.0);
    }
}
