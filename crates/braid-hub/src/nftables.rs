//! The hub's nftables table, which each hub replaces as a whole and `braid hub down` removes.

use std::net::IpAddr;

use braid_host::config::Prefix;
use braid_host::nftables;
use braid_host::user_error::UserError;

use crate::config::{Forward, Reach};

/// The table's family and name. It contains nothing but the hub's chains.
const TABLE: &str = "inet braid_hub";

/// The table of the first minutes after a start of the machine.
const BOOT_TABLE: &str = "inet braid_hub_boot";

/// After a start of the machine the kernel knows no connection of any client. It would answer
/// packets of their servers by resets, which end TCP connections, and would track those packets as
/// its own connections, so that a client's next packet could not have its old port. So for three
/// minutes, in which clients reconnect and send, the kernel drops packets of no known connection
/// and no socket: of TCP everything but an opening SYN. The elements of the set expire by
/// themselves.
const BOOT_RULES: &str = "\
table inet braid_hub_boot {
	set started {
		type inet_proto
		flags timeout
		elements = { tcp timeout 3m, udp timeout 3m }
	}
	chain input {
		type filter hook input priority filter - 1
		meta pkttype host meta l4proto @started jump unknown
	}
	chain unknown {
		socket wildcard { 0, 1 } accept
		meta l4proto tcp ct state { new, invalid } tcp flags & (syn | rst) == 0 counter drop
		meta l4proto udp ct state new counter drop
	}
}
";

/// Contents of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The inner device.
    pub device: String,
    /// The inner networks.
    pub networks: Vec<Prefix>,
    /// True if clients leave with the hub's address.
    pub forward: Forward,
    /// True if clients reach each other.
    pub between_clients: bool,
    /// Destinations that every client reaches besides the internet.
    pub reach: Vec<Reach>,
    /// Further destinations of single clients, by their inner addresses.
    pub client_reach: Vec<(IpAddr, Reach)>,
}

/// Networks outside the internet (RFC 6890): a client only reaches those that the configuration
/// names. 169.254.0.0/16 has the metadata service of cloud providers.
const NOT_INTERNET_V4: &str = "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, \
     172.16.0.0/12, 192.0.0.0/24, 192.168.0.0/16, 224.0.0.0/3";
/// Global unicast addresses (2000::/3), and addresses that a NAT64 gateway translates (RFC 6052).
const INTERNET_V6: &str = "64:ff9b::/96, 2000::/3";
/// Addresses of `NOT_INTERNET_V4` by way of a NAT64 gateway or 6to4.
const NOT_INTERNET_V6: &str = "64:ff9b::/104, 64:ff9b::a00:0/104, 64:ff9b::6440:0/106, \
     64:ff9b::7f00:0/104, 64:ff9b::a9fe:0/112, 64:ff9b::ac10:0/108, 64:ff9b::c000:0/120, \
     64:ff9b::c0a8:0/112, 64:ff9b::e000:0/99, 2002::/16";

