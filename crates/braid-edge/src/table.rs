//! The controller's table for an edge (docs/fabric-core.md, `/v1/fabric/edges/NAME`), validated.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::shared::{MAX_HOSTS, MAX_PATHS, MAX_TARGETS, SLOTS};

/// Supported version of the format.
const VERSION: u32 = 1;
/// Valid path tags: 0 and 4095 are reserved, 1 is many switches' default VLAN.
const TAGS: std::ops::RangeInclusive<u16> = 2..=4094;

/// Table of one edge: the packets it splits, and the paths it sends them on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Table {
    version: u32,
    /// Name of this table, by which the edge asks for the next one.
    #[serde(default)]
    pub revision: String,
    /// Number of the controller's plan.
    pub generation: u64,
    /// Number of the controller's leadership, which later ones exceed; 0 where there is one controller alone.
    #[serde(default)]
    pub leadership: u64,
    /// True if the controller has made no plan yet: the table before holds.
    #[serde(default)]
    pub pending: bool,
    /// Towards other edges.
    pub egress: Vec<Egress>,
    /// From other edges.
    pub ingress: Vec<Ingress>,
}

impl Table {
    /// Makes a table without a controller.
    pub(crate) fn own(generation: u64, egress: Vec<Egress>, ingress: Vec<Ingress>) -> Table {
        Table {
            version: VERSION,
            revision: String::new(),
            generation,
            leadership: 0,
            pending: false,
            egress,
            ingress,
        }
    }
}

/// Split of packets to another edge.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Egress {
    /// The other edge.
    pub target: String,
    /// The hosts behind it; empty for layer-3 paths.
    pub hosts: Vec<Mac>,
    /// Tags, used one after the other.
    pub slots: Vec<u16>,
    /// True if the other edge removes shims.
    #[serde(default)]
    pub shim: bool,
    /// Configured capacity of all its paths, whoever else uses them, in bit/s; 0 if unknown.
    #[serde(default)]
    pub max_rate_bit_s: u64,
    /// Its paths, for the choice of the one on which a packet arrives first. If there are none, or one
    /// has no rate, TCP segments take the slots in turn, too.
    #[serde(default)]
    pub paths: Vec<EgressPath>,
}

/// A path to another edge.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct EgressPath {
    /// Its tag.
    pub tag: u16,
    /// Rate that is free on it; 0 if unknown.
    pub rate_bit_s: u64,
    /// Time that a packet takes on it, apart from the queue of this edge's own packets.
    pub delay_ms: f64,
    /// Time that a packet takes on it without any queue; none from a controller before that field.
    #[serde(default)]
    pub latency_ms: Option<f64>,
}

impl EgressPath {
    /// Returns the delay in microseconds, at most a minute.
    pub(crate) fn delay_us(&self) -> u32 {
        microseconds(self.delay_ms)
    }

    /// Returns the latency in microseconds, at most a minute.
    pub(crate) fn latency_us(&self) -> u32 {
        microseconds(self.latency_ms.unwrap_or(self.delay_ms))
    }
}

fn microseconds(ms: f64) -> u32 {
    let ms = if ms.is_finite() {
        ms.clamp(0.0, 60_000.0)
    } else {
        0.0
    };
    (1000.0 * ms) as u32
}

impl Egress {
    /// Returns true if packets get a shim. A single path needs none, since it keeps their order.
    pub(crate) fn uses_shim(&self) -> bool {
        self.shim && self.slots.iter().any(|tag| *tag != self.slots[0])
    }

    /// Returns it without paths that are silent; as it is if all are. Slots of other paths stay, so that
    /// their flows do.
    pub(crate) fn without(&self, silent: &BTreeSet<u16>) -> Egress {
        let left: Vec<u16> = self
            .slots
            .iter()
            .copied()
            .filter(|tag| !silent.contains(tag))
            .collect();
        let mut usable = self.clone();
        if left.is_empty() || left.len() == self.slots.len() {
            return usable;
        }
        let mut others = left.iter().cycle();
        for slot in &mut usable.slots {
            if silent.contains(slot)
                && let Some(other) = others.next()
            {
                *slot = *other;
            }
        }
        usable.paths.retain(|path| !silent.contains(&path.tag));
        usable
    }

    fn path_tags(&self) -> impl Iterator<Item = u16> + '_ {
        self.paths.iter().map(|path| path.tag)
    }
}

/// Reception from another edge.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Ingress {
    /// The other edge.
    pub source: String,
    /// The controller's choice of delivery order.
    pub order: DeliveryOrder,
    /// \[mpsdn\] Algorithm 1's T.
    pub threshold_packets: usize,
    /// \[mpsdn\] Algorithm 1's S.
    pub size_packets: usize,
    /// Paths by latency.
    pub paths: Vec<IngressPath>,
    /// True if a path was withdrawn because little or nothing arrives by it: packets missing from it
    /// are not waited for.
    #[serde(default)]
    pub path_withdrawn: bool,
}

/// The controller's choice of delivery order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryOrder {
    /// One path: order is kept.
    Single,
    /// Paths of similar latency: packets are forwarded as they come.
    Plain,
    /// Packets are put in order.
    Resequence,
}

/// A path from another edge.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct IngressPath {
    /// Its tag.
    pub tag: u16,
    /// One-way latency, if it was measured.
    pub latency_ms: Option<f64>,
}

impl IngressPath {
    /// Returns the one-way latency; 0 if unknown.
    #[must_use]
    pub fn latency(&self) -> Duration {
        let ms = self.latency_ms.filter(|ms| ms.is_finite() && *ms > 0.0);
        Duration::from_secs_f64(ms.unwrap_or(0.0).min(60_000.0) / 1000.0)
    }
}

