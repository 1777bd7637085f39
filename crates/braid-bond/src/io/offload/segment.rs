//! Segmentation of super-packets into inner packets.

use thiserror::Error;

use super::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader, add, read16,
    read32, set_ip_length, tcp, udp, write16, write32,
};
use braid_packet::checksum;

/// Longest headers of a super-packet: IPv6 with extensions, TCP with options.
const MAX_HEADER_BYTES: usize = 256;

/// The virtio header does not match its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("super-packet whose header does not fit it")]
pub(in crate::io) struct Malformed;

/// Calls `each` with every segment of a super-packet, complete with lengths and checksums. Only
/// headers are copied: each is written before its own payload, over the end of the previous
/// payload, which is no longer needed.
pub(in crate::io) fn segment(
    header: VnetHeader,
    packet: &mut [u8],
    mut each: impl FnMut(&mut [u8]),
) -> Result<(), Malformed> {
    let start = usize::from(header.csum_start);
    let field = start + usize::from(header.csum_offset);
    let kind = header.gso_type & !GSO_ECN;
    if kind == GSO_NONE {
        if header.flags & NEEDS_CSUM != 0 {
            complete(packet, start, field)?;
        }
        each(packet);
        return Ok(());
    }
    let (l4, checksum_at) = match kind {
        GSO_TCPV4 | GSO_TCPV6 => {
            let offset = packet.get(start + 12).ok_or(Malformed)? >> 4;
            (usize::from(offset) * 4, tcp::CHECKSUM)
        }
        GSO_UDP_L4 => (udp::HEADER, udp::CHECKSUM),
        _ => return Err(Malformed),
    };
    let headers = start + l4;
    let size = usize::from(header.gso_size);
    let is_tcp = kind != GSO_UDP_L4;
    let least = if is_tcp { tcp::HEADER } else { udp::HEADER };
    let ip = match packet.first().map(|first| first >> 4) {
        Some(4) => 20,
        Some(6) => 40,
        _ => return Err(Malformed),
    };
    let fits = header.flags & NEEDS_CSUM != 0
        && field == start + checksum_at
        && (ip..MAX_HEADER_BYTES).contains(&start)
        && l4 >= least
        && headers < packet.len().min(MAX_HEADER_BYTES)
        && packet.len() <= usize::from(u16::MAX) + ip
        && size > 0;
    if !fits {
        return Err(Malformed);
    }
    let mut template = [0; MAX_HEADER_BYTES];
    let template = &mut template[..headers];
    template.copy_from_slice(&packet[..headers]);
    segments(packet, template, (start, size, is_tcp), &mut each);
    Ok(())
}

/// Computes the checksum of an unsegmented packet, whose field holds the pseudo-header's sum.
fn complete(packet: &mut [u8], start: usize, field: usize) -> Result<(), Malformed> {
    if start >= packet.len() || field + 2 > packet.len() {
        return Err(Malformed);
    }
    let sum = checksum::of(&packet[start..]);
    // In UDP zero means no checksum; both zeros are the same sum.
    write16(packet, field, if sum == 0 { 0xffff } else { sum });
    Ok(())
}

fn segments(
    packet: &mut [u8],
    template: &mut [u8],
    (start, size, is_tcp): (usize, usize, bool),
    each: &mut impl FnMut(&mut [u8]),
) {
    let headers = template.len();
    let (transport, payload) = (headers - start, packet.len() - headers);
    let at = start + if is_tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    // The field holds the pseudo-header's sum, with the length of the whole.
    let pseudo = add(&[read16(template, at), !((transport + payload) as u16)]);
    let id = read16(template, 4);
    let is_v4 = template[0] >> 4 == 4;
    let (sequence, flags) = match is_tcp {
        true => (
            read32(template, start + tcp::SEQ),
            template[start + tcp::FLAGS],
        ),
        false => (0, 0),
    };
    let mut from = 0;
    while from < payload {
        let len = size.min(payload - from);
        let last = from + len == payload;
        if is_v4 {
            write16(template, 4, id.wrapping_add((from / size) as u16));
        }
        set_ip_length(template, headers + len);
        if is_tcp {
            write32(
                template,
                start + tcp::SEQ,
                sequence.wrapping_add(from as u32),
            );
            let not_first = if from > 0 { tcp::CWR } else { 0 };
            let not_last = if last { 0 } else { tcp::FIN | tcp::PSH };
            template[start + tcp::FLAGS] = flags & !(not_first | not_last);
        } else {
            write16(template, start + udp::LENGTH, (transport + len) as u16);
        }
        write16(template, at, 0);
        let packet = &mut packet[from..from + headers + len];
        let sum = !add(&[
            pseudo,
            (transport + len) as u16,
            checksum::sum(&template[start..]),
            checksum::sum(&packet[headers..]),
        ]);
        write16(template, at, if sum == 0 && !is_tcp { 0xffff } else { sum });
        packet[..headers].copy_from_slice(template);
        each(packet);
        from += len;
    }
}
