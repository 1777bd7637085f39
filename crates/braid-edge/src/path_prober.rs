//! The path prober: sends probes over all layer-3 paths, takes their replies, and applies plans.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use braid_core::Time;
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, Socket, Type};

use crate::Error;
use crate::driver::{MAX_QUEUED_REPLIES, ProbeReply};
use crate::l3_paths::{L3Path, L3Paths};
use crate::l3_planner::{Plan, Planner};
use crate::path_monitor::PROBE_INTERVAL;
use crate::probe;
use crate::shared::PROBE_PORT;

/// Probes all layer-3 paths and plans by the replies.
pub struct PathProber {
    planner: Planner,
    /// Socket and destination of each path's probes, by tag.
    sockets: BTreeMap<u16, (Socket, SocketAddr)>,
    random: SystemRandom,
    origin: Instant,
}

impl PathProber {
    pub fn new(l3_paths: L3Paths) -> Result<PathProber, Error> {
        let mut sockets = BTreeMap::new();
        for path in l3_paths.edges.iter().flat_map(|edge| &edge.paths) {
            let probe_socket = probe_socket(path).map_err(|source| {
                let from = probe::probe_address(path.local);
                Error::system(
                    format!("sending probes from {from} port {PROBE_PORT}"),
                    source,
                )
            })?;
            sockets.insert(path.tag, probe_socket);
        }
        Ok(PathProber {
            planner: Planner::new(Time::ZERO, l3_paths),
            sockets,
            random: SystemRandom::new(),
            origin: Instant::now(),
        })
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.origin)
    }

    /// Runs until the channel of replies is closed. `follow` applies a plan and returns false if it was
    /// refused; such a plan is made again.
    pub fn run(mut self, answers: &Receiver<ProbeReply>, mut follow: impl FnMut(Plan) -> bool) {
        let mut next = Instant::now();
        loop {
            // Queued replies arrived in time, however late they are read. The limit guards against a flood.
            for answer in answers.try_iter().take(MAX_QUEUED_REPLIES) {
                self.handle_reply(answer);
            }
            let now = Instant::now();
            if now >= next {
                self.send_probes(now);
                // After a delay of this thread missed probes are not sent in a burst.
                next = (next + PROBE_INTERVAL).max(now);
            }
            self.planner.handle_timeout(self.time(now));
            if let Some(plan) = self.planner.poll_plan(self.time(now))
                && !follow(plan)
            {
                self.planner.handle_plan_rejected();
            }
            let wait = next.saturating_duration_since(Instant::now());
            match answers.recv_timeout(wait.max(Duration::from_micros(1))) {
                Ok(answer) => self.handle_reply(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle_reply(&mut self, reply: ProbeReply) {
        if let ProbeReply::Layer3 { tag, nonce, at } = reply {
            self.planner.handle_reply(self.time(at), tag, nonce);
        }
    }

    fn send_probes(&mut self, now: Instant) {
        let now = self.time(now);
        for (tag, (socket, to)) in &self.sockets {
            let mut nonce = [0; 8];
            if self.random.fill(&mut nonce).is_err() {
                tracing::warn!("no random numbers: no probes");
                return;
            }
            let nonce = u64::from_ne_bytes(nonce);
            self.planner.handle_probe_sent(now, *tag, nonce);
            // A probe that cannot be sent counts as unanswered.
            if let Err(error) = socket.send_to(&probe::request(nonce), &(*to).into()) {
                tracing::debug!(tag, %error, "a probe was not sent");
            }
        }
    }
}

/// Returns a socket that sends from a path's address, even if this machine does not have it, and the
/// destination. Routes choose the device.
fn probe_socket(path: &L3Path) -> std::io::Result<(Socket, SocketAddr)> {
    let port = PROBE_PORT as u16;
    let (from, to) = (
        SocketAddr::new(probe::probe_address(path.local), port),
        SocketAddr::new(probe::probe_address(path.remote), port),
    );
    let socket = Socket::new(Domain::for_address(from), Type::DGRAM, Some(Protocol::UDP))?;
    // Paths may share an address; replies do not arrive at sockets.
    socket.set_reuse_address(true)?;
    match from {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_nonblocking(true)?;
    socket.bind(&from.into())?;
    Ok((socket, to))
}
