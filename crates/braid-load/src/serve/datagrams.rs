//! UDP: echoes and counts datagrams, and reports the count.

use super::{BATCH_PAUSE, POLL_TIMEOUT_MS};
use crate::batch::Batch;
use crate::error::Error;
use crate::socket::{dropped_datagrams, enlarge_receive_buffer};
use crate::wire::{Datagram, Kind, LENGTH};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Datagrams per system call.
const BATCH: usize = 128;

/// The datagram sockets and their counts.
pub(super) struct Sink {
    sockets: Vec<UdpSocket>,
    /// Datagrams by run.
    counts: HashMap<u32, u64>,
}

impl Sink {
    /// Binds `port` on each of `addresses`: a socket bound to all of them would reply from the
    /// address that routing prefers, which may not be the requested one.
    pub(super) fn bind(addresses: &[IpAddr], port: u16) -> Result<Sink, Error> {
        let bind = |&address: &IpAddr| {
            let explain = |e| Error::new(format!("bind UDP port {port} of {address}"), e);
            let socket = UdpSocket::bind((address, port)).map_err(explain)?;
            enlarge_receive_buffer(&socket)?;
            Ok(socket)
        };
        let sockets = addresses.iter().map(bind).collect::<Result<_, _>>()?;
        Ok(Sink {
            sockets,
            counts: HashMap::new(),
        })
    }

    /// Serves until `stop`; returns how many datagrams full socket buffers dropped.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<u64, Error> {
        let sockets = std::mem::take(&mut self.sockets);
        let mut batch = Batch::unconnected(BATCH, LENGTH);
        while !stop.load(Ordering::Acquire) {
            let mut fds: Vec<PollFd> = sockets
                .iter()
                .map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN))
                .collect();
            poll(&mut fds, PollTimeout::from(POLL_TIMEOUT_MS))
                .map_err(|e| Error::new("wait for datagrams", e.into()))?;
            let ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
            for (socket, _) in sockets.iter().zip(ready).filter(|(_, ready)| *ready) {
                self.drain(socket, &mut batch)?;
            }
            std::thread::sleep(BATCH_PAUSE);
        }
        sockets
            .iter()
            .map(|s| dropped_datagrams(s).map(u64::from))
            .sum()
    }

    /// Takes all datagrams waiting at `socket`.
    fn drain(&mut self, socket: &UdpSocket, batch: &mut Batch) -> Result<(), Error> {
        loop {
            let count = match batch.receive(socket) {
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(Error::new("receive datagrams", e)),
            };
            for index in 0..count {
                self.handle(socket, batch, index);
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Counts or answers one datagram.
    fn handle(&mut self, socket: &UdpSocket, batch: &mut Batch, index: usize) {
        let Some(datagram) = Datagram::parse(batch.received(index)) else {
            return;
        };
        let counted = self.counts.entry(datagram.run).or_default();
        match datagram.kind {
            Kind::Count => {
                *counted += 1;
                return;
            }
            Kind::Echo => {}
            Kind::Query => {
                let answer = Datagram {
                    number: *counted,
                    ..datagram
                };
                batch.datagram_mut(index).copy_from_slice(&answer.bytes());
            }
        }
        // A reply that cannot be sent counts as lost at the client.
        let _ = batch.reply(socket, index);
    }
}
