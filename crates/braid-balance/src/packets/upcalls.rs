//! Packets that the programs pass to the daemon: reading the ring, and sending held fragments on.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{MapData, RingBuf};
use braid_packet::{Packet, Transport, build, checksum};

use crate::generated::{
    MAX_UPCALL_BYTES, REFUSAL_QUOTE_BYTES, UPCALL_DNS, UPCALL_FRAGMENT, UPCALL_REFUSED,
};
use crate::maps::layout::{FragmentKey, to_ip};
use crate::maps::tables::{self, Tables, found, refused};
use crate::packets::fragments::{Fragments, HeldFragment};
use crate::packets::inject::Injector;
use crate::pins::Pins;
use crate::{Error, KernelTime, Protocol};

/// Offsets in `struct upcall` of `bpf/layout.h`.
const KEY: usize = 8;
const LENGTH: usize = KEY + size_of::<FragmentKey>();
const KIND: usize = LENGTH + 2;
const START: usize = LENGTH + 4;
const BYTES: usize = START + 4;

/// A packet or message that a program passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Upcall {
    /// A DNS answer to one of our flows, from the resolver that the flow asked last.
    DnsAnswer {
        /// The resolver.
        from: SocketAddr,
        /// The client inside that asked.
        to: IpAddr,
        /// The DNS message as received: it may contain anything.
        payload: Vec<u8>,
    },
    /// A later fragment that came before its first one.
    Fragment(HeldFragment),
    /// A packet that was refused; its sender gets an ICMP error, see
    /// [`Datapath::send_icmp_error`](crate::Datapath::send_icmp_error).
    Refused(RefusedPacket),
}

/// A packet that was refused and whose sender gets an ICMP error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPacket {
    /// Its source, inside.
    pub from: IpAddr,
    /// Its destination.
    pub to: IpAddr,
    /// Its ingress device; 0: the host has sent it.
    pub device: u32,
    /// Its transport protocol.
    pub protocol: Protocol,
    /// Its beginning, from the IP header on.
    pub packet: Vec<u8>,
}

/// Maximum bytes of an IPv4 packet that an error about it quotes: 576 less its own headers (RFC
/// 1812 §4.3.2.3).
const MAX_QUOTE_BYTES_V4: usize = 548;

impl RefusedPacket {
    /// Returns the ICMP error for its sender; `None`: the sender gets none.
    fn answer(&self) -> Option<Vec<u8>> {
        if self.protocol.is_of_links() || self.from.is_unspecified() {
            return None;
        }
        let most = match self.from {
            IpAddr::V4(_) => MAX_QUOTE_BYTES_V4,
            IpAddr::V6(_) => REFUSAL_QUOTE_BYTES as usize,
        };
        let quote = &self.packet[..self.packet.len().min(most)];
        Some(build::prohibited(self.to, self.from, quote))
    }
}

/// Tells the sender of a refused packet by ICMP.
pub(crate) fn send_icmp_error(injector: &Injector, refused: &RefusedPacket) -> Result<bool, Error> {
    match refused.answer() {
        Some(error) => injector.inwards(refused.device, refused.from, &error),
        None => Ok(false),
    }
}

/// The ring of upcalls. Its descriptor is readable while there are any.
pub struct Upcalls {
    ring: RingBuf<MapData>,
}

impl Upcalls {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        let ring = tables::typed(pins, "upcalls")?;
        Ok(Self { ring })
    }

    /// Takes the next upcall; `None`: there is none now.
    #[allow(clippy::should_implement_trait, reason = "there may be more later")]
    pub fn next(&mut self) -> Option<Upcall> {
        loop {
            let record = self.ring.next()?;
            if let Some(upcall) = read(&record) {
                return Some(upcall);
            }
        }
    }
}

