//! What follows layer-3 paths: asks over each, hears what comes back, and has plans followed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use braid_core::Time;
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, Socket, Type};

use crate::Error;
use crate::driver::{ANSWERS, Answer};
use crate::plan::{Plan, Planner};
use crate::probe;
use crate::shared::PROBE_PORT;
use crate::watch::INTERVAL;
use crate::ways::{Way, Ways};

/// Asks over all paths and hands on what is planned.
pub struct Keeper {
    planner: Planner,
    /// What probes of each path are sent with, and where to.
    doors: BTreeMap<u16, (Socket, SocketAddr)>,
    chance: SystemRandom,
    origin: Instant,
}

impl Keeper {
    pub fn new(ways: Ways) -> Result<Keeper, Error> {
        let mut doors = BTreeMap::new();
        for way in ways.edges.iter().flat_map(|edge| &edge.paths) {
            let door = door(way).map_err(|source| {
                let from = probe::address(way.here);
                Error::system(
                    format!("sending probes from {from} port {PROBE_PORT}"),
                    source,
                )
            })?;
            doors.insert(way.tag, door);
        }
        Ok(Keeper {
            planner: Planner::new(Time::ZERO, ways),
            doors,
            chance: SystemRandom::new(),
            origin: Instant::now(),
        })
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.origin)
    }

    /// Goes on until nobody brings answers any more. `follow` says whether a plan is followed: one
    /// that is not is made again.
    pub fn run(mut self, answers: &Receiver<Answer>, mut follow: impl FnMut(Plan) -> bool) {
        let mut next = Instant::now();
        loop {
            // What waits was in time, however late it is looked at; so many at once, lest a flood keep us.
            for answer in answers.try_iter().take(ANSWERS) {
                self.take(answer);
            }
            let now = Instant::now();
            if now >= next {
                self.ask(now);
                // One that was kept from running does not make up for it by a burst.
                next = (next + INTERVAL).max(now);
            }
            self.planner.handle_timeout(self.time(now));
            if let Some(plan) = self.planner.poll_plan(self.time(now))
                && !follow(plan)
            {
                self.planner.handle_refused();
            }
            let wait = next.saturating_duration_since(Instant::now());
            match answers.recv_timeout(wait.max(Duration::from_micros(1))) {
                Ok(answer) => self.take(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, Answer { tag, nonce, at }: Answer) {
        self.planner.handle_answer(self.time(at), tag, nonce);
    }

    fn ask(&mut self, now: Instant) {
        let now = self.time(now);
        for (tag, (socket, to)) in &self.doors {
            let mut nonce = [0; 8];
            if self.chance.fill(&mut nonce).is_err() {
                tracing::warn!("no random numbers: no probes");
                return;
            }
            let nonce = u64::from_ne_bytes(nonce);
            self.planner.handle_asked(now, *tag, nonce);
            // One that cannot be sent will not be answered: nothing else is to be said of it.
            if let Err(error) = socket.send_to(&probe::question(nonce), &(*to).into()) {
                tracing::debug!(tag, %error, "a probe was not sent");
            }
        }
    }
}

/// A socket that sends from a path's address, whether or not it is one of this machine, where routes say.
fn door(way: &Way) -> std::io::Result<(Socket, SocketAddr)> {
    let port = PROBE_PORT as u16;
    let (from, to) = (
        SocketAddr::new(probe::address(way.here), port),
        SocketAddr::new(probe::address(way.there), port),
    );
    let socket = Socket::new(Domain::for_address(from), Type::DGRAM, Some(Protocol::UDP))?;
    // Paths may share an address; answers do not come to sockets.
    socket.set_reuse_address(true)?;
    match from {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_nonblocking(true)?;
    socket.bind(&from.into())?;
    Ok((socket, to))
}
