//! Keeps the kernel from answering packets that are the bridge's.
//!
//! Kernel and bridge both get every frame of an uplink. An answer to a translated flow is for a port that no socket of
//! the kernel's has, so the kernel would reset the connection, or tell the remote that nobody is there. A table of
//! nftables drops these packets, and leaves those that a socket of this machine wants. Of echo replies the kernel gets
//! those whose requests it has sent itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use braid_balance::UplinkEntry;
use braid_host::nftables;
use braid_host::user_error::UserError;

/// The table's family and name.
const TABLE: &str = "inet braid_openflow";

/// The table as it was last written.
#[derive(Default)]
pub(super) struct KernelFilter(String);

impl KernelFilter {
    /// Writes the table for these uplinks, by device, also if somebody has flushed it.
    ///
    /// # Errors
    /// There is no `nft`, or it refuses.
    pub async fn set(&mut self, uplinks: &BTreeMap<String, &UplinkEntry>) -> Result<(), UserError> {
        let wanted = ruleset(uplinks);
        if self.0 != wanted || !nftables::has_table(TABLE).await.map_err(explained)? {
            nftables::load(&wanted).await.map_err(explained)?;
            self.0 = wanted;
        }
        Ok(())
    }
}

/// Removes the table. Returns what was undone.
///
/// # Errors
/// `nft` refuses.
pub(super) async fn remove() -> Result<Option<String>, UserError> {
    if !nftables::has_table(TABLE).await.map_err(explained)? {
        return Ok(None);
    }
    let command = format!("delete table {TABLE}");
    nftables::load(&command).await.map_err(explained)?;
    Ok(Some(format!("nft {command}")))
}

fn explained(error: nftables::Error) -> UserError {
    let failure = UserError::new("nft", error.to_string());
    match error {
        nftables::Error::Missing(_) => failure.fix("install nftables, or set kind = \"ebpf\""),
        nftables::Error::Refused(_) => {
            failure.fix("the kernel needs nf_tables with sockets and sets (nft_socket)")
        }
    }
}

/// Returns the table as input of `nft`; it replaces an existing one in a single transaction.
fn ruleset(uplinks: &BTreeMap<String, &UplinkEntry>) -> String {
    let mut taken = String::new();
    let mut sent = String::new();
    for (device, uplink) in uplinks {
        let ports = &uplink.ports;
        let mut add = |address: &str, ports: &str| {
            // Writing to a string never fails.
            let _ = writeln!(taken, "\t\tiifname \"{device}\" {address} {ports}");
        };
        let range = format!("th dport {}-{} jump translated", ports.start(), ports.end());
        if let Some(v4) = uplink.v4 {
            let address = format!("ip daddr {}", v4.address);
            add(&address, &format!("meta l4proto {{ tcp, udp }} {range}"));
            add(&address, "icmp type echo-reply icmp id != @echoes4 drop");
        }
        if let Some(v6) = uplink.v6 {
            let address = format!("ip6 daddr {}", v6.address);
            add(&address, &format!("meta l4proto {{ tcp, udp }} {range}"));
            add(
                &address,
                "icmpv6 type echo-reply icmpv6 id != @echoes6 drop",
            );
        }
        let _ = writeln!(
            sent,
            "\t\toifname \"{device}\" icmp type echo-request update @echoes4 {{ icmp id }}\n\
             \t\toifname \"{device}\" icmpv6 type echo-request update @echoes6 {{ icmpv6 id }}"
        );
    }
    format!(
        "table {TABLE}\n\
         delete table {TABLE}\n\
         table {TABLE} {{\n\
         \tset echoes4 {{\n\t\ttypeof icmp id\n\t\tflags dynamic,timeout\n\t\ttimeout 30s\n\t}}\n\
         \tset echoes6 {{\n\t\ttypeof icmpv6 id\n\t\tflags dynamic,timeout\n\t\ttimeout 30s\n\t}}\n\
         \tchain prerouting {{\n\t\ttype filter hook prerouting priority raw\n{taken}\t}}\n\
         \tchain output {{\n\t\ttype filter hook output priority raw\n{sent}\t}}\n\
         \tchain translated {{\n\t\tsocket wildcard {{ 0, 1 }} accept\n\t\tdrop\n\t}}\n\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use braid_balance::{Layer, NextHop};
    use braid_core::UplinkId;

    use super::*;

    #[test]
    fn the_table_says_what_is_wanted() {
        let uplink = UplinkEntry {
            id: UplinkId(0),
            ifindex: 2,
            layer: Layer::L2,
            mtu: 1500,
            v4: Some(NextHop {
                address: Ipv4Addr::new(192, 0, 2, 1),
                gateway: None,
                on_link: None,
            }),
            v6: None,
            ports: 16384..=32767,
            accepts_new: true,
            resets_tcp: false,
            epoch: 0,
            leased: false,
            waits: false,
            sends_twice: false,
        };
        let expected = "\
table inet braid_openflow
delete table inet braid_openflow
table inet braid_openflow {
	set echoes4 {
		typeof icmp id
		flags dynamic,timeout
		timeout 30s
	}
	set echoes6 {
		typeof icmpv6 id
		flags dynamic,timeout
		timeout 30s
	}
	chain prerouting {
		type filter hook prerouting priority raw
		iifname \"dsl\" ip daddr 192.0.2.1 meta l4proto { tcp, udp } th dport 16384-32767 jump translated
		iifname \"dsl\" ip daddr 192.0.2.1 icmp type echo-reply icmp id != @echoes4 drop
	}
	chain output {
		type filter hook output priority raw
		oifname \"dsl\" icmp type echo-request update @echoes4 { icmp id }
		oifname \"dsl\" icmpv6 type echo-request update @echoes6 { icmpv6 id }
	}
	chain translated {
		socket wildcard { 0, 1 } accept
		drop
	}
}
";
        assert_eq!(
            ruleset(&BTreeMap::from([("dsl".to_owned(), &uplink)])),
            expected
        );
    }
}