impl AsFd for Upcalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Reads a record; `None`: of an unknown kind, or the packet cannot be read.
fn read(record: &[u8]) -> Option<Upcall> {
    let half = |at: usize| Some(u16::from_ne_bytes(record.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let at = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    let length = usize::from(half(LENGTH)?).min(MAX_UPCALL_BYTES as usize);
    let packet = record.get(BYTES..BYTES + length)?;
    let key = key(record.get(KEY..LENGTH)?, word(KEY + 32)?)?;
    match u32::from(*record.get(KIND)?) {
        UPCALL_DNS => {
            let headers = Packet::parse(packet).ok()?;
            let Transport::Udp { source, .. } = headers.transport else {
                return None;
            };
            Some(Upcall::DnsAnswer {
                from: SocketAddr::new(headers.ip.source, source),
                to: to_ip(key.dest),
                payload: packet.get(word(START)? as usize..)?.to_vec(),
            })
        }
        UPCALL_FRAGMENT => Some(Upcall::Fragment(HeldFragment {
            key,
            packet: packet.to_vec(),
            at: KernelTime::from_nanos(at),
        })),
        UPCALL_REFUSED => Some(Upcall::Refused(RefusedPacket {
            from: to_ip(key.source),
            to: to_ip(key.dest),
            device: key.id,
            protocol: Protocol(key.protocol),
            packet: packet.to_vec(),
        })),
        _ => None,
    }
}

fn key(bytes: &[u8], id: u32) -> Option<FragmentKey> {
    Some(FragmentKey {
        source: bytes.get(..16)?.try_into().ok()?,
        dest: bytes.get(16..32)?.try_into().ok()?,
        id,
        protocol: *bytes.get(36)?,
        inbound: *bytes.get(37)?,
        realm: *bytes.get(38)?,
        unused: [0],
    })
}

pub(crate) fn snoop_dns(tables: &mut Tables, wanted: bool) -> Result<(), Error> {
    let failed = |error| refused("map settings", &error);
    let mut settings = tables.settings.get(&0, 0).map_err(failed)?;
    if settings.snoops_dns == u8::from(wanted) {
        return Ok(());
    }
    settings.snoops_dns = wanted.into();
    tables.settings.set(0, settings, 0).map_err(failed)
}

/// Sends held fragments of packets whose first fragment has been translated. Outbound ones go
/// through the program, which translates them now; inbound ones are translated here.
pub(crate) fn reinject(
    tables: &Tables,
    injector: &Injector,
    held: &mut Fragments,
) -> Result<usize, Error> {
    let mut sent = 0;
    for (fragment, note) in held.take(|key| found(tables.fragments.get(key, 0)))? {
        sent += usize::from(if fragment.is_inbound() {
            let inside = to_ip(note.translated);
            let packet = translate(fragment.packet, inside).ok_or_else(|| {
                Error::system("translating a fragment", io::ErrorKind::InvalidData.into())
            })?;
            injector.inwards(0, inside, &packet)?
        } else {
            injector.outwards(&fragment.packet)?
        });
    }
    Ok(sent)
}

/// Replaces the destination of a packet that has no transport header.
fn translate(mut packet: Vec<u8>, to: IpAddr) -> Option<Vec<u8>> {
    match to {
        IpAddr::V4(to) => {
            packet.get_mut(16..20)?.copy_from_slice(&to.octets());
            let header = usize::from(packet[0] & 0xf) * 4;
            packet[10..12].fill(0);
            let sum = checksum::of(packet.get(..header)?);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddr::V6(to) => packet.get_mut(24..40)?.copy_from_slice(&to.octets()),
    }
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_the_ring_is_read_without_panic() {
        for length in 0..BYTES + 64 {
            for kind in 0..4 {
                let mut record = vec![0xff; length];
                if let Some(byte) = record.get_mut(KIND) {
                    *byte = kind;
                }
                let upcall = read(&record);
                assert!(upcall.is_none(), "{upcall:?}: lengths that lie");
            }
        }
    }

    #[test]
    fn a_refusal_quotes_what_it_is_about_as_far_as_it_may() {
        for (from, to, most, code) in [
            (
                IpAddr::from([10, 1, 0, 2]),
                IpAddr::from([192, 0, 2, 1]),
                576,
                (3, 13),
            ),
            (
                IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, 2]),
                IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
                1280,
                (1, 1),
            ),
        ] {
            let packet = build::packet(from, to, 136, vec![7; 1400], None);
            let refused = RefusedPacket {
                from,
                to,
                device: 0,
                protocol: Protocol(136),
                packet: packet[..1232].to_vec(),
            };
            let answer = refused.answer().expect("an answer");
            assert_eq!(answer.len(), most);
            let headers = Packet::parse(&answer).expect("a whole packet");
            assert!(headers.checksums_hold());
            assert_eq!((headers.ip.source, headers.ip.dest), (to, from));
            let at = if from.is_ipv4() { 20 } else { 40 };
            assert_eq!((answer[at], answer[at + 1]), code);
            assert_eq!(answer[at + 8..], packet[..most - at - 8]);
            let ospf = RefusedPacket {
                protocol: Protocol(89),
                ..refused
            };
            assert_eq!(ospf.answer(), None);
        }
    }

    #[test]
    fn a_translated_fragment_has_a_right_header() {
        let from: IpAddr = [192, 0, 2, 1].into();
        let packet =
            braid_packet::build::packet(from, [203, 0, 113, 2].into(), 17, vec![1; 9], None);
        let inside: IpAddr = [10, 1, 0, 2].into();
        let translated = translate(packet, inside).expect("a whole header");
        assert_eq!(checksum::of(&translated[..20]), 0);
        assert_eq!(translated[16..20], [10, 1, 0, 2]);
        assert_eq!(translate(vec![0x45; 12], inside), None);
    }
}
