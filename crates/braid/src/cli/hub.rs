//! What can be typed after `braid hub`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use braid_core::units::{Rate, duration};
use clap::{Args, Subcommand};

use super::Output;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct HubArgs {
    /// Configuration file; /etc/braid/hub.toml is read if it is there and none is named
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<HubCommand>,
}

impl HubArgs {
    /// Whether failures are to be JSON too.
    pub fn wants_json(&self) -> bool {
        match &self.command {
            Some(HubCommand::Invite(arguments)) => arguments.output.json,
            Some(
                HubCommand::Clients(output)
                | HubCommand::Status(output)
                | HubCommand::Down(output)
                | HubCommand::Revoke { output, .. },
            ) => output.json,
            None | Some(HubCommand::Boot { .. }) => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum HubCommand {
    /// Print a token for a new client
    ///
    /// The token is one word, good for one machine, and shown this once. What it lets in is that
    /// machine: its own key never leaves it.
    Invite(InviteArgs),
    /// Show every client: its state, addresses, traffic and when it was heard last
    Clients(Output),
    /// Serve a client no more, from this moment on
    Revoke {
        /// The client
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Show the hub: key, addresses, handshakes, what was refused, what is not as it should be
    Status(Output),
    /// Keep connections through a restart of the machine: for a unit that runs before the network is up
    ///
    /// For three minutes the kernel drops silently what servers of clients send, instead of refusing it, until the hub
    /// runs and clients have sent something. Without address translation there is nothing to do.
    Boot {
        /// The hub's configuration file; /etc/braid/hub.toml is read if it is there and none is named
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// End the hub and undo everything that it changed: filter, forwarding, device
    ///
    /// A hub that is merely stopped leaves them, so that connections through it go on when it is back. Clients, key
    /// and invitations are kept.
    Down(Output),
}

#[derive(Debug, Args)]
pub struct InviteArgs {
    /// What the client is called: letters, digits, `-`, `_`, `.`
    pub name: String,
    /// Where the client finds the hub; again for each further address. The configuration's
    /// addresses if none is named, or else the machine's own
    #[arg(long, value_name = "HOST[:PORT]")]
    pub address: Vec<String>,
    /// Inner address for the client, once per IP version; the next free one if none is named
    #[arg(long, value_name = "ADDRESS")]
    pub inner: Vec<IpAddr>,
    /// Most that is passed on for it in each direction, like "50 Mbit/s"
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// For how long the token may be used
    #[arg(long, value_name = "TIME", default_value = "168 h", value_parser = duration::parse)]
    pub valid: Duration,
    #[command(flatten)]
    pub output: Output,
}
