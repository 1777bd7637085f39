//! Many datagrams per system call: `sendmmsg` and `recvmmsg` over buffers allocated once.
//!
//! Only here in this crate does the kernel get pointers. A batch owns its bytes, the names and
//! vectors that go with them, and the headers that point at all three; none of them moves or grows.

use std::io;
use std::os::fd::AsRawFd;

/// Datagrams of equal length and the kernel's description of them.
pub(crate) struct Batch {
    bytes: Box<[u8]>,
    stride: usize,
    /// `headers` points at these, so they must live as long. Empty on connected sockets.
    names: Box<[libc::sockaddr_storage]>,
    _vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

impl Batch {
    /// Returns `count` datagrams of `stride` zero bytes each, for a connected socket.
    pub(crate) fn connected(count: usize, stride: usize) -> Batch {
        Batch::new(count, stride, 0)
    }

    /// The same for a socket that receives from any peer and replies: peers' addresses are kept.
    pub(crate) fn unconnected(count: usize, stride: usize) -> Batch {
        Batch::new(count, stride, count)
    }

    fn new(count: usize, stride: usize, names: usize) -> Batch {
        let mut bytes = vec![0; count * stride].into_boxed_slice();
        // SAFETY: all zeros is a valid sockaddr_storage: no family, no address.
        let no_name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut names = vec![no_name; names].into_boxed_slice();
        let mut vectors: Box<[libc::iovec]> = bytes
            .chunks_exact_mut(stride)
            .map(|chunk| libc::iovec {
                iov_base: chunk.as_mut_ptr().cast(),
                iov_len: stride,
            })
            .collect();
        let mut headers: Box<[libc::mmsghdr]> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all zeros is a valid mmsghdr: no name, no control data, no flags.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        for (header, name) in headers.iter_mut().zip(&mut names) {
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
        }
        Batch {
            bytes,
            stride,
            names,
            _vectors: vectors,
            headers,
        }
    }

    /// Returns the bytes of datagram `index`.
    pub(crate) fn datagram_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[index * self.stride..][..self.stride]
    }

    /// Sends the first `count` datagrams on a connected socket; returns how many the kernel
    /// accepted.
    pub(crate) fn send(&mut self, socket: &impl AsRawFd, count: usize) -> io::Result<usize> {
        let count = count.min(self.headers.len());
        // SAFETY: what the headers point at is owned by `self`, which is borrowed for the call.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                0,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives available datagrams without waiting; returns how many. Datagrams longer than the
    /// stride are truncated.
    pub(crate) fn receive(&mut self, socket: &impl AsRawFd) -> io::Result<usize> {
        for header in self.headers.iter_mut().take(self.names.len()) {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
        }
        // SAFETY: as in `send`; the kernel writes no more than the lengths given beside the pointers.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the bytes of datagram `index` as last received.
    pub(crate) fn received(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.stride..][..self.headers[index].msg_len as usize]
    }

    /// Sends datagram `index`, in its current state and at full stride, to the peer that it last
    /// came from.
    pub(crate) fn reply(&self, socket: &impl AsRawFd, index: usize) -> io::Result<()> {
        // SAFETY: as in `send`; the name is the one the kernel wrote.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &self.headers[index].msg_hdr, 0) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
