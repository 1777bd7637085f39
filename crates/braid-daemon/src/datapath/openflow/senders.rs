//! Has the kernel tell the bridge who has sent a packet, for rules by `mac`, `uid` and `user`.
//!
//! The bridge gets all packets of the inside from braid0, with the same link-layer source: what the kernel knows of a
//! socket's owner, or of the client behind a forwarded packet, is not in them. Their link-layer destination means
//! nothing there, so tables of nftables write the sender into it: a client's own MAC address, or `b2:1d` and a user's
//! number. All that a rule does not name keeps the address that the kernel has written.
//!
//! Overlapping ranges of users are cut into pieces that do not overlap; a packet bears the first number of its piece.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use braid_balance::RuleEntry;
use braid_host::nftables;
use braid_host::user_error::UserError;

use crate::plumbing::STEER_DEVICE;

/// The tables' families and names. In the first the client's link-layer address is still there, in the second the
/// packet has the header with which it leaves.
const TABLES: [&str; 2] = ["inet braid_senders", "netdev braid_senders"];
/// First bytes of an address that names a user (`USER_MAC` in `desired.py`).
const USER_MAC: [u8; 2] = [0xb2, 0x1d];
/// Upper half of a forwarded packet's priority that says which client has sent it.
const PRIORITY: u16 = 0xb1d0;

/// The tables as they were last written.
#[derive(Default)]
pub(super) struct Senders(Option<String>);

impl Senders {
    /// Writes the tables for these rules, also if somebody has flushed them, or braid0 is another device now.
    ///
    /// # Errors
    /// There is no `nft`, or the kernel is older than 5.16.
    pub async fn set(&mut self, rules: &[RuleEntry], steer: u32) -> Result<(), UserError> {
        let wanted = ruleset(rules);
        if wanted.is_empty() {
            // An earlier daemon may have left them.
            if self.0.as_ref().is_none_or(|written| !written.is_empty()) {
                remove().await?;
                self.0 = Some(wanted);
            }
            return Ok(());
        }
        // A comment, by which another device makes another text.
        let wanted = format!("# braid0 is {steer}\n{wanted}");
        let mut there = self.0.as_ref() == Some(&wanted);
        for table in TABLES {
            there = there && nftables::has_table(table).await.map_err(explained)?;
        }
        if !there {
            nftables::load(&wanted).await.map_err(explained)?;
            self.0 = Some(wanted);
        }
        Ok(())
    }
}

/// Removes the tables. Returns what was undone.
///
/// # Errors
/// `nft` refuses.
pub(super) async fn remove() -> Result<Vec<String>, UserError> {
    let mut undone = Vec::new();
    for table in TABLES {
        if nftables::has_table(table).await.map_err(explained)? {
            let command = format!("delete table {table}");
            nftables::load(&command).await.map_err(explained)?;
            undone.push(format!("nft {command}"));
        }
    }
    Ok(undone)
}

fn explained(error: nftables::Error) -> UserError {
    let failure = UserError::new("nft", error.to_string());
    match error {
        nftables::Error::Missing(_) => failure.fix("install nftables, or set kind = \"ebpf\""),
        nftables::Error::Refused(_) => failure.fix(
            "rules by mac, uid and user need Linux 5.16 with its egress hook (NETFILTER_EGRESS): match addresses, or set kind = \"ebpf\"",
        ),
    }
}

