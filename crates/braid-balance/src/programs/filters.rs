//! The BPF filters of a device's clsact qdisc, read over rtnetlink. aya attaches and detaches them
//! but cannot list them.

use std::io;

use netlink_packet_core::{Emitable, NLM_F_ACK, NLM_F_DUMP, parse_string};
use netlink_packet_route::tc::{TcHandle, TcHeader};

use crate::programs::netlink::{Answer, attributes, number, request};

/// The handle that a clsact qdisc always has.
const QDISC_HANDLE: TcHandle = TcHandle {
    major: u16::MAX,
    minor: 0,
};

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

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
    let qdisc = TcHeader {
        index: ifindex.cast_signed(),
        handle: QDISC_HANDLE,
        parent: TcHandle::CLSACT,
        ..TcHeader::default()
    };
    match request(libc::RTM_DELQDISC, NLM_F_ACK, &qdisc) {
        Err(error) if !is_absence(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Filters on one side of a device; none where there is no clsact qdisc.
pub(crate) fn list(ifindex: u32, egress: bool) -> io::Result<Vec<Filter>> {
    let hook = TcHeader {
        index: ifindex.cast_signed(),
        parent: TcHandle {
            major: u16::MAX,
            minor: match egress {
                true => TcHandle::MIN_EGRESS,
                false => TcHandle::MIN_INGRESS,
            },
        },
        ..TcHeader::default()
    };
    match request(libc::RTM_GETTFILTER, NLM_F_DUMP, &hook) {
        Err(error) if is_absence(&error) => Ok(Vec::new()),
        answers => Ok(answers?.iter().filter_map(filter).collect()),
    }
}

/// Returns true if the kernel says that there is no such qdisc.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT))
}

/// A filter; `None` for the line that only announces a classifier without filters.
fn filter(answer: &Answer) -> Option<Filter> {
    if answer.kind != libc::RTM_NEWTFILTER {
        return None;
    }
    let header = TcHeader::parse(&answer.body).ok()?;
    let mut filter = Filter {
        kind: String::new(),
        name: String::new(),
        program: 0,
        priority: u16::try_from(header.info >> 16).expect("upper half of 32 bits"),
        handle: header.handle.into(),
    };
    for attribute in attributes(&answer.body[header.buffer_len()..]) {
        match attribute.kind() {
            TCA_KIND => filter.kind = text(attribute.value()),
            TCA_OPTIONS => {
                for option in attributes(attribute.value()) {
                    match option.kind() {
                        TCA_BPF_NAME => filter.name = text(option.value()),
                        TCA_BPF_ID => filter.program = number(option.value()).unwrap_or_default(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (filter.handle != 0).then_some(filter)
}

fn text(value: &[u8]) -> String {
    parse_string(value).unwrap_or_default()
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
