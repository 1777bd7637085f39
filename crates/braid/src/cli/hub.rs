//! Subcommands and options of `braid hub`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use braid_core::units::{Rate, duration};
use clap::{Args, Subcommand};

use super::{Output, WebCommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct HubArgs {
    /// Configuration file; /etc/braid/hub.toml by default, if it exists
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<HubCommand>,
}

impl HubArgs {
    /// Returns true if errors are printed as JSON too.
    pub fn wants_json(&self) -> bool {
        match &self.command {
            Some(HubCommand::Invite(arguments)) => arguments.output.json,
            Some(HubCommand::RotateKey(arguments)) => arguments.output.json,
            Some(
                HubCommand::Clients(output)
                | HubCommand::Status(output)
                | HubCommand::Down(output)
                | HubCommand::Revoke { output, .. }
                | HubCommand::Web(WebCommand::Token { output, .. }),
            ) => output.json,
            None | Some(HubCommand::Boot { .. }) => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum HubCommand {
    /// Print a token for a new client
    ///
    /// The token is one word, works for one machine, and is shown only once. The machine's own key
    /// never leaves it.
    Invite(InviteArgs),
    /// Show every client: state, addresses, traffic and time of its last packet
    Clients(Output),
    /// Revoke a client's access at once
    Revoke {
        /// Name of the client
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Replace the hub's key; clients follow by themselves
    ///
    /// The present key stays valid for a while besides the new one. A client that connects in that time learns the
    /// new key; one that does not has to be invited again.
    RotateKey(RotateKeyArgs),
    /// Show the hub: key, addresses, handshakes, rejected datagrams, health problems
    Status(Output),
    /// Manage the hub's page for browsers, which `[web] listen` in its configuration switches on
    #[command(subcommand)]
    Web(WebCommand),
    /// Keep connections alive while the machine restarts; for a systemd unit that runs before the network is up
    ///
    /// For up to three minutes the kernel silently drops packets from the clients' servers instead of rejecting them,
    /// until the hub runs and its clients have sent something. Does nothing without address translation.
    Boot {
        /// Configuration file; /etc/braid/hub.toml by default, if it exists
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Stop the hub and undo its changes: filter, forwarding, device
    ///
    /// A hub that is merely stopped leaves them in place, so that connections through it continue when it is back.
    /// Clients, key and invitations are kept.
    Down(Output),
}

#[derive(Debug, Args)]
pub struct InviteArgs {
    /// Name of the client: letters, digits, `-`, `_`, `.`
    pub name: String,
    /// Address at which the client reaches the hub; may be repeated. Defaults to the addresses in
    /// the configuration, or else to the machine's own
    #[arg(long, value_name = "HOST[:PORT]")]
    pub address: Vec<String>,
    /// Inner address for the client, once per IP version; the next free one by default
    #[arg(long, value_name = "ADDRESS")]
    pub inner: Vec<IpAddr>,
    /// Rate limit in each direction, like "50 Mbit/s"
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Time for which the token may be used
    #[arg(long, value_name = "TIME", default_value = "168 h", value_parser = duration::parse)]
    pub valid: Duration,
    /// Draw the token's QR code too, for `braid join --scan`
    #[arg(long)]
    pub qr: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RotateKeyArgs {
    /// Time for which the present key stays valid: longer than any client is away
    #[arg(long, value_name = "TIME", default_value = "720 h", value_parser = duration::parse)]
    pub overlap: Duration,
    /// Erase the previous key now, before its time is over
    #[arg(long, conflicts_with = "overlap")]
    pub end_overlap: bool,
    #[command(flatten)]
    pub output: Output,
}
