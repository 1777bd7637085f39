//! The main loop.

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use braid_core::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::{Value, json};

use super::EmulatorError;
use super::buffers::Pool;
use super::control::{Change, Request, Server};
use super::log::Log;
use super::port::{Direction, Endpoint, Mac};
use super::tap::{Device, Tap};
use crate::link::{Fate, Link};
use crate::{Config, Settings, Time};

/// Largest frame of a TAP device: its largest MTU with header and VLAN tag.
const MAX_FRAME_BYTES: usize = 65_535 + 18;

/// Packets read from one device before the other device and the due packets get their turn.
const MAX_BATCH_FRAMES: usize = 1024;

/// Shortest time between two iterations of the loop. On an idle link packets are handled at once;
/// on a busy one, packets that fall into one tick are read and written together, like interrupt
/// moderation of a network card. A wake-up costs several times as much as a packet, so this makes
/// hundreds of Mbit/s affordable; it adds at most two ticks to a delay.
const TIMER_TICK: Duration = Duration::from_micros(200);

/// Indices of a device and of the link that begins there.
const BOTH_ENDS: [usize; 2] = [0, 1];

/// Positions of signals and devices in the poll list; control sockets follow.
const POLL_SIGNALS: usize = 0;
const POLL_DEVICES: usize = 1;
const POLL_CONTROL: usize = 3;

/// Options of an emulator.
#[derive(Debug)]
pub struct Options {
    /// The end at which "up" begins.
    pub a: Endpoint,
    /// The other end.
    pub b: Endpoint,
    /// MAC address of the device at a; the kernel's choice if none.
    pub mac_a: Option<Mac>,
    /// MAC address of the device at b; the kernel's choice if none.
    pub mac_b: Option<Mac>,
    /// From a to b.
    pub up: Config,
    /// From b to a.
    pub down: Config,
    /// Seed of the random numbers of both directions.
    pub seed: u64,
    /// Path of the control socket; none without it.
    pub control: Option<PathBuf>,
    /// File that logs every packet's fate; none without it.
    pub log: Option<PathBuf>,
    /// Run time; without it, only a signal ends the emulator.
    pub run_for: Option<Duration>,
}

/// The line printed once both devices are up.
#[derive(Debug, Clone, Serialize)]
pub struct Ready {
    /// True.
    pub ready: bool,
    /// The process.
    pub pid: u32,
    /// The device at a.
    pub a: Device,
    /// The device at b.
    pub b: Device,
    /// The seed in use.
    pub seed: u64,
    /// True if the emulator runs with real-time priority.
    pub real_time: bool,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// Time 0 of the log, on the monotonic clock.
    pub started_monotonic_ns: u64,
}

/// A running emulator. Devices and control socket are removed on drop.
#[derive(Debug)]
pub struct Emulator {
    taps: [Tap; 2],
    /// The first from a to b, the second from b to a.
    links: [Link<Vec<u8>>; 2],
    late: [Histogram; 2],
    /// Frames that the other side's device refused.
    refused: [u64; 2],
    pool: Pool,
    clock: Clock,
    signals: SignalFd,
    control: Option<Server>,
    log: Option<Log>,
    end: Option<Time>,
    seed: u64,
    real_time: bool,
}

