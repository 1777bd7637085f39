//! Inputs of a fabric's edge: the controller's tables, files of layer-3 paths, frames.

use std::collections::BTreeSet;
use std::path::Path;

use braid_edge::frame::{packet_after_tag, strip_tag};
use braid_edge::l3_paths::L3Paths;
use braid_edge::probe;
use braid_edge::table::Table;

use crate::text;

/// Addresses and EtherType of a frame.
const ETHERNET: usize = 14;

/// An accepted table can be walked and names valid paths, whatever the controller sends.
pub fn edge_table(data: &[u8]) {
    let Ok(table) = Table::read(data) else {
        return;
    };
    let mut tags = BTreeSet::new();
    for egress in &table.egress {
        assert_eq!(egress.slots.len(), 1024, "{}", egress.target);
        tags.extend(&egress.slots);
    }
    for ingress in &table.ingress {
        for path in &ingress.paths {
            assert!(path.latency().as_secs() <= 60, "{path:?}");
            tags.insert(path.tag);
        }
    }
    assert!(tags.iter().all(|tag| (2..=4094).contains(tag)), "{tags:?}");
}

/// In an accepted file of layer-3 paths every path has a tag of its own, and addresses can be
/// translated to the path's and back.
pub fn edge_paths(data: &[u8]) {
    let Some(text) = text(data) else {
        return;
    };
    let l3_paths = match L3Paths::read(Path::new("paths.toml"), text) {
        Ok(l3_paths) => l3_paths,
        Err(error) => {
            assert!(error.to_string().starts_with("paths.toml: "), "{error}");
            return;
        }
    };
    let mut tags = BTreeSet::new();
    assert!(!l3_paths.edges.is_empty());
    for edge in &l3_paths.edges {
        assert!(!edge.paths.is_empty(), "{edge:?}");
        for path in &edge.paths {
            assert!(tags.insert(path.tag), "{path:?} twice");
            for (inner, outer) in [(edge.local, path.local), (edge.remote, path.remote)] {
                let families = [inner, outer].map(|prefix| prefix.address().is_ipv4());
                assert_eq!((inner.length(), families[0]), (outer.length(), families[1]));
                assert!(outer.contains(probe::probe_address(outer)), "{outer}");
            }
        }
    }
}

/// Taking the tag off a frame keeps its addresses and the bytes behind the tag, or behind our
/// number, whatever the frame holds; a reply to a probe has all its fields.
pub fn edge_frames(data: &[u8]) {
    if let Some(reply) = probe::TaggedReply::parse(data) {
        assert!(data.len() >= probe::TAGGED_LENGTH && reply.tag < 4096);
    }
    let mut bytes = data.to_vec();
    let Some(read) = strip_tag(&mut bytes) else {
        assert_eq!(bytes, data, "a frame without a tag is left alone");
        return;
    };
    assert!(read.tag < 4096);
    let frame = &bytes[read.start..];
    assert_eq!(frame[..12], data[..12], "addresses");
    assert_eq!(
        frame[ETHERNET..],
        data[read.start + ETHERNET..],
        "the packet"
    );
    if let Some((_, _, _, length)) = read.segment {
        assert!(usize::try_from(length).is_ok_and(|length| length <= data.len() + 2));
    }
    let _ = probe::parse_reply(packet_after_tag(&bytes));
}