/// A MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mac, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2);
            let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            *byte = value.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no MAC")))?;
        }
        match parts.next() {
            None => Ok(Mac(mac)),
            Some(_) => Err(serde::de::Error::custom(format!("{text:?} is no MAC"))),
        }
    }
}

/// Reason why a table is refused.
#[derive(Debug, Error)]
pub enum TableError {
    /// Malformed JSON.
    #[error("not a table: {0}")]
    Format(#[from] serde_json::Error),
    /// Unsupported version.
    #[error("its version is {0}, this edge knows {VERSION} (use the same version on both sides)")]
    Version(u32),
    /// A value or a size is out of range.
    #[error("{0}")]
    Content(String),
}

impl Table {
    /// Parses and validates a table.
    ///
    /// # Errors
    /// The format or version is another, the number of slots is wrong, a tag is invalid, or there are
    /// too many edges or hosts.
    pub fn read(json: &[u8]) -> Result<Table, TableError> {
        let table: Table = serde_json::from_slice(json)?;
        if table.version != VERSION {
            return Err(TableError::Version(table.version));
        }
        let wrong = |text: String| Err(TableError::Content(text));
        if table.egress.len() > MAX_TARGETS as usize {
            return wrong(format!(
                "{} targets, at most {MAX_TARGETS}",
                table.egress.len()
            ));
        }
        if let Some(each) = table
            .egress
            .iter()
            .find(|each| each.paths.len() > MAX_PATHS as usize)
        {
            return wrong(format!(
                "{} paths to {}, at most {MAX_PATHS}",
                each.paths.len(),
                each.target
            ));
        }
        let hosts: usize = table.egress.iter().map(|each| each.hosts.len()).sum();
        if hosts > MAX_HOSTS as usize {
            return wrong(format!("{hosts} hosts, at most {MAX_HOSTS}"));
        }
        for each in &table.egress {
            if each.slots.len() != SLOTS as usize {
                return wrong(format!(
                    "{} slots to {}, not {SLOTS}",
                    each.slots.len(),
                    each.target
                ));
            }
        }
        let egress = table
            .egress
            .iter()
            .flat_map(|each| each.slots.iter().copied().chain(each.path_tags()));
        let ingress = table
            .ingress
            .iter()
            .flat_map(|each| each.paths.iter().map(|path| path.tag));
        let wrong_tag = egress.chain(ingress).find(|tag| !TAGS.contains(tag));
        match wrong_tag {
            Some(tag) => wrong(format!("tag {tag}, which no path can have")),
            None => Ok(table),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(slots: usize, tag: u16) -> String {
        let slots = vec![tag.to_string(); slots].join(",");
        format!(
            r#"{{"version":1,"revision":"a","generation":3,"edge":"ha",
            "egress":[{{"target":"hb","hosts":["02:00:00:00:00:02"],"slots":[{slots}]}}],
            "ingress":[{{"source":"hb","order":"resequence","threshold_packets":20,"size_packets":40,
              "paths":[{{"tag":9,"latency_ms":25.0,"capacity_bit_s":1}},
                       {{"tag":10,"latency_ms":null,"capacity_bit_s":1}}]}}]}}"#
        )
    }

    #[test]
    fn a_table_is_read() {
        let table = Table::read(text(1024, 7).as_bytes()).expect("a table");
        assert_eq!(table.egress[0].hosts, [Mac([2, 0, 0, 0, 0, 2])]);
        assert_eq!(
            table.ingress[0].paths[0].latency(),
            Duration::from_millis(25)
        );
        assert_eq!(table.ingress[0].paths[1].latency(), Duration::ZERO);
    }

    #[test]
    fn silent_paths_give_their_slots_to_the_others_by_share() {
        let mut egress = Table::read(text(1024, 7).as_bytes())
            .expect("a table")
            .egress
            .remove(0);
        // Half, a quarter and a quarter.
        egress.slots = (0..1024).map(|slot| [7, 8, 7, 9][slot % 4]).collect();
        let path = |tag| EgressPath {
            tag,
            rate_bit_s: 1,
            delay_ms: 0.0,
            latency_ms: None,
        };
        egress.paths = [7, 8, 9].map(path).to_vec();
        let without = |silent: &[u16]| egress.without(&silent.iter().copied().collect());
        let count = |egress: &Egress, tag| egress.slots.iter().filter(|slot| **slot == tag).count();
        let usable = without(&[9]);
        assert_eq!([7, 8, 9].map(|tag| count(&usable, tag)), [683, 341, 0]);
        assert_eq!(usable.paths.len(), 2);
        let stayed = egress.slots.iter().zip(&usable.slots);
        assert!(stayed.clone().all(|(was, is)| *was == 9 || was == is));
        assert_eq!(count(&without(&[7, 8]), 9), 1024);
        for nothing in [&[][..], &[7, 8, 9], &[5]] {
            assert_eq!(without(nothing), egress);
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused_by_name() {
        for (json, part) in [
            (text(1023, 7), "1023 slots to hb"),
            (text(1024, 4095), "tag 4095"),
            (
                text(1024, 7).replace(r#""version":1"#, r#""version":2"#),
                "version is 2",
            ),
            (
                text(1024, 7).replace("02:00:00:00:00:02", "02:00:00:00:00"),
                "no MAC",
            ),
            ("{}".to_owned(), "missing field"),
        ] {
            let error = Table::read(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
