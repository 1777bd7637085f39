//! The packet thread: its start, its clock, and its commands.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus,
};
use nix::sys::prctl::set_no_new_privs;
use ring::rand::{SecureRandom, SystemRandom};

use super::sys::Wake;
use super::{BondError, Stopped};
use crate::proto::entropy::Entropy;
use crate::proto::seal::Cipher;
use braid_core::Time;

/// The monotonic clock since the start of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: Instant,
}

impl Clock {
    pub fn start() -> Clock {
        let origin = Instant::now();
        Clock { origin }
    }

    pub fn now(&self) -> Time {
        let nanos = self.origin.elapsed().as_nanos();
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// µs since 1970 at the clock's zero.
    pub fn unix_micros(&self) -> u64 {
        let start = unix_time().saturating_sub(self.origin.elapsed());
        u64::try_from(start.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Time since 1970 by the system's clock, which may be set; zero if it is before that.
pub(super) fn unix_time() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// The system's randomness, drawn anew for every use.
pub(super) fn entropy() -> Result<Entropy, BondError> {
    SystemRandom::new()
        .fill(&mut [0; 32])
        .map_err(|_| BondError::System {
            step: "draw random bytes",
            source: std::io::ErrorKind::Other.into(),
        })?;
    Ok(Entropy::system(draw))
}

fn draw(bytes: &mut [u8]) {
    let drawn = SystemRandom::new().fill(bytes);
    // Continuing with bytes that are not random would reveal keys.
    drawn.expect("a system that gave random bytes once goes on to");
}

/// AES if the processor has instructions for it; without them AES is by far the slower one.
pub(super) fn preferred_cipher() -> Cipher {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    match has_aes {
        true => Cipher::Aes256Gcm,
        false => Cipher::ChaCha20Poly1305,
    }
}

/// Handle of a thread.
#[derive(Debug)]
pub(super) struct ThreadHandle<T> {
    commands: Sender<T>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's side of its commands. A dropped handle stops the thread too.
#[derive(Debug)]
pub(super) struct CommandReceiver<T> {
    commands: Receiver<T>,
    wake: Arc<Wake>,
}

/// Runs `body` on a thread of its own, with no capabilities but those `kept` and without files, as far as the kernel has
/// landlock: it reads what strangers send.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    kept: &'static [Capability],
    body: impl FnOnce(CommandReceiver<T>) + Send + 'static,
) -> Result<ThreadHandle<T>, BondError> {
    let step = |step| move |source| BondError::System { step, source };
    let wake = Arc::new(Wake::new().map_err(step("make an event descriptor"))?);
    let (sender, receiver) = channel();
    let commands = CommandReceiver {
        commands: receiver,
        wake: Arc::clone(&wake),
    };
    let body = move || {
        if let Err(error) = braid_device::no_timer_slack() {
            tracing::debug!(%error, "cannot disable timer slack: timers are up to 50 µs late");
        }
        if let Err(error) = braid_device::raise_priority() {
            tracing::debug!(%error, "cannot raise the priority of the packet thread");
        }
        if let Err(error) = keep_capabilities(kept) {
            tracing::warn!(%error, "the packet thread cannot give up its capabilities");
        }
        if let Err(error) = give_up_files() {
            tracing::warn!(%error, "the packet thread cannot give up files");
        }
        body(commands);
    };
    let thread = std::thread::Builder::new().name(name.to_owned());
    let thread = thread.spawn(body).map_err(step("start a thread"))?;
    Ok(ThreadHandle {
        commands: sender,
        wake,
        thread: Some(thread),
    })
}

/// Gives up the calling thread's capabilities but those `kept` that it has.
fn keep_capabilities(kept: &[Capability]) -> Result<(), CapsError> {
    let has = caps::read(None, CapSet::Permitted)?;
    let left = kept.iter().copied().filter(|each| has.contains(each));
    let left: CapsHashSet = left.collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)?;
    caps::clear(None, CapSet::Inheritable)
}

/// Keeps the calling thread from opening, making and removing files, for good: it has all that it needs.
fn give_up_files() -> Result<RulesetStatus, RulesetError> {
    // Landlock wants it; a kernel that refuses it refuses that, too.
    let _ = set_no_new_privs();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V3))?;
    Ok(ruleset.create()?.restrict_self()?.ruleset)
}

impl<T> ThreadHandle<T> {
    /// Sends a command; without effect if the thread has ended.
    pub fn send(&self, command: T) {
        if self.commands.send(command).is_ok() {
            self.wake.wake();
        }
    }

    /// Sends a command and waits for its reply.
    pub fn request<A>(&self, command: impl FnOnce(SyncSender<A>) -> T) -> Result<A, Stopped> {
        self.ask(command).recv().map_err(|_| Stopped)
    }

    /// Sends a command and waits for its reply for a limited time; none if the thread has ended or hangs.
    pub fn request_within<A>(
        &self,
        timeout: Duration,
        command: impl FnOnce(SyncSender<A>) -> T,
    ) -> Option<A> {
        self.ask(command).recv_timeout(timeout).ok()
    }

    fn ask<A>(&self, command: impl FnOnce(SyncSender<A>) -> T) -> Receiver<A> {
        let (sender, receiver) = sync_channel(1);
        self.send(command(sender));
        receiver
    }

    pub fn is_alive(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// Sends the last command, and waits for the end of the thread.
    pub fn stop(&mut self, command: T) {
        self.send(command);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the packet thread panicked");
        }
    }
}

impl<T> CommandReceiver<T> {
    pub fn fd(&self) -> std::os::fd::RawFd {
        self.wake.fd()
    }

    /// The next command, if there is one.
    pub fn poll(&self) -> Option<T> {
        self.commands.try_recv().ok()
    }

    /// Call it after a wake-up, before [`CommandReceiver::poll`].
    pub fn clear(&self) {
        self.wake.clear();
    }
}

/// Time until `at`; zero if it has passed.
pub(super) fn time_until(now: Time, at: Option<Time>) -> Option<Duration> {
    at.map(|at| at.since(now))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn the_packet_thread_opens_no_file() {
        let has = std::thread::scope(|scope| scope.spawn(give_up_files).join());
        if has.expect("no panic").expect("landlock") == RulesetStatus::NotEnforced {
            let listed = std::fs::read_to_string("/sys/kernel/security/lsm");
            assert!(!listed.unwrap_or_default().contains("landlock"));
            return;
        }
        let (tell, told) = channel();
        let mut handle = spawn("test", &[], move |_: CommandReceiver<()>| {
            let opened = File::open("/etc/passwd").map_err(|error| error.kind());
            tell.send(opened.map(drop)).expect("it is awaited");
        })
        .expect("a thread");
        assert_eq!(told.recv(), Ok(Err(ErrorKind::PermissionDenied)));
        handle.stop(());
        assert!(File::open("/etc/passwd").is_ok(), "other threads do");
    }

    #[test]
    fn memory_does_not_say_what_was_drawn_or_will_be() {
        let mut drawing = entropy().expect("the system has randomness");
        // The state that a thief or a copy of the machine finds.
        let mut found = drawing.clone();
        let drawn: [u8; 32] = drawing.bytes();
        assert_ne!(drawn, found.bytes());
        assert_ne!(drawing.fork().bytes::<32>(), found.fork().bytes());
    }
}
