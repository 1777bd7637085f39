//! Answers of name servers that the controller holds until the engine has judged them.
//!
//! The thread that reads the controller's lines leaves them here, and the engine takes them among its upcalls. Neither
//! waits for the other: answers without room are lost here, and the controller lets each go after a while.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Most answers that wait for the engine; the controller holds as many (`MAX_HELD` in `held_answers.py`).
const MAX_WAITING: usize = 1024;

/// An answer that the controller holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeldAnswer {
    /// Number of the connection to the controller by which it came: another one's numbers mean other answers.
    pub conversation: u64,
    /// The controller's number.
    pub number: u64,
    /// The packet that goes inside, from its IP header on.
    pub packet: Vec<u8>,
}

/// The answers that wait for the engine.
#[derive(Debug)]
pub(super) struct HeldAnswers {
    waiting: Mutex<VecDeque<HeldAnswer>>,
    /// Readable while there may be some.
    ready: EventFd,
}

impl HeldAnswers {
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            waiting: Mutex::default(),
            ready: EventFd::from_value_and_flags(0, flags)?,
        })
    }

    pub fn push(&self, answer: HeldAnswer) {
        let mut waiting = self.lock();
        if waiting.len() < MAX_WAITING {
            waiting.push_back(answer);
            // It fails only after 2^64 answers that nobody has taken.
            let _ = self.ready.write(1);
        }
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the next answer. After `None` the descriptor says when there are more.
    pub fn next(&self) -> Option<HeldAnswer> {
        // Before the look, so that an answer which comes after it is announced.
        let _ = self.ready.read();
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<HeldAnswer>> {
        // A thread that panicked has left plain data.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for HeldAnswers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use braid_device::{wait, watch};

    use super::*;

    fn answer(number: u64) -> HeldAnswer {
        HeldAnswer {
            conversation: 1,
            number,
            packet: Vec::new(),
        }
    }

    fn is_announced(answers: &HeldAnswers) -> bool {
        let mut fds = [watch(answers.as_fd().as_raw_fd())];
        wait(&mut fds, Some(Duration::ZERO)).unwrap();
        fds[0].revents != 0
    }

    #[test]
    fn answers_are_announced_until_they_are_taken() {
        let answers = HeldAnswers::new().unwrap();
        assert!(!is_announced(&answers));
        answers.push(answer(1));
        answers.push(answer(2));
        assert!(is_announced(&answers));
        assert_eq!(answers.next(), Some(answer(1)));
        assert_eq!(answers.next(), Some(answer(2)));
        assert_eq!(answers.next(), None);
        assert!(!is_announced(&answers));
        answers.push(answer(3));
        assert!(is_announced(&answers));
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let answers = HeldAnswers::new().unwrap();
        let most = MAX_WAITING as u64;
        (0..most + 10).for_each(|number| answers.push(answer(number)));
        let taken: Vec<_> = std::iter::from_fn(|| answers.next()).collect();
        assert_eq!(taken.len(), MAX_WAITING);
        assert_eq!(taken.last(), Some(&answer(most - 1)));
    }
}
