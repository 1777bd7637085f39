//! The file of layer-3 paths (docs/fabric.md), read and validated. Prefixes are translated one to one, as
//! RFC 6296 does for IPv6.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use braid_core::{Prefix, Rate};
use braid_multipath::resequence::MAX_PATHS;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::shared::{MAX_PREFIXES, MAX_TARGETS};

/// The first tag assigned. Tags of layer-3 paths are local to this edge: on the wire the addresses name
/// a path.
const FIRST_TAG: u16 = 2;

/// All layer-3 paths of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct L3Paths {
    /// The other edges.
    pub edges: Vec<RemoteEdge>,
}

/// Another edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteEdge {
    /// Its name, for people.
    pub name: String,
    /// Prefix of the hosts behind this edge.
    pub local: Prefix,
    /// Prefix of the hosts behind the other edge.
    pub remote: Prefix,
    /// Paths, at least one.
    pub paths: Vec<L3Path>,
}

/// A layer-3 path: a pair of prefixes that routers route along a path of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct L3Path {
    /// Its tag at this edge.
    pub tag: u16,
    /// Prefix of this edge's hosts on the path.
    pub local: Prefix,
    /// Prefix of the other edge's hosts on the path.
    pub remote: Prefix,
    /// Capacity; paths without one get equal shares.
    pub rate: Option<Rate>,
}

