//! TCP SYNs from spoofed sources, as fast as possible: the load of an infected machine on its
//! gateway's flow table.

use crate::batch::Batch;
use crate::error::Error;
use crate::socket::raw_to;
use crate::target::parse_ports;
use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// An IPv4 header and a TCP header, both without options, in bytes.
const SYN_BYTES: usize = 40;

/// Packets per system call.
const BATCH: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct SynFloodArgs {
    /// Destination address of the SYNs
    #[arg(long, value_name = "ADDRESS")]
    to: Ipv4Addr,
    /// Destination ports, in turn
    #[arg(long, default_value = "80", value_parser = parse_ports, value_name = "PORTS")]
    ports: RangeInclusive<u16>,
    /// Network from which the sources are drawn
    #[arg(long, value_parser = parse_network, value_name = "ADDRESS/SYN_BYTES")]
    from: Network,
    /// SYNs to send
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Threads that send
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Longest run time, in seconds
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    seconds: f64,
    /// Seed of the sources
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Result of the flood.
#[derive(Debug, Serialize)]
pub(crate) struct SynFloodReport {
    sent: u64,
    seconds: f64,
    /// Sent per second.
    rate: f64,
}

/// An IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: u32,
    /// Bits of the host part.
    host_mask: u32,
}

impl Network {
    fn pick(self, rng: &mut SmallRng) -> Ipv4Addr {
        Ipv4Addr::from(self.address & !self.host_mask | rng.random::<u32>() & self.host_mask)
    }
}

/// Parses "10.64.0.0/16".
fn parse_network(text: &str) -> Result<Network, String> {
    let wrong = || format!("\"{text}\" is not a network, such as \"10.64.0.0/16\"");
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let length: u32 = length.parse().map_err(|_| wrong())?;
    let host_bits = 32_u32.checked_sub(length).ok_or_else(wrong)?;
    let host_mask = u32::MAX.checked_shr(32 - host_bits).unwrap_or(0);
    Ok(Network {
        address: address.into(),
        host_mask,
    })
}

/// Sends until the count or the time is used up.
pub(crate) fn run(args: &SynFloodArgs) -> Result<SynFloodReport, Error> {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.seconds);
    let threads = args.threads.max(1);
    let sent: Result<Vec<u64>, Error> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                let count = (n + 1) * args.count / threads - n * args.count / threads;
                scope.spawn(move || send(args, count, args.seed.wrapping_add(n), end))
            })
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("a worker never panics"))
            .collect()
    });
    let sent = sent?.iter().sum();
    let seconds = begin.elapsed().as_secs_f64();
    Ok(SynFloodReport {
        sent,
        seconds,
        rate: sent as f64 / seconds,
    })
}

/// Sends one thread's share; returns how many packets the kernel accepted.
fn send(args: &SynFloodArgs, count: u64, seed: u64, end: Instant) -> Result<u64, Error> {
    let socket = raw_to(SocketAddr::new(args.to.into(), 0))?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut batch = Batch::connected(BATCH, SYN_BYTES);
    let mut ports = args.ports.clone().cycle();
    let mut sent = 0;
    while sent < count && Instant::now() < end {
        let wanted = BATCH.min(usize::try_from(count - sent).unwrap_or(BATCH));
        for index in 0..wanted {
            let port = ports.next().unwrap_or(80);
            let packet = syn(
                args.from.pick(&mut rng),
                args.to,
                rng.random(),
                port,
                rng.random(),
            );
            batch.datagram_mut(index).copy_from_slice(&packet);
        }
        match batch.send(&socket, wanted) {
            Ok(taken) => sent += taken as u64,
            // The device's queue is full: this is the highest rate.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(e) => return Err(Error::new("send SYNs", e)),
        }
    }
    Ok(sent)
}

/// Builds a SYN; the kernel fills in the IP header's checksum and identification.
fn syn(
    from: Ipv4Addr,
    to: Ipv4Addr,
    from_port: u16,
    to_port: u16,
    sequence: u32,
) -> [u8; SYN_BYTES] {
    let mut packet = [0; SYN_BYTES];
    let (ip, tcp) = packet.split_at_mut(20);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(SYN_BYTES as u16).to_be_bytes());
    ip[6] = 0x40; // don't fragment
    ip[8] = 64;
    ip[9] = libc::IPPROTO_TCP as u8;
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    // RFC 9293 §3.1; port 0 is reserved.
    tcp[0..2].copy_from_slice(&from_port.max(1).to_be_bytes());
    tcp[2..4].copy_from_slice(&to_port.to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = 0x02;
    tcp[14..16].copy_from_slice(&64240_u16.to_be_bytes());
    let pseudo = [0, libc::IPPROTO_TCP as u8, 0, 20];
    let sum = checksum(ip[12..20].iter().chain(&pseudo).chain(tcp.iter()));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// RFC 1071 over an even number of bytes.
fn checksum<'a>(bytes: impl Iterator<Item = &'a u8>) -> u16 {
    let sum: u32 = bytes
        .enumerate()
        .map(|(i, &b)| {
            if i % 2 == 0 {
                u32::from(b) << 8
            } else {
                b.into()
            }
        })
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_checksum_is_right(from: u32, to: u32, from_port: u16, to_port: u16, sequence: u32) {
            let packet = syn(from.into(), to.into(), from_port, to_port, sequence);
            // A receiver sums the pseudo header and the segment, checksum included, and expects
            // zero.
            let pseudo = [0, 6, 0, 20];
            prop_assert_eq!(checksum(packet[12..20].iter().chain(&pseudo).chain(&packet[20..])), 0);
        }

        #[test]
        fn sources_stay_in_their_network(seed: u64) {
            let network = parse_network("10.64.0.0/16").unwrap();
            let source = network.pick(&mut SmallRng::seed_from_u64(seed));
            prop_assert_eq!(&source.octets()[..2], &[10, 64]);
        }
    }

    #[test]
    fn networks() {
        let network = |text| parse_network(text).map(|n| n.host_mask);
        assert_eq!(network("10.64.0.0/16"), Ok(0xffff));
        assert_eq!(network("0.0.0.0/0"), Ok(u32::MAX));
        assert_eq!(network("192.0.2.1/32"), Ok(0));
        for wrong in ["10.64.0.0", "10.64.0.0/33", "10.64/16", "/8", "::/0"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }
}