impl Emulator {
    /// Creates devices, socket and log. Blocks the signals that end the emulator in the calling
    /// thread, and raises its priority if permitted.
    ///
    /// # Errors
    /// A namespace is missing, a device's name is taken, privileges are missing, or the control
    /// socket or log cannot be created.
    pub fn start(options: Options) -> Result<Emulator, EmulatorError> {
        let signals = terminating_signals().map_err(EmulatorError::system("watch for signals"))?;
        let taps = [
            Tap::create(&options.a, options.mac_a)?,
            Tap::create(&options.b, options.mac_b)?,
        ];
        let control = options.control.as_deref().map(Server::bind).transpose()?;
        let log = options.log.as_deref().map(Log::create).transpose()?;
        braid_device::no_timer_slack().map_err(EmulatorError::system("ask for exact timers"))?;
        // Without real-time priority everything works, only less punctually; the ready line and the
        // statistics show it.
        let real_time = braid_device::set_real_time().is_ok();
        let clock = Clock::start().map_err(EmulatorError::system("read the clock"))?;
        Ok(Emulator {
            taps,
            // Two seeds that no other seed of a user yields.
            links: [
                Link::new(options.up, options.seed.wrapping_mul(2)),
                Link::new(options.down, options.seed.wrapping_mul(2).wrapping_add(1)),
            ],
            late: Default::default(),
            refused: [0; 2],
            pool: Pool::default(),
            end: options.run_for.map(|span| Time::ZERO + span),
            clock,
            signals,
            control,
            log,
            seed: options.seed,
            real_time,
        })
    }

    /// Returns the ready line.
    #[must_use]
    pub fn ready(&self) -> Ready {
        Ready {
            ready: true,
            pid: std::process::id(),
            a: self.taps[0].describe(),
            b: self.taps[1].describe(),
            seed: self.seed,
            real_time: self.real_time,
            control: self.control.as_ref().map(|server| server.path().to_owned()),
            started_monotonic_ns: self.clock.start,
        }
    }

    /// Emulates until the time is over or a signal arrives; then returns the statistics.
    ///
    /// # Errors
    /// A device vanished or the log cannot be written.
    pub fn run(&mut self) -> Result<Value, EmulatorError> {
        let mut frame = vec![0; MAX_FRAME_BYTES];
        let mut watched = self.watched();
        let (mut last, mut turn) = (Time::ZERO, Time::ZERO);
        loop {
            let busy = turn.since(last) < 2 * TIMER_TICK;
            let early = (turn + TIMER_TICK).since(self.clock.now());
            if busy && !early.is_zero() {
                braid_device::wait(&mut [], Some(early))
                    .map_err(EmulatorError::system("wait for a tick"))?;
            }
            let now = self.clock.now();
            let due = self
                .links
                .iter()
                .filter_map(Link::poll_timeout)
                .chain(self.end)
                .min();
            braid_device::wait(&mut watched, due.map(|due| due.since(now)))
                .map_err(EmulatorError::system("wait for packets"))?;
            if watched[POLL_SIGNALS].revents != 0 {
                break;
            }
            (last, turn) = (turn, self.clock.now());
            for end in BOTH_ENDS {
                if watched[POLL_DEVICES + end].revents != 0 {
                    self.receive(end, &mut frame)?;
                }
            }
            self.deliver()?;
            if watched[POLL_CONTROL..].iter().any(|fd| fd.revents != 0) {
                self.serve();
                watched = self.watched();
            }
            if self.end.is_some_and(|end| self.clock.now() >= end) {
                break;
            }
        }
        if let Some(log) = &mut self.log {
            log.flush()?;
        }
        self.stats()
    }

    fn watched(&self) -> Vec<libc::pollfd> {
        let fixed = [
            self.signals.as_raw_fd(),
            self.taps[0].fd(),
            self.taps[1].fd(),
        ];
        let control = self.control.iter().flat_map(Server::fds);
        fixed
            .into_iter()
            .chain(control)
            .map(braid_device::watch)
            .collect()
    }

    /// Reads the kernel's frames from one device into the link that begins there.
    fn receive(&mut self, end: usize, frame: &mut [u8]) -> Result<(), EmulatorError> {
        for _ in 0..MAX_BATCH_FRAMES {
            let Some(frame) = self.taps[end].read(frame)? else {
                break;
            };
            let packet = self.pool.fill(frame);
            let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
            self.links[end].handle_packet(self.clock.now(), len, packet);
        }
        Ok(())
    }