/// Reason why a file is refused.
#[derive(Debug, Error)]
pub enum L3PathsError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file is malformed.
    #[error("{}: {text}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Position and error.
        text: String,
    },
    /// Values are invalid.
    #[error("{}: {}", path.display(), problems.join("; "))]
    Content {
        /// The file.
        path: PathBuf,
        /// All problems.
        problems: Vec<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWords {
    #[serde(default)]
    edge: Vec<EdgeWords>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeWords {
    name: String,
    local: Network,
    remote: Network,
    #[serde(default)]
    path: Vec<PathWords>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathWords {
    local: Network,
    remote: Network,
    rate: Option<Rate>,
}

/// A prefix in the file's notation.
struct Network(Prefix);

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            serde::de::Error::custom(format!(
                "{text:?} is no network: write 10.1.0.0/24, 2001:db8:1::/64 or one address"
            ))
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse().map_err(|_| wrong())?)),
            None => (text.as_str(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix = match length {
            Some(length) => Prefix::new(address, length).ok_or_else(wrong)?,
            None => Prefix::from(address),
        };
        match prefix.address() == address {
            true => Ok(Network(prefix)),
            false => Err(serde::de::Error::custom(format!(
                "{text:?} has bits behind its prefix: write {prefix}"
            ))),
        }
    }
}

impl L3Paths {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed or invalid.
    pub fn open(path: &Path) -> Result<L3Paths, L3PathsError> {
        let text = std::fs::read_to_string(path).map_err(|source| L3PathsError::Read {
            path: path.to_owned(),
            source,
        })?;
        L3Paths::read(path, &text)
    }

    /// Parses a file's text; `path` is for error messages.
    ///
    /// # Errors
    /// The text is malformed or invalid.
    pub fn read(path: &Path, text: &str) -> Result<L3Paths, L3PathsError> {
        let path = || path.to_owned();
        let words: FileWords = toml::from_str(text).map_err(|error| L3PathsError::Format {
            path: path(),
            text: error.to_string(),
        })?;
        let mut tags = FIRST_TAG..;
        let edges: Vec<RemoteEdge> = words
            .edge
            .into_iter()
            .map(|edge| RemoteEdge {
                name: edge.name,
                local: edge.local.0,
                remote: edge.remote.0,
                paths: edge
                    .path
                    .into_iter()
                    .zip(&mut tags)
                    .map(|(words, tag)| L3Path {
                        tag,
                        local: words.local.0,
                        remote: words.remote.0,
                        rate: words.rate,
                    })
                    .collect(),
            })
            .collect();
        let problems = problems(&edges);
        match problems.is_empty() {
            true => Ok(L3Paths { edges }),
            false => Err(L3PathsError::Content {
                path: path(),
                problems,
            }),
        }
    }
}

fn problems(edges: &[RemoteEdge]) -> Vec<String> {
    let mut found = Vec::new();
    let mut say = |text: String| found.push(text);
    if edges.is_empty() {
        say("no [[edge]]: there is nobody to split packets to".to_owned());
    }
    let paths: usize = edges.iter().map(|edge| edge.paths.len()).sum();
    if edges.len() > MAX_TARGETS as usize || edges.len() + 2 * paths > MAX_PREFIXES as usize {
        say(format!(
            "{} edges with {paths} paths are too many",
            edges.len()
        ));
    }
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    for edge in edges {
        *names.entry(&edge.name).or_default() += 1;
        if edge.paths.is_empty() || edge.paths.len() > MAX_PATHS {
            say(format!(
                "edge {:?} has {} paths: 1 to {MAX_PATHS} are possible",
                edge.name,
                edge.paths.len()
            ));
        }
        if edge.paths.iter().any(|path| path.rate.is_some())
            && edge.paths.iter().any(|path| path.rate.is_none())
        {
            say(format!(
                "edge {:?}: give a rate to each of its paths, or to none",
                edge.name
            ));
        }
        for path in &edge.paths {
            for (inner, outer) in [(edge.local, path.local), (edge.remote, path.remote)] {
                if !alike(inner, outer) {
                    say(format!(
                        "edge {:?}: {outer} cannot stand for {inner}: as many bits of the same \
                         family are needed",
                        edge.name
                    ));
                }
            }
            if path.local.address().is_ipv4() != path.remote.address().is_ipv4() {
                say(format!(
                    "edge {:?}: {} and {} are of different families",
                    edge.name, path.local, path.remote
                ));
            }
            if path.rate.is_some_and(|rate| rate.bits_per_sec() == 0) {
                say(format!("edge {:?}: a rate of 0 carries nothing", edge.name));
            }
        }
    }
    for (name, _) in names.iter().filter(|(_, count)| **count > 1) {
        say(format!("two edges are called {name:?}"));
    }
    found.extend(confusions(edges));
    found
}

/// Returns true if addresses of one prefix can be translated into the other and back.
fn alike(inner: Prefix, outer: Prefix) -> bool {
    inner.length() == outer.length() && inner.address().is_ipv4() == outer.address().is_ipv4()
}

/// Returns problems with prefixes that overlap, so that an address would be ambiguous.
fn confusions(edges: &[RemoteEdge]) -> Vec<String> {
    let mut found = Vec::new();
    let overlap = |a: &Prefix, b: &Prefix| a.covers(b) || b.covers(a);
    for (place, edge) in edges.iter().enumerate() {
        for other in &edges[..place] {
            if overlap(&edge.remote, &other.remote) {
                found.push(format!(
                    "{} is behind {:?} and {} behind {:?}",
                    other.remote, other.name, edge.remote, edge.name
                ));
            }
        }
    }
    let paths: Vec<&L3Path> = edges.iter().flat_map(|edge| &edge.paths).collect();
    for (place, path) in paths.iter().enumerate() {
        for other in &paths[..place] {
            if path.local == other.local && path.remote == other.remote {
                found.push(format!("{} to {} is two paths", path.local, path.remote));
                continue;
            }
            // Several paths may share a prefix, but prefixes may not overlap in part.
            for (one, two) in [(path.local, other.local), (path.remote, other.remote)] {
                if one != two && overlap(&one, &two) {
                    found.push(format!("{one} and {two} overlap"));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[edge]]
        name = "svalbard"
        local = "10.1.0.0/24"
        remote = "10.2.0.0/24"
        [[edge.path]]
        local = "192.0.2.0/24"
        remote = "198.51.100.0/24"
        rate = "10 Mbit/s"
        [[edge.path]]
        local = "192.0.2.0/24"
        remote = "203.0.113.0/24"
        rate = "20 Mbit/s"
        [[edge]]
        name = "troms"
        local = "2001:db8:1::1"
        remote = "2001:db8:2::1"
        [[edge.path]]
        local = "2001:db8:3::1"
        remote = "2001:db8:4::1"
    "#;

    fn read(text: &str) -> Result<L3Paths, L3PathsError> {
        L3Paths::read(Path::new("paths.toml"), text)
    }

    #[test]
    fn a_file_is_read() {
        let l3_paths = read(GOOD).expect("a file");
        let svalbard = &l3_paths.edges[0];
        let tags: Vec<u16> = svalbard.paths.iter().map(|path| path.tag).collect();
        assert_eq!(
            (svalbard.remote.to_string().as_str(), tags.as_slice()),
            ("10.2.0.0/24", [2, 3].as_slice())
        );
        assert_eq!(l3_paths.edges[1].paths[0].tag, 4);
        assert_eq!(l3_paths.edges[1].local.length(), 128);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (from, to, part) in [
            ("10.1.0.0/24", "10.1.0.1/24", "write 10.1.0.0/24"),
            ("10.1.0.0/24", "10.1.0.0/40", "is no network"),
            ("10.1.0.0/24", "10.1.0.0/25", "cannot stand for 10.1.0.0/25"),
            (
                "203.0.113.0/24",
                "198.51.100.0/24",
                "192.0.2.0/24 to 198.51.100.0/24 is two paths",
            ),
            ("\"troms\"", "\"svalbard\"", "two edges are called"),
            ("rate = \"20 Mbit/s\"", "", "or to none"),
            ("20 Mbit/s", "0 bit/s", "carries nothing"),
            ("20 Mbit/s", "20", "line 13"),
            ("rate =", "rat =", "unknown field"),
            ("2001:db8:4::1", "192.0.2.9", "different families"),
        ] {
            let error = read(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
            assert!(error.starts_with("paths.toml: "), "{error}");
        }
        assert!(read("").unwrap_err().to_string().contains("no [[edge]]"));
        let nested = GOOD.replace("203.0.113.0/24", "198.51.0.0/24").replacen(
            "local = \"10.1.0.0/24\"",
            "local = \"10.1.0.0/16\"",
            1,
        );
        assert!(read(&nested).is_err());
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let text = GOOD
            .replace("20 Mbit/s", "0 bit/s")
            .replace("troms", "svalbard");
        let error = read(&text).unwrap_err().to_string();
        assert!(
            error.contains("carries nothing") && error.contains("two edges"),
            "{error}"
        );
    }
}
