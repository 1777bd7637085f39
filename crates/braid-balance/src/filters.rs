//! The BPF filters of a device's clsact qdisc, read over rtnetlink. aya attaches and detaches them
//! but cannot list them.

use std::io;

use crate::netlink::{NLMSG_HEADER, attributes, half, open, receive, send, text, word};

/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` of linux/pkt_sched.h.
const PARENT_INGRESS: u32 = 0xffff_fff2;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
const PARENT_EGRESS: u32 = 0xffff_fff3;

/// `TC_H_CLSACT`, the qdisc's parent, and the handle it always has.
const QDISC_PARENT: u32 = 0xffff_fff1;
const QDISC_HANDLE: u32 = 0xffff_0000;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

/// Bytes of `struct tcmsg`.
const TC_HEADER: usize = 20;

/// A filter on a clsact hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// `bpf` or another classifier.
    pub kind: String,
    /// The program's name as its loader gave it; empty for other classifiers.
    pub name: String,
    /// The kernel's id of the program; zero for other classifiers.
    pub program: u32,
    pub priority: u16,
    pub handle: u32,
}

/// Takes the clsact qdisc off a device, if there is one.
pub(crate) fn remove_qdisc(ifindex: u32) -> io::Result<()> {
    let socket = open()?;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    send(
        &socket,
        &message(
            libc::RTM_DELQDISC,
            flags,
            ifindex,
            QDISC_HANDLE,
            QDISC_PARENT,
        ),
    )?;
    read(receive(&socket, &mut [0; 4096])?, &mut Vec::new()).map(|_| ())
}

/// Filters on one side of a device; none where there is no clsact qdisc.
pub(crate) fn list(ifindex: u32, egress: bool) -> io::Result<Vec<Filter>> {
    let parent = if egress {
        PARENT_EGRESS
    } else {
        PARENT_INGRESS
    };
    let socket = open()?;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    send(
        &socket,
        &message(libc::RTM_GETTFILTER, flags, ifindex, 0, parent),
    )?;
    let mut filters = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while !read(receive(&socket, &mut buffer)?, &mut filters)? {}
    Ok(filters)
}

/// A request about the qdisc or the filters of a device.
fn message(kind: u16, flags: libc::c_int, ifindex: u32, handle: u32, parent: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(NLMSG_HEADER + TC_HEADER);
    let length = u32::try_from(NLMSG_HEADER + TC_HEADER).expect("a small number");
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(u16::try_from(flags).expect("16-bit flags").to_ne_bytes());
    message.extend([0; 8]); // sequence, port
    message.extend([0; 4]); // family, padding
    message.extend(ifindex.to_ne_bytes());
    message.extend(handle.to_ne_bytes());
    message.extend(parent.to_ne_bytes());
    message.extend([0; 4]); // info
    message
}

/// Reads one datagram of the dump; `true` once it is the last.
fn read(mut bytes: &[u8], filters: &mut Vec<Filter>) -> io::Result<bool> {
    while bytes.len() >= NLMSG_HEADER {
        let length = word(bytes, 0) as usize;
        let kind = half(bytes, 4);
        if length < NLMSG_HEADER || length > bytes.len() {
            return Err(io::Error::other("netlink message with a wrong length"));
        }
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error = word(bytes, NLMSG_HEADER).cast_signed();
                // A device without a qdisc has no filters.
                return match -error {
                    0 | libc::EINVAL | libc::ENOENT => Ok(true),
                    number => Err(io::Error::from_raw_os_error(number)),
                };
            }
            _ if kind == libc::RTM_NEWTFILTER && length >= NLMSG_HEADER + TC_HEADER => {
                filters.extend(filter(&bytes[NLMSG_HEADER..length]));
            }
            _ => {}
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(false)
}

/// A filter; `None` for the line that only announces a classifier without filters.
fn filter(message: &[u8]) -> Option<Filter> {
    let handle = word(message, 8);
    let priority = u16::try_from(word(message, 16) >> 16).expect("upper half of 32 bits");
    let mut filter = Filter {
        kind: String::new(),
        name: String::new(),
        program: 0,
        priority,
        handle,
    };
    for (kind, value) in attributes(&message[TC_HEADER..]) {
        match kind {
            TCA_KIND => filter.kind = text(value),
            TCA_OPTIONS => {
                for (kind, value) in attributes(value) {
                    match kind {
                        TCA_BPF_NAME => filter.name = text(value),
                        TCA_BPF_ID if value.len() >= 4 => filter.program = word(value, 0),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (handle != 0).then_some(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_without_a_qdisc_has_no_filters() {
        let loopback = nix::net::if_::if_nametoindex("lo").expect("every namespace has lo");
        assert_eq!(list(loopback, false).expect("a dump"), []);
    }
}
