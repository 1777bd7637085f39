//! Sets of port numbers in the kernel's notation (`8080,16384-32767`).

use std::fmt;
use std::ops::RangeInclusive;

/// A set of port numbers: sorted, disjoint and not adjacent ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(Vec<RangeInclusive<u16>>);

impl Ports {
    /// Returns the union of ranges in any order; empty ranges do not count.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<u16>>) -> Ports {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        sorted.sort_by_key(|r| *r.start());
        let mut merged: Vec<RangeInclusive<u16>> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Ports(merged)
    }

    /// Parses the kernel's notation; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Ports> {
        let ranges = text
            .trim()
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
            });
        Some(Ports::new(ranges.collect::<Option<Vec<_>>>()?))
    }

    /// Returns the union of two sets.
    #[must_use]
    pub fn union(&self, other: &Ports) -> Ports {
        Ports::new(self.0.iter().chain(&other.0).cloned())
    }

    /// Returns the set without the ports of another.
    #[must_use]
    pub fn without(&self, other: &Ports) -> Ports {
        let mut rest = self.0.clone();
        for cut in &other.0 {
            rest = rest.iter().flat_map(|range| pieces(range, cut)).collect();
        }
        Ports::new(rest)
    }

    /// Returns the number of ports.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0
            .iter()
            .map(|r| u32::from(*r.end()) - u32::from(*r.start()) + 1)
            .sum()
    }
}

/// Returns the rest of a range without a cut.
fn pieces(range: &RangeInclusive<u16>, cut: &RangeInclusive<u16>) -> Vec<RangeInclusive<u16>> {
    let mut pieces = Vec::with_capacity(2);
    if let Some(before) = cut.start().checked_sub(1) {
        pieces.push(*range.start()..=before.min(*range.end()));
    }
    if let Some(after) = cut.end().checked_add(1) {
        pieces.push(after.max(*range.start())..=*range.end());
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Ports;

    #[test]
    fn sets_read_and_print_as_the_kernel_does() {
        for text in ["", "80", "0-65535", "80,443,16384-32767"] {
            assert_eq!(Ports::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Ports::parse("32768-40000,80,81\n").unwrap().to_string(),
            "80-81,32768-40000"
        );
        assert_eq!(Ports::parse("http"), None);
        assert_eq!(Ports::parse("65536"), None);
    }

    #[test]
    fn union_and_difference() {
        let cases = [
            ("", "16384-32767", "16384-32767", ""),
            ("80", "16384-32767", "80,16384-32767", "80"),
            ("16000-17000", "16384-32767", "16000-32767", "16000-16383"),
            ("20000", "16384-32767", "16384-32767", ""),
            ("0-65535", "100-200", "0-65535", "0-99,201-65535"),
            ("1-9,20-29", "5-24", "1-29", "1-4,25-29"),
            ("0-5,65530-65535", "0-65535", "0-65535", ""),
        ];
        for (a, b, union, difference) in cases {
            let (a, b) = (Ports::parse(a).unwrap(), Ports::parse(b).unwrap());
            assert_eq!(a.union(&b).to_string(), union);
            assert_eq!(a.without(&b).to_string(), difference);
        }
    }
}