impl Filter {
    /// The table as input of `nft`; it replaces an existing one in a single transaction.
    #[must_use]
    pub fn ruleset(&self) -> String {
        let device = &self.device;
        let mut text = format!("table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
        if self.forward == Forward::Nat {
            text.push_str("\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat\n");
            for network in &self.networks {
                let family = family(network);
                text.push_str(&format!(
                    "\t\t{family} saddr {network} oifname != \"{device}\" masquerade\n"
                ));
            }
            text.push_str("\t}\n");
        }
        self.push_input_chain(&mut text);
        self.push_forward_chain(&mut text);
        text.push_str("}\n");
        text
    }

    /// Packets to the hub's own machine, by any of its addresses.
    fn push_input_chain(&self, text: &mut String) {
        if self.reach.contains(&Reach::Hub) {
            return;
        }
        let device = &self.device;
        text.push_str("\tchain input {\n\t\ttype filter hook input priority filter\n");
        for accepted in [
            "ct state established,related",
            // The hub answers pings, by which the path through the bond can be tested.
            "icmp type echo-request",
            "icmpv6 type echo-request",
        ] {
            text.push_str(&format!("\t\tiifname \"{device}\" {accepted} accept\n"));
        }
        for (client, reach) in &self.client_reach {
            if *reach == Reach::Hub {
                let source = source(*client);
                text.push_str(&format!("\t\tiifname \"{device}\" {source} accept\n"));
            }
        }
        text.push_str(&format!("\t\tiifname \"{device}\" counter drop\n\t}}\n"));
    }

    /// Packets forwarded for clients, and to them.
    fn push_forward_chain(&self, text: &mut String) {
        let device = &self.device;
        text.push_str("\tchain forward {\n\t\ttype filter hook forward priority filter\n");
        let verdict = if self.between_clients {
            "accept"
        } else {
            "counter drop"
        };
        text.push_str(&format!(
            "\t\tiifname \"{device}\" oifname \"{device}\" {verdict}\n"
        ));
        if self.forward == Forward::Nat {
            // Nobody around the hub may open connections to clients behind the hub's address.
            text.push_str(&format!(
                "\t\toifname \"{device}\" ct state != {{ established, related }} counter drop\n"
            ));
        }
        // In mode "routed", replies to connections from outside go wherever those came from.
        text.push_str(&format!(
            "\t\tiifname \"{device}\" ct state established,related accept\n"
        ));
        for reach in &self.reach {
            if let Reach::Network(network) = reach {
                let family = family(network);
                text.push_str(&format!(
                    "\t\tiifname \"{device}\" {family} daddr {network} accept\n"
                ));
            }
        }
        for (client, reach) in &self.client_reach {
            if let Reach::Network(network) = reach
                && network.address().is_ipv4() == client.is_ipv4()
            {
                let (source, family) = (source(*client), family(network));
                text.push_str(&format!(
                    "\t\tiifname \"{device}\" {source} {family} daddr {network} accept\n"
                ));
            }
        }
        for denied in [
            format!("ip daddr {{ {NOT_INTERNET_V4} }}"),
            format!("ip6 daddr != {{ {INTERNET_V6} }}"),
            format!("ip6 daddr {{ {NOT_INTERNET_V6} }}"),
        ] {
            text.push_str(&format!("\t\tiifname \"{device}\" {denied} counter drop\n"));
        }
        text.push_str("\t}\n");
    }

    /// Installs the table.
    ///
    /// # Errors
    /// There is no `nft`, or it refused.
    pub async fn install(&self) -> Result<(), UserError> {
        nftables::load(&self.ruleset()).await.map_err(explained)
    }
}

fn source(client: IpAddr) -> String {
    match client {
        IpAddr::V4(client) => format!("ip saddr {client}"),
        IpAddr::V6(client) => format!("ip6 saddr {client}"),
    }
}

fn family(network: &Prefix) -> &'static str {
    match network.address().is_ipv4() {
        true => "ip",
        false => "ip6",
    }
}

/// Has packets of clients' servers dropped silently for three minutes, unless that was done since
/// the machine was started.
///
/// # Errors
/// There is no `nft`, or it refused.
pub async fn install_boot_rules() -> Result<(), UserError> {
    match nftables::has_table(BOOT_TABLE).await.map_err(explained)? {
        true => Ok(()),
        false => nftables::load(BOOT_RULES).await.map_err(explained),
    }
}

/// Removes the tables; returns `false` if there were none.
///
/// # Errors
/// There is no `nft`, or it refused.
pub async fn remove() -> Result<bool, UserError> {
    let mut removed = false;
    for table in [TABLE, BOOT_TABLE] {
        if nftables::has_table(table).await.map_err(explained)? {
            nftables::load(&format!("delete table {table}\n"))
                .await
                .map_err(explained)?;
            removed = true;
        }
    }
    Ok(removed)
}

