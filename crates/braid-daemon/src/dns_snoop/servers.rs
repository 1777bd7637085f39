//! The name servers that this machine uses: configured ones, or those of its providers (DHCP), as in
//! `resolv.conf(5)`.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

/// Files with name servers. If the first names a resolver on this machine, the others have the upstream servers
/// of systemd-resolved, NetworkManager and resolvconf (for dnsmasq).
const RESOLV_CONF_PATHS: [&str; 4] = [
    "/etc/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
    "/run/dnsmasq/resolv.conf",
];
/// Most servers read from one file; libc's resolver uses three.
const MAX_SERVERS: usize = 16;

/// Returns the machine's name servers. A missing or unreadable file adds none.
#[must_use]
pub fn system_servers() -> BTreeSet<IpAddr> {
    let texts = RESOLV_CONF_PATHS
        .iter()
        .filter_map(|place| fs::read(place).ok());
    texts
        .flat_map(|text| parse(&String::from_utf8_lossy(&text)))
        .collect()
}

/// Parses the servers of a file, without those on this machine, whose answers do not come from an uplink.
fn parse(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = words
            .next()
            .filter(|key| *key == "nameserver")
            .and_then(|_| words.next())?;
        // `fe80::1%eth0`: the scope is not needed.
        let address = address.split('%').next()?;
        address.parse().ok()
    };
    let named = text.lines().filter_map(server);
    named
        .filter(|server: &IpAddr| !server.is_loopback())
        .take(MAX_SERVERS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn servers_are_taken_and_all_else_is_passed_over() {
        let text = "\
# nameserver 203.0.113.1
; made by a tool
search home.example
nameserver 192.0.2.53
\tnameserver\t2001:db8::53   # the second
nameserver 127.0.0.53
nameserver ::1
nameserver fe80::1%eth0
nameserver ns.example
nameservers 203.0.113.2
nameserver
options edns0";
        let expected = ["192.0.2.53", "2001:db8::53", "fe80::1"];
        let expected: Vec<IpAddr> = expected.iter().map(|a| a.parse().unwrap()).collect();
        assert_eq!(parse(text), expected);
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_file_names_a_few_at_most(text in "(nameserver [0-9a-f:.%]{0,20}\n|.{0,20}\n){0,60}") {
            prop_assert!(parse(&text).len() <= MAX_SERVERS);
        }
    }
}
