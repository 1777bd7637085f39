//! What the kernel's filter is told: one nftables table of ours, replaced as a whole and removed at the
//! end.

use std::process::Stdio;

use braid_daemon::config::Prefix;
use braid_daemon::failure::Failure;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::config::Forward;

/// The table's family and name. Nothing else in it is anybody else's.
const TABLE: &str = "inet braid_hub";

/// What the table is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The inner device.
    pub device: String,
    /// The inner networks.
    pub networks: Vec<Prefix>,
    /// Whether clients leave with the hub's address.
    pub forward: Forward,
    /// Whether clients reach each other.
    pub between_clients: bool,
}

impl Filter {
    /// The table as `nft` reads it; one step from whatever there is of it.
    #[must_use]
    pub fn ruleset(&self) -> String {
        let device = &self.device;
        let mut text = format!("table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
        if self.forward == Forward::Nat {
            text.push_str("\tchain leave {\n\t\ttype nat hook postrouting priority srcnat\n");
            for network in &self.networks {
                let family = if network.address().is_ipv4() {
                    "ip"
                } else {
                    "ip6"
                };
                text.push_str(&format!(
                    "\t\t{family} saddr {network} oifname != \"{device}\" masquerade\n"
                ));
            }
            text.push_str("\t}\n");
        }
        if !self.between_clients {
            text.push_str(&format!(
                "\tchain apart {{\n\t\ttype filter hook forward priority filter\n\t\tiifname \
                 \"{device}\" oifname \"{device}\" counter drop\n\t}}\n"
            ));
        }
        text.push_str("}\n");
        text
    }

    /// Puts the table in place.
    ///
    /// # Errors
    /// There is no `nft`, or it refused.
    pub async fn install(&self) -> Result<(), Failure> {
        nft(&self.ruleset()).await
    }
}

/// Takes the table away, if it is there.
///
/// # Errors
/// There is no `nft`, or it refused.
pub async fn remove() -> Result<(), Failure> {
    nft(&format!("table {TABLE}\ndelete table {TABLE}\n")).await
}

async fn nft(ruleset: &str) -> Result<(), Failure> {
    let broken = |error: std::io::Error| {
        let failure = Failure::new("nft", format!("nft: {error}"));
        match error.kind() {
            std::io::ErrorKind::NotFound => failure.fix(
                "install nftables, or set forward = \"off\" and see to forwarding and address \
                 translation otherwise",
            ),
            _ => failure,
        }
    };
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(broken)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(ruleset.as_bytes()).await.map_err(broken)?;
    }
    let output = child.wait_with_output().await.map_err(broken)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("it says nothing");
    let failure = Failure::new("nft", format!("nft refuses the hub's table: {said}"));
    Err(failure.fix(
        "the kernel needs nf_tables with nat and masquerade; set forward = \"routed\" or \"off\" to \
         go without",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(forward: Forward, between_clients: bool) -> String {
        let networks = ["10.73.0.0/16", "fd00:1:2::/64"];
        Filter {
            device: "braid-hub".into(),
            networks: networks.map(|text| text.parse().unwrap()).into(),
            forward,
            between_clients,
        }
        .ruleset()
    }

    #[test]
    fn the_table_says_what_is_wanted() {
        let expected = "\
table inet braid_hub
delete table inet braid_hub
table inet braid_hub {
	chain leave {
		type nat hook postrouting priority srcnat
		ip saddr 10.73.0.0/16 oifname != \"braid-hub\" masquerade
		ip6 saddr fd00:1:2::/64 oifname != \"braid-hub\" masquerade
	}
	chain apart {
		type filter hook forward priority filter
		iifname \"braid-hub\" oifname \"braid-hub\" counter drop
	}
}
";
        assert_eq!(filter(Forward::Nat, false), expected);
        let empty = "\
table inet braid_hub
delete table inet braid_hub
table inet braid_hub {
}
";
        assert_eq!(filter(Forward::Routed, true), empty);
    }
}