/// Returns both tables as input of `nft`, which replaces existing ones in a single transaction; empty if no rule names
/// a sender.
fn ruleset(rules: &[RuleEntry]) -> String {
    let clients: BTreeSet<[u8; 6]> = rules.iter().filter_map(|rule| rule.mac).collect();
    let users = pieces(rules.iter().filter_map(|rule| rule.uid.as_ref()));
    if clients.is_empty() && users.is_empty() {
        return String::new();
    }
    let clients: BTreeMap<usize, String> = (1..).zip(clients.iter().map(mac_text)).collect();
    let map = |entries: Vec<String>| format!("map {{ {} }}", entries.join(", "));
    let (mut seen, mut told) = (String::new(), String::new());
    if !users.is_empty() {
        let entry = |range: &RangeInclusive<u32>| {
            let (first, last) = (range.start(), range.end());
            let [a, b, c, d] = first.to_be_bytes();
            let mac = mac_text(&[USER_MAC[0], USER_MAC[1], a, b, c, d]);
            match first == last {
                true => format!("{first} : {mac}"),
                false => format!("{first}-{last} : {mac}"),
            }
        };
        let of_user = map(users.iter().map(entry).collect());
        told += &format!("\t\tether daddr set meta skuid {of_user}\n");
    }
    if !clients.is_empty() {
        let number = |(number, mac): (&usize, &String)| format!("{mac} : {PRIORITY:x}:{number:x}");
        let mac = |(number, mac): (&usize, &String)| format!("{PRIORITY:x}:{number:x} : {mac}");
        let numbers = map(clients.iter().map(number).collect());
        let macs = map(clients.iter().map(mac).collect());
        seen = format!("\t\toifname \"{STEER_DEVICE}\" meta priority set ether saddr {numbers}\n");
        // A socket chooses its packets' priority.
        told += &format!(
            "\t\tmeta skuid 0-4294967295 accept\n\t\tether daddr set meta priority {macs}\n"
        );
    }
    let [forwarded, leaving] = TABLES;
    format!(
        "table {forwarded}\n\
         delete table {forwarded}\n\
         table {leaving}\n\
         delete table {leaving}\n\
         table {forwarded} {{\n\
         \tchain forward {{\n\t\ttype filter hook forward priority 0\n{seen}\t}}\n\
         }}\n\
         table {leaving} {{\n\
         \tchain egress {{\n\t\ttype filter hook egress device \"{STEER_DEVICE}\" priority 0\n{told}\t}}\n\
         }}\n"
    )
}

/// Returns the pieces of these ranges that do not overlap, so that each range is some of them.
fn pieces<'r>(ranges: impl Iterator<Item = &'r RangeInclusive<u32>>) -> Vec<RangeInclusive<u32>> {
    let ranges: Vec<(u64, u64)> = ranges
        .map(|range| (u64::from(*range.start()), u64::from(*range.end()) + 1))
        .collect();
    let bounds: BTreeSet<u64> = ranges.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let bounds: Vec<u64> = bounds.into_iter().collect();
    let named = |from: u64| ranges.iter().any(|range| range.0 <= from && from < range.1);
    let piece = |pair: &[u64]| {
        let last = u32::try_from(pair[1] - 1).ok()?;
        Some(u32::try_from(pair[0]).ok()?..=last)
    };
    let pairs = bounds.windows(2).filter(|pair| named(pair[0]));
    pairs.filter_map(piece).collect()
}

/// Returns a MAC address as text.
pub(super) fn mac_text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_user(uid: RangeInclusive<u32>) -> RuleEntry {
        RuleEntry {
            uid: Some(uid),
            ..RuleEntry::default()
        }
    }

    #[test]
    fn overlapping_ranges_of_users_are_cut() {
        let ranges = [1000..=1999, 1500..=1500, 0..=u32::MAX];
        assert_eq!(
            pieces(ranges.iter()),
            [
                0..=999,
                1000..=1499,
                1500..=1500,
                1501..=1999,
                2000..=u32::MAX
            ]
        );
        assert_eq!(pieces([10..=10, 12..=13].iter()), [10..=10, 12..=13]);
    }

    #[test]
    fn the_tables_name_the_senders_of_rules() {
        assert_eq!(ruleset(&[RuleEntry::default()]), "");
        let client = RuleEntry {
            mac: Some([2, 0, 0, 0, 8, 2]),
            ..RuleEntry::default()
        };
        let expected = "\
table inet braid_senders
delete table inet braid_senders
table netdev braid_senders
delete table netdev braid_senders
table inet braid_senders {
	chain forward {
		type filter hook forward priority 0
		oifname \"braid0\" meta priority set ether saddr map { 02:00:00:00:08:02 : b1d0:1 }
	}
}
table netdev braid_senders {
	chain egress {
		type filter hook egress device \"braid0\" priority 0
		ether daddr set meta skuid map { 4711 : b2:1d:00:00:12:67 }
		meta skuid 0-4294967295 accept
		ether daddr set meta priority map { b1d0:1 : 02:00:00:00:08:02 }
	}
}
";
        assert_eq!(ruleset(&[client, by_user(4711..=4711)]), expected);
    }
}
