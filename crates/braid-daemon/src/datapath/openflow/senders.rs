//! Has the kernel tell the bridge who has sent a packet, for rules by `mac`, `uid`, `user` and `cgroup`.
//!
//! The bridge gets all packets of the inside from braid0, with the same link-layer source: what the kernel knows of a
//! socket's owner, or of the client behind a forwarded packet, is not in them. Their link-layer destination means
//! nothing there, so tables of nftables write the sender into it: a client's own MAC address, or for packets of the
//! machine itself `b2`, the number of a control group ([`super::sender_groups`]) and a user's number. It is zero where
//! no rule names the sender.
//!
//! The ranges of users are cut into pieces that do not overlap; a packet bears the first number of its piece. So each
//! piece is wholly inside or outside of a range, also while the tables and the controller's rules are not yet of the
//! same configuration.
//!
//! A control group is compared at the level of its depth, and so with all sockets of groups below it. A table has the
//! kernel ids of the groups that there were: one that is made anew is another.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use braid_balance::RuleEntry;
use braid_host::nftables;
use braid_host::user_error::UserError;

use super::sender_groups::{SenderGroup, SenderGroups};
use crate::plumbing::STEER_DEVICE;
use crate::rules::cgroup;

/// The tables' families and names. In the first the client's link-layer address is still there and a socket's group can
/// be looked up, in the second the packet has the header with which it leaves.
const TABLES: [&str; 2] = ["inet braid_senders", "netdev braid_senders"];
/// First byte of an address that names a group and a user (`SENDER_MAC` in `desired.py`).
const SENDER_MAC: u8 = 0xb2;
/// The same of a client's address that begins so: nobody is taken for somebody else. Clients whose addresses differ in
/// this alone are not told apart.
const CLIENT_MAC: u8 = 0xb6;
/// Upper half of a forwarded packet's priority that says which client has sent it.
const CLIENT_PRIORITY: u16 = 0xb1d0;
/// The same of a packet of the machine, for its control group.
const GROUP_PRIORITY: u16 = 0xb1d1;
/// `nft` looks for control groups below this directory, wherever they are mounted.
const FROM_NFT_TO_TOP: &str = "../../..";

/// The tables as they were last written.
#[derive(Default)]
pub(super) struct Senders(Option<String>);

impl Senders {
    /// Writes the tables for these rules, also if somebody has flushed them, or braid0 is another device now.
    ///
    /// # Errors
    /// There is no `nft`, or the kernel is older than 5.16.
    pub async fn set(
        &mut self,
        rules: &[RuleEntry],
        groups: &SenderGroups,
        steer: u32,
    ) -> Result<(), UserError> {
        let mount = cgroup::mount().unwrap_or_default();
        // `nft` would refuse the whole table for one group that is gone by now.
        let present = |(id, group): &(u64, &SenderGroup)| {
            cgroup::id(&mount.join(&group.path)).is_ok_and(|found| found == *id)
        };
        let groups: Vec<(u64, &SenderGroup)> = groups.iter().filter(present).collect();
        let wanted = ruleset(rules, &groups, &mount);
        if wanted.is_empty() {
            // An earlier daemon may have left them.
            if self.0.as_ref().is_none_or(|written| !written.is_empty()) {
                remove().await?;
                self.0 = Some(wanted);
            }
            return Ok(());
        }
        // Comments, by which another device and a group that was made anew make another text.
        let ids: Vec<u64> = groups.iter().map(|(id, _)| *id).collect();
        let wanted = format!("# braid0 is {steer}, groups are {ids:?}\n{wanted}");
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
            "rules by mac, uid, user and cgroup need Linux 5.16 with its egress hook (NETFILTER_EGRESS): match addresses, or set kind = \"ebpf\"",
        ),
    }
}

