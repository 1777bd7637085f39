//! Copies of the packets of one device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::check;

/// Bytes that the kernel keeps for packets that nobody has read yet.
const BUFFER_BYTES: libc::c_int = 1 << 20;

/// Type of packets that the machine sends (`linux/if_packet.h`).
const PACKET_OUTGOING: u8 = 4;

/// One instruction of a filter of classic BPF.
pub type Instruction = libc::sock_filter;

/// A socket that gets a copy of each packet of a device, in both directions, that its filter passes. Packets begin with
/// their IP header.
#[derive(Debug)]
pub struct PacketTap(OwnedFd);

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device has received it.
    In,
    /// The machine sends it by the device.
    Out,
}

impl PacketTap {
    /// Opens one without a device, which gets nothing.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open() -> io::Result<PacketTap> {
        PacketTap::with_buffer(BUFFER_BYTES)
    }

    fn with_buffer(bytes: libc::c_int) -> io::Result<PacketTap> {
        let socket = packet_socket(libc::SOCK_DGRAM)?;
        // As much as asked for, whatever the system allows programs without privileges.
        set_option(socket.as_fd(), libc::SO_RCVBUFFORCE, &bytes)?;
        Ok(PacketTap(socket))
    }

    /// Returns another handle of the same socket.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn try_clone(&self) -> io::Result<PacketTap> {
        self.0.try_clone().map(PacketTap)
    }

    /// Gets the packets of the device with this index that the filter passes from now on.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses the filter.
    pub fn follow(&self, ifindex: u32, filter: &[Instruction]) -> io::Result<()> {
        self.set_filter(filter)?;
        let address = link_address(ifindex)?;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is valid for its length.
        let bound = unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), length) };
        check(bound).map(|_| ())
    }

    /// Gets no packets from now on. A socket that has had a device always has one, so a filter drops them.
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub fn ignore(&self) -> io::Result<()> {
        self.set_filter(&[Instruction {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        }])
    }

    fn set_filter(&self, filter: &[Instruction]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len()).map_err(io::Error::other)?,
            // The kernel only reads it.
            filter: filter.as_ptr().cast_mut(),
        };
        set_option(self.as_fd(), libc::SO_ATTACH_FILTER, &program)
    }

    /// Returns the next packet's direction and length; the packet is in `buffer`, which cuts off what is too long.
    /// `None`: there is none yet.
    pub fn next(&self, buffer: &mut [u8]) -> Option<(Direction, usize)> {
        // SAFETY: all zero is a valid address of this kind.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: buffer and address are valid for their lengths.
        let read = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        let direction = match from.sll_pkttype {
            PACKET_OUTGOING => Direction::Out,
            _ => Direction::In,
        };
        usize::try_from(read).ok().map(|read| (direction, read))
    }
}

/// Opens a packet socket of a kind, which receives nothing until it is bound.
pub(super) fn packet_socket(kind: libc::c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes plain integers only.
    let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Returns the address of all packets of the device with this index.
pub(super) fn link_address(ifindex: u32) -> io::Result<libc::sockaddr_ll> {
    let ifindex = i32::try_from(ifindex).map_err(io::Error::other)?;
    // SAFETY: all zero is a valid address of this kind.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = ifindex;
    Ok(address)
}

impl AsFd for PacketTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PacketTap {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl PacketTap {
    /// Has the kernel tell when packets pass, for [`PacketTap::next_timed`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn note_times(&self) -> io::Result<()> {
        set_option::<libc::c_int>(self.as_fd(), libc::SO_TIMESTAMPNS, &1)
    }

    /// Returns the next packet as [`PacketTap::next`] does, with the time at which it passed the device, since the epoch.
    /// One without a time is passed over.
    pub fn next_timed(&self, buffer: &mut [u8]) -> Option<(Direction, usize, Duration)> {
        loop {
            // SAFETY: all zero is a valid address of this kind.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            // Words, so that the kernel's messages are aligned; room for a time and more.
            let mut control = [0_u64; 16];
            let mut part = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            // SAFETY: all zero is a valid header, which says that there is nothing.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_name = (&raw mut from).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control) as _;
            // SAFETY: address, buffer and control data are valid for their lengths.
            let read = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, 0) };
            let read = usize::try_from(read).ok()?;
            let direction = match from.sll_pkttype {
                PACKET_OUTGOING => Direction::Out,
                _ => Direction::In,
            };
            if let Some(at) = time_of(&header) {
                return Some((direction, read, at));
            }
        }
    }
}

/// Returns the time in the control data of a packet that was received.
fn time_of(header: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the header and its control data are as the kernel has written them.
    let message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    // SAFETY: it computes a length.
    let length = unsafe { libc::CMSG_LEN(size_of::<libc::timespec>() as libc::c_uint) };
    let is_time =
        (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
    if !is_time || message.cmsg_len as usize != length as usize {
        return None;
    }
    // SAFETY: the message holds a timespec, maybe unaligned.
    let time = unsafe {
        libc::CMSG_DATA(message)
            .cast::<libc::timespec>()
            .read_unaligned()
    };
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Counts the packets of a device that a filter passes.
///
/// It is a socket that nobody reads: once its buffer is full, which takes the kernel's least of it, the kernel copies
/// nothing more and counts on.
#[derive(Debug)]
pub struct PacketCounter {
    tap: PacketTap,
    counted: u64,
}

impl PacketCounter {
    /// Counts from now on, on the device with this index.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses the socket or the filter.
    pub fn start(ifindex: u32, filter: &[Instruction]) -> io::Result<PacketCounter> {
        let tap = PacketTap::with_buffer(0)?;
        tap.follow(ifindex, filter)?;
        Ok(PacketCounter { tap, counted: 0 })
    }

    /// Returns the number of packets so far.
    ///
    /// # Errors
    /// The kernel does not tell it.
    pub fn count(&mut self) -> io::Result<u64> {
        // SAFETY: all zero is a valid value of this kind.
        let mut since: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the value is valid for its length. The kernel counts from zero again after each call.
        check(unsafe {
            libc::getsockopt(
                self.tap.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut since).cast(),
                &raw mut length,
            )
        })?;
        // Packets without room in the buffer are in the first number, too.
        self.counted += u64::from(since.tp_packets);
        Ok(self.counted)
    }
}

fn set_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is valid for its length.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    check(done).map(|_| ())
}