fn explained(error: nftables::Error) -> UserError {
    let failure = UserError::new("nft", error.to_string());
    failure.fix(match error {
        nftables::Error::Missing(_) => {
            "install nftables, or set forward = \"off\" and see to forwarding and address \
             translation otherwise"
        }
        nftables::Error::Refused(_) => {
            "the kernel needs nf_tables with nat and masquerade; set forward = \"routed\" or \"off\" to \
             go without"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(forward: Forward, between_clients: bool, reach: &[Reach]) -> Filter {
        let networks = ["10.73.0.0/16", "fd00:1:2::/64"];
        Filter {
            device: "braid-hub".into(),
            networks: networks.map(|text| text.parse().unwrap()).into(),
            forward,
            between_clients,
            reach: reach.to_vec(),
            client_reach: Vec::new(),
        }
    }

    #[test]
    fn the_table_says_what_is_wanted() {
        let expected = "\
table inet braid_hub
delete table inet braid_hub
table inet braid_hub {
	chain postrouting {
		type nat hook postrouting priority srcnat
		ip saddr 10.73.0.0/16 oifname != \"braid-hub\" masquerade
		ip6 saddr fd00:1:2::/64 oifname != \"braid-hub\" masquerade
	}
	chain input {
		type filter hook input priority filter
		iifname \"braid-hub\" ct state established,related accept
		iifname \"braid-hub\" icmp type echo-request accept
		iifname \"braid-hub\" icmpv6 type echo-request accept
		iifname \"braid-hub\" counter drop
	}
	chain forward {
		type filter hook forward priority filter
		iifname \"braid-hub\" oifname \"braid-hub\" counter drop
		oifname \"braid-hub\" ct state != { established, related } counter drop
		iifname \"braid-hub\" ct state established,related accept
";
        let denied = format!(
            "\t\tiifname \"braid-hub\" ip daddr {{ {NOT_INTERNET_V4} }} counter drop
		iifname \"braid-hub\" ip6 daddr != {{ {INTERNET_V6} }} counter drop
		iifname \"braid-hub\" ip6 daddr {{ {NOT_INTERNET_V6} }} counter drop
	}}
}}
"
        );
        let nat = filter(Forward::Nat, false, &[]).ruleset();
        assert_eq!(nat, format!("{expected}{denied}"));
        let wide = "\
table inet braid_hub
delete table inet braid_hub
table inet braid_hub {
	chain forward {
		type filter hook forward priority filter
		iifname \"braid-hub\" oifname \"braid-hub\" accept
		iifname \"braid-hub\" ct state established,related accept
		iifname \"braid-hub\" ip daddr 192.168.7.0/24 accept
";
        let network = Reach::Network("192.168.7.0/24".parse().unwrap());
        let routed = filter(Forward::Routed, true, &[Reach::Hub, network]).ruleset();
        assert_eq!(routed, format!("{wide}{denied}"));
    }

    #[test]
    fn one_client_reaches_more_than_the_others() {
        let client: IpAddr = "10.73.0.5".parse().unwrap();
        let networks = ["192.168.7.0/24", "fd07::/64"].map(|text| text.parse().unwrap());
        let networks = networks.map(|network| (client, Reach::Network(network)));
        let filter = Filter {
            client_reach: [&[(client, Reach::Hub)][..], &networks].concat(),
            ..filter(Forward::Nat, false, &[])
        };
        let ruleset = filter.ruleset();
        let (hub, elsewhere) = ruleset.split_once("chain forward").unwrap();
        let allowed = "iifname \"braid-hub\" ip saddr 10.73.0.5";
        assert!(hub.contains(&format!(
            "{allowed} accept\n\t\tiifname \"braid-hub\" counter drop"
        )));
        let rule = format!("{allowed} ip daddr 192.168.7.0/24 accept");
        let denied = elsewhere.find(NOT_INTERNET_V4).unwrap();
        assert!(elsewhere.find(&rule).is_some_and(|at| at < denied));
        assert!(
            !ruleset.contains("fd07::"),
            "no network of the other IP version"
        );
    }
}