    /// Writes all packets that are due, and recycles lost ones.
    fn deliver(&mut self) -> Result<(), EmulatorError> {
        for end in BOTH_ENDS {
            loop {
                let now = self.clock.now();
                let Some(output) = self.links[end].poll_output(now) else {
                    break;
                };
                let mut written = None;
                if output.fate == Fate::Delivered {
                    self.late[end].record(now.since(output.due));
                    written = Some(now);
                    if !self.taps[1 - end].write(&output.packet)? {
                        self.refused[end] += 1;
                    }
                }
                if let Some(log) = &mut self.log {
                    log.line(["up", "down"][end], &output, written)?;
                }
                self.pool.recycle(output.packet);
            }
        }
        Ok(())
    }

    fn serve(&mut self) {
        let Some(mut server) = self.control.take() else {
            return;
        };
        server.serve(|request| self.answer(request));
        self.control = Some(server);
    }

    fn answer(&mut self, request: Request) -> Result<Value, EmulatorError> {
        match request {
            Request::Set(Change {
                direction,
                settings,
            }) => {
                if settings == Settings::default() {
                    return Err(EmulatorError::NothingToSet);
                }
                // Both are computed before either is changed: all or nothing.
                let change = |end: usize| settings.applied_to(self.links[end].config());
                let configs: [Option<Config>; 2] = match direction {
                    Direction::Up => [Some(change(0)?), None],
                    Direction::Down => [None, Some(change(1)?)],
                    Direction::Both => [Some(change(0)?), Some(change(1)?)],
                };
                let now = self.clock.now();
                for (link, config) in self.links.iter_mut().zip(configs) {
                    if let Some(config) = config {
                        link.configure(now, config);
                    }
                }
                Ok(json!({ "ok": true }))
            }
            Request::Blackhole(hole) => {
                for end in BOTH_ENDS {
                    let other = [Direction::Down, Direction::Up][end];
                    if hole.direction != other {
                        self.links[end].set_black_hole(hole.on);
                    }
                }
                Ok(json!({ "ok": true }))
            }
            Request::Stats {} => self.stats(),
        }
    }

    fn stats(&mut self) -> Result<Value, EmulatorError> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|errno| EmulatorError::System {
            step: "read CPU time",
            source: errno.into(),
        })?;
        let cpu = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        let seconds = self.clock.now().since(Time::ZERO).as_secs_f64();
        Ok(json!({ "stats": {
            "seconds": seconds,
            "cpu_seconds": cpu as f64 / 1e6,
            "real_time": self.real_time,
            "up": self.direction_stats(0)?,
            "down": self.direction_stats(1)?,
        }}))
    }

    /// Returns the statistics of one direction: the link's counters, the kernel's drops before and
    /// after it, and the lateness of written packets.
    fn direction_stats(&mut self, end: usize) -> Result<Value, EmulatorError> {
        let counters = serde_json::to_value(self.links[end].stats()).map_err(|error| {
            EmulatorError::System {
                step: "write JSON",
                source: error.into(),
            }
        })?;
        let micros = |span: Duration| span.as_nanos() as f64 / 1e3;
        let late = &self.late[end];
        Ok(json!({
            "packets": counters,
            "black_hole_on": self.links[end].black_hole(),
            "kernel_dropped_before": self.taps[end].kernel_drops()?,
            "device_refused": self.refused[end],
            "late_us": {
                "p50": micros(late.quantile(0.5)),
                "p99": micros(late.quantile(0.99)),
                "p999": micros(late.quantile(0.999)),
                "max": micros(late.max()),
            },
        }))
    }
}

/// Nanoseconds since the emulator started, on the monotonic clock.
#[derive(Debug)]
struct Clock {
    start: u64,
}

impl Clock {
    fn start() -> io::Result<Clock> {
        Ok(Clock {
            start: monotonic()?,
        })
    }

    fn now(&self) -> Time {
        // A clock that could be read once can be read again.
        Time::from_nanos(monotonic().map_or(0, |now| now.saturating_sub(self.start)))
    }
}

fn monotonic() -> io::Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    Ok(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns a descriptor that is readable once a signal has asked the emulator to end.
fn terminating_signals() -> io::Result<SignalFd> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block()?;
    Ok(SignalFd::with_flags(
        &signals,
        SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC,
    )?)
}