/// Returns both tables as input of `nft`, which replaces existing ones in a single transaction; empty if no rule names
/// a sender.
fn ruleset(rules: &[RuleEntry], groups: &[(u64, &SenderGroup)], mount: &Path) -> String {
    let clients: BTreeSet<[u8; 6]> = rules.iter().filter_map(|rule| rule.mac).collect();
    let mut users = rules.iter().filter_map(|rule| rule.uid.as_ref()).peekable();
    // Their groups may be gone by now.
    let is_by_group = rules.iter().any(|rule| rule.cgroup.is_some());
    let is_by_user = is_by_group || users.peek().is_some();
    if clients.is_empty() && !is_by_user {
        return String::new();
    }
    let map = |entries: Vec<String>| format!("map {{ {} }}", entries.join(", "));
    let (mut seen, mut chains) = (String::new(), String::new());
    let mut told = format!("\t\tether daddr set {}\n", mac_text(&[0; 6]));
    if is_by_user {
        let entry = |range: RangeInclusive<u32>| {
            let (first, last) = (range.start(), range.end());
            let [a, b, c, d] = first.to_be_bytes();
            let mac = mac_text(&[SENDER_MAC, 0, a, b, c, d]);
            match first == last {
                true => format!("{first} : {mac}"),
                false => format!("{first}-{last} : {mac}"),
            }
        };
        let of_user = map(pieces(users).into_iter().map(entry).collect());
        told += &format!("\t\tether daddr set meta skuid {of_user}\n");
    }
    if !groups.is_empty() {
        let number = |group: &SenderGroup| {
            let number = group.number;
            format!("{GROUP_PRIORITY:x}:{number:x} : {number}")
        };
        let numbers = map(groups.iter().map(|(_, group)| number(group)).collect());
        told += &format!("\t\t@ll,8,8 set meta priority {numbers}\n");
        chains = of_groups(groups, mount);
    }
    if !clients.is_empty() {
        let clients: BTreeMap<usize, &[u8; 6]> = (1..).zip(&clients).collect();
        let number = |(number, mac): (&usize, &&[u8; 6])| {
            format!("{} : {CLIENT_PRIORITY:x}:{number:x}", mac_text(mac))
        };
        let mac = |(number, mac): (&usize, &&[u8; 6])| {
            let mac = mac_text(&client_mac(**mac));
            format!("{CLIENT_PRIORITY:x}:{number:x} : {mac}")
        };
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
         {chains}}}\n\
         table {leaving} {{\n\
         \tchain egress {{\n\t\ttype filter hook egress device \"{STEER_DEVICE}\" priority 0\n{told}\t}}\n\
         }}\n"
    )
}

/// Returns the chain that gives packets of the machine their group's priority, that of the deepest one. It comes after
/// chains that choose another way, and others that set a priority.
fn of_groups(groups: &[(u64, &SenderGroup)], mount: &Path) -> String {
    let mut by_level: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (_, group) in groups {
        let level = group.path.components().count();
        let path = mount.join(&group.path);
        by_level.entry(level).or_default().push(format!(
            "\"{FROM_NFT_TO_TOP}{}\" : {GROUP_PRIORITY:x}:{:x}",
            path.display(),
            group.number
        ));
    }
    let rule = |(level, entries): (usize, Vec<String>)| {
        let entries = entries.join(", ");
        format!("\t\tmeta priority set socket cgroupv2 level {level} map {{ {entries} }}\n")
    };
    let rules: String = by_level.into_iter().map(rule).collect();
    format!(
        "\tchain output {{\n\t\ttype filter hook output priority 1000\n\
         \t\toifname != \"{STEER_DEVICE}\" accept\n\
         \t\tmeta priority set none\n{rules}\t}}\n"
    )
}

/// Returns the address that tells a client.
pub(super) fn client_mac(mac: [u8; 6]) -> [u8; 6] {
    match mac {
        [SENDER_MAC, rest @ ..] => {
            let [b, c, d, e, f] = rest;
            [CLIENT_MAC, b, c, d, e, f]
        }
        other => other,
    }
}

/// Returns pieces of all numbers that do not overlap, so that each range is some of them.
fn pieces<'r>(ranges: impl Iterator<Item = &'r RangeInclusive<u32>>) -> Vec<RangeInclusive<u32>> {
    let ranges = ranges.chain([&(0..=u32::MAX)]);
    let ends = ranges.flat_map(|range| [u64::from(*range.start()), u64::from(*range.end()) + 1]);
    let ends: Vec<u64> = ends.collect::<BTreeSet<u64>>().into_iter().collect();
    let piece = |pair: &[u64]| {
        let last = u32::try_from(pair[1] - 1).ok()?;
        Some(u32::try_from(pair[0]).ok()?..=last)
    };
    ends.windows(2).filter_map(piece).collect()
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
        let cut = [
            0..=999,
            1000..=1499,
            1500..=1500,
            1501..=1999,
            2000..=u32::MAX,
        ];
        assert_eq!(pieces(ranges.iter()), cut);
        let cut = [0..=9, 10..=10, 11..=11, 12..=u32::MAX];
        assert_eq!(pieces([10..=10, 12..=u32::MAX].iter()), cut);
        assert_eq!(pieces([].iter()), [0..=u32::MAX]);
    }

    #[test]
    fn a_client_is_not_taken_for_a_user() {
        assert_eq!(client_mac([0xb2, 1, 2, 3, 4, 5]), [0xb6, 1, 2, 3, 4, 5]);
        assert_eq!(client_mac([2, 0xb2, 2, 3, 4, 5]), [2, 0xb2, 2, 3, 4, 5]);
    }

    #[test]
    fn the_tables_name_the_senders_of_rules() {
        let mount = Path::new("/sys/fs/cgroup");
        assert_eq!(ruleset(&[RuleEntry::default()], &[], mount), "");
        let client = RuleEntry {
            mac: Some([2, 0, 0, 0, 8, 2]),
            ..RuleEntry::default()
        };
        let by_group = RuleEntry {
            cgroup: Some(77),
            ..RuleEntry::default()
        };
        let group = |path: &str, number| SenderGroup {
            path: path.into(),
            number,
        };
        let groups = [group("work", 5), group("work/a b", 7), group("mail", 255)];
        let groups: Vec<_> = (77..).zip(&groups).collect();
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
	chain output {
		type filter hook output priority 1000
		oifname != \"braid0\" accept
		meta priority set none
		meta priority set socket cgroupv2 level 1 map { \"../../../sys/fs/cgroup/work\" : b1d1:5, \"../../../sys/fs/cgroup/mail\" : b1d1:ff }
		meta priority set socket cgroupv2 level 2 map { \"../../../sys/fs/cgroup/work/a b\" : b1d1:7 }
	}
}
table netdev braid_senders {
	chain egress {
		type filter hook egress device \"braid0\" priority 0
		ether daddr set 00:00:00:00:00:00
		ether daddr set meta skuid map { 0-4710 : b2:00:00:00:00:00, 4711 : b2:00:00:00:12:67, 4712-4294967295 : b2:00:00:00:12:68 }
		@ll,8,8 set meta priority map { b1d1:5 : 5, b1d1:7 : 7, b1d1:ff : 255 }
		meta skuid 0-4294967295 accept
		ether daddr set meta priority map { b1d0:1 : 02:00:00:00:08:02 }
	}
}
";
        let rules = [client, by_user(4711..=4711), by_group.clone()];
        assert_eq!(ruleset(&rules, &groups, mount), expected);
        // A group that is not there yet costs its rule alone.
        let text = ruleset(&[by_group], &[], mount);
        assert!(text.contains("meta skuid map { 0-4294967295 : b2:00:00:00:00:00 }"));
        assert!(!text.contains("cgroupv2"), "{text}");
    }
}
