//! Progress of a TCP connection, as its socket counts it.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Bytes and segments of a connection since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpProgress {
    /// Bytes of data that the other end has acknowledged.
    pub acked_bytes: u64,
    /// Segments with data that the other end has received, as far as its acknowledgements say, out of order ones too.
    pub delivered_segments: u32,
    /// Bytes of data that came in order.
    pub received_bytes: u64,
    /// Segments with data that came, out of order and repeated ones too.
    pub received_segments: u32,
    /// Segments sent, those without data too.
    pub sent_segments: u32,
    /// Segments that came, those without data too.
    pub all_received_segments: u32,
    /// Bytes of data sent, repeated ones too.
    pub sent_bytes: u64,
    /// Round trip that acknowledgements of what was sent have shown, smoothed; `None` before the first one.
    pub sent_rtt: Option<Duration>,
    /// Round trip that data which came has shown, smoothed; `None` if none has.
    pub received_rtt: Option<Duration>,
    /// Data of a full segment that is sent, bytes.
    pub sent_mss: u32,
    /// Data of the largest segment that came, bytes; 536 at first.
    pub received_mss: u32,
    /// True if segments carry timestamps (RFC 7323).
    pub has_timestamps: bool,
}

/// `struct tcp_info` up to the last member that is read (`linux/tcp.h`); older kernels leave the end of it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    state_to_probes: [u8; 4],
    backoff: u8,
    options: u8,
    scales: [u8; 2],
    rto_and_ato: [u32; 2],
    snd_mss: u32,
    rcv_mss: u32,
    unacked_to_rcv_ssthresh: [u32; 11],
    rtt_us: u32,
    rttvar_to_reordering: [u32; 5],
    rcv_rtt_us: u32,
    rcv_space_to_max_pacing_rate: [u32; 6],
    acked_bytes: u64,
    received_bytes: u64,
    sent_segments: u32,
    all_received_segments: u32,
    notsent_and_min_rtt: [u32; 2],
    received_segments: u32,
    sent_data_segments: u32,
    rates_and_times: [u64; 4],
    delivered_segments: u32,
    delivered_ce: u32,
    sent_bytes: u64,
}

/// `TCPI_OPT_TIMESTAMPS` of `linux/tcp.h`.
const OPTION_TIMESTAMPS: u8 = 1;

/// Returns the progress of a connection.
///
/// # Errors
/// It is no TCP socket, or the kernel is older than 4.19.
pub fn tcp_progress(socket: &impl AsFd) -> io::Result<TcpProgress> {
    let mut info = MaybeUninit::<TcpInfo>::zeroed();
    let size = mem::size_of::<TcpInfo>();
    let mut length = libc::socklen_t::try_from(size).expect("a small structure");
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    super::check(result)?;
    if (length as usize) < size {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel does not count the bytes of a TCP connection",
        ));
    }
    // SAFETY: it was zeroed, and each bit pattern is valid for integers.
    let info = unsafe { info.assume_init() };
    let known = |us: u32| (us > 0).then(|| Duration::from_micros(us.into()));
    Ok(TcpProgress {
        acked_bytes: info.acked_bytes,
        delivered_segments: info.delivered_segments,
        received_bytes: info.received_bytes,
        received_segments: info.received_segments,
        sent_segments: info.sent_segments,
        all_received_segments: info.all_received_segments,
        sent_bytes: info.sent_bytes,
        sent_mss: info.snd_mss,
        received_mss: info.rcv_mss,
        sent_rtt: known(info.rtt_us),
        received_rtt: known(info.rcv_rtt_us),
        has_timestamps: info.options & OPTION_TIMESTAMPS != 0,
    })
}

/// Has a socket that is not yet connected offer the other end no more than so many bytes at once.
///
/// # Errors
/// It is no TCP socket.
pub fn limit_window(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).map_err(io::Error::other)?;
    let size = mem::size_of_val(&bytes);
    // SAFETY: the value is valid for its length.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const bytes).cast(),
            libc::socklen_t::try_from(size).expect("a small integer"),
        )
    };
    super::check(done).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn both_ends_count_the_same_bytes() {
        assert_eq!(mem::offset_of!(TcpInfo, snd_mss), 16);
        assert_eq!(mem::offset_of!(TcpInfo, rtt_us), 68);
        assert_eq!(mem::offset_of!(TcpInfo, rcv_rtt_us), 92);
        assert_eq!(mem::offset_of!(TcpInfo, acked_bytes), 120);
        assert_eq!(mem::offset_of!(TcpInfo, received_segments), 152);
        assert_eq!(mem::offset_of!(TcpInfo, delivered_segments), 192);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 3000]).unwrap();
        far.read_exact(&mut [0; 3000]).unwrap();
        // An answer carries the acknowledgement of what was read before.
        far.write_all(&[1; 10]).unwrap();
        near.read_exact(&mut [0; 10]).unwrap();
        let (sent, received) = (tcp_progress(&near).unwrap(), tcp_progress(&far).unwrap());
        assert_eq!(
            (sent.acked_bytes, sent.sent_bytes),
            (3001, 3000),
            "the SYN counts"
        );
        assert_eq!(received.received_bytes, 3000);
        assert!(
            sent.sent_rtt
                .is_some_and(|rtt| rtt < Duration::from_secs(1))
        );
        assert!(sent.delivered_segments >= 1 && received.received_segments >= 1);
        assert!(received.all_received_segments > received.received_segments);
        assert_eq!(sent.received_bytes, 10);
    }

    #[test]
    fn other_sockets_are_refused() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_progress(&socket).is_err());
    }
}
