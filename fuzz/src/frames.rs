//! Frames of the bond's protocol.

use braid_bond::proto::flow::FlowInfo;
use braid_bond::proto::frame::{Frame, Frames};
use braid_bond::proto::header_compression::{self, Decompressor};
use braid_bond::proto::packet::{Kind, OVERHEAD};
use braid_bond::proto::policy::{Policy, RemoteSide};
use braid_bond::proto::reader::Reader;
use braid_multipath::LaneId;

/// Parsing ends, parsed frames are written as the same bytes, and lists hold as many entries as
/// they announce.
pub fn frames(data: &[u8]) {
    let mut reader = Reader::new(data);
    let (mut again, mut decompressed) = (Vec::new(), Vec::new());
    let mut decompressor = Decompressor::default();
    while !reader.is_empty() {
        let before = reader.rest();
        let Ok(frame) = Frame::parse(&mut reader) else {
            break;
        };
        let taken = before.len() - reader.rest().len();
        assert!(taken > 0, "{frame:?} takes nothing");
        again.clear();
        frame.append(&mut again);
        assert_eq!(again, before[..taken], "{frame:?}");
        match frame {
            Frame::Nack(nack) => {
                let ranges: Vec<_> = nack.ranges.collect();
                assert!(ranges.iter().all(|range| range.first <= range.last));
                assert!(ranges.is_sorted_by(|a, b| a.last + 1 < b.first));
                assert_eq!(ranges.len(), usize::from(again[2]));
            }
            Frame::Report(report) => {
                let entries: Vec<_> = report.entries.collect();
                assert!(entries.is_sorted_by(|a, b| a.link < b.link));
            }
            Frame::Header(context) => {
                let _ = decompressor.handle_context(&context);
            }
            Frame::Data(data) if header_compression::is_compressed(data.content) => {
                decompressed.clear();
                let lane = LaneId(data.lane);
                if decompressor
                    .decompress(lane, data.content, &mut decompressed)
                    .is_ok()
                {
                    assert!(!header_compression::is_compressed(&decompressed));
                    assert!(
                        decompressed.len()
                            <= data.content.len() + header_compression::MAX_HEADER_BYTES
                    );
                }
            }
            Frame::Policy(part) => policy(part.content),
            _ => {}
        }
    }
    assert!(Frames::new(data).count() <= data.len());
    if let Some(Kind::Data(header)) = Kind::of(data) {
        assert!(data.len() >= OVERHEAD);
        assert_eq!(header.to_bytes(), data[..8]);
    }
}

/// A parsed policy is written as the same bytes, and yields a scheduler.
fn policy(bytes: &[u8]) {
    let Ok(policy) = Policy::parse(bytes) else {
        return;
    };
    let mut again = Vec::new();
    policy.append(&mut again);
    assert_eq!(again, bytes, "{policy:?}");
    let _ = policy.scheduler();
    let _ = policy.class(FlowInfo::of(bytes).as_ref(), RemoteSide::Source);
}
