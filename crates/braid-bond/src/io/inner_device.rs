//! The TUN device with segmentation and coalescing: inner packets between the kernel and the
//! tunnel.

use std::io::IoSlice;
use std::os::fd::RawFd;

use super::offload::{Coalescer, VNET_HEADER, segment};
use super::{BondError, Tun, TunStatus};

/// Super-packets read before other work gets its turn: at most 0.5 MB.
const MAX_READS: usize = 8;

/// Size of the longest super-packet and its header.
const BUFFER_SIZE: usize = VNET_HEADER + (1 << 16) + 64;

/// The TUN device with its buffers.
#[derive(Debug)]
pub(super) struct InnerDevice<P> {
    tun: Tun,
    coalescer: Coalescer<P>,
    buffer: Vec<u8>,
    status: TunStatus,
}

impl<P: AsRef<[u8]>> InnerDevice<P> {
    pub fn new(tun: Tun) -> Self {
        InnerDevice {
            coalescer: Coalescer::new(tun.offload_support()),
            tun,
            buffer: vec![0; BUFFER_SIZE],
            status: TunStatus::default(),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.tun.fd()
    }

    pub fn status(&self) -> TunStatus {
        self.status
    }

    /// Reads packets from the kernel and passes each to `each`, which may change it. Returns true
    /// if there may be more.
    pub fn read(&mut self, mut each: impl FnMut(&mut [u8])) -> Result<bool, BondError> {
        for _ in 0..MAX_READS {
            let Some((header, packet)) = self.tun.read(&mut self.buffer)? else {
                return Ok(false);
            };
            let read = &mut self.status.read;
            let done = segment(header, packet, |packet| {
                read.add(1, packet.len() as u64);
                each(packet);
            });
            if done.is_err() {
                self.status.refused += 1;
            }
        }
        Ok(true)
    }

    /// Writes a packet to the kernel, at [`InnerDevice::flush`] at the latest.
    pub fn write(&mut self, packet: P) -> Result<(), BondError> {
        let bytes = packet.as_ref().len() as u64;
        self.status.written.add(1, bytes);
        self.with_coalescer(|coalescer, write| coalescer.push(packet, write))
    }

    pub fn flush(&mut self) -> Result<(), BondError> {
        self.with_coalescer(|coalescer, write| coalescer.flush(write))
    }

    fn with_coalescer(
        &mut self,
        act: impl FnOnce(&mut Coalescer<P>, &mut dyn FnMut(&[IoSlice<'_>])),
    ) -> Result<(), BondError> {
        let mut result = Ok(());
        let (tun, refused) = (&self.tun, &mut self.status.refused);
        act(&mut self.coalescer, &mut |parts| match tun.write(parts) {
            Ok(true) => {}
            Ok(false) => *refused += 1,
            Err(error) => result = Err(error),
        });
        result
    }
}
