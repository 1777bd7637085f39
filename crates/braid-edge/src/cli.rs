//! The command line: `braid edge run` and `braid edge status`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::controller::Endpoint;
use crate::datapath::{Devices, Hook};
use crate::key::Key;
use crate::run::{self, ControlSource, Options};
use crate::status::{self, Status};
use crate::{Error, Reordering};

/// What `braid edge` can be told.
#[derive(Debug, Subcommand)]
pub enum EdgeCommand {
    /// Split what comes from the hosts over the fabric's paths, and put in order what comes back
    ///
    /// Sits between two devices, one towards the hosts and one towards a switch's port, until SIGTERM
    /// or SIGINT. It follows the controller's table; without a controller it goes on with the last
    /// one, and before the first one everything passes on single paths. When it ends, so do its
    /// programs: a bridge of the two devices, if there is one, then carries on.
    Run(RunArgs),
    /// Show what a running edge does
    Status(StatusArgs),
}

/// `braid edge run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Its name, as the controller's configuration has it
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// The device towards the hosts
    #[arg(long, value_name = "DEVICE")]
    pub inside: String,
    /// The device towards the switch; with --paths, each device towards a router
    #[arg(long, value_name = "DEVICE", required = true)]
    pub outside: Vec<String>,
    /// Who says what its paths are
    #[command(flatten)]
    pub control: ControlArgs,
    /// What both sides show each other at http://ADDRESS:PORT, needed there: a file with the key that
    /// the controller's configuration has for this edge
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    pub key_file: Option<PathBuf>,
    /// How TCP that came by several paths is put in order
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    pub reordering: Reordering,
    /// Have other edges split UDP, QUIC and the rest too, under numbers that are taken off here; 8 bytes a
    /// packet, where they fit into the devices' MTU
    #[arg(long, conflicts_with = "paths")]
    pub shim: bool,
    /// How its programs are put on the devices: by TCX, which Linux has from 6.6 on, or by clsact filters
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub hook: Hook,
    /// The device to be made for packets that wait
    #[arg(long, value_name = "DEVICE", default_value = "braid-hold")]
    pub hold: String,
}

/// Who says what an edge's paths are: one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ControlArgs {
    /// Where the controller answers: unix:/run/braid/fabric.sock or http://ADDRESS:PORT
    #[arg(long, value_name = "PLACE")]
    controller: Option<Endpoint>,
    /// Instead of a controller, a file of paths that are pairs of addresses, over routers of others
    #[arg(long, value_name = "FILE")]
    paths: Option<PathBuf>,
}

impl ControlArgs {
    fn control(self, key: Option<Key>) -> Result<ControlSource, Error> {
        match self.controller {
            Some(endpoint) => Ok(ControlSource::Controller(endpoint.with_key(key)?)),
            // One of them is there: the group is required.
            None => Ok(ControlSource::File(self.paths.unwrap_or_default())),
        }
    }
}

/// `braid edge status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The edge
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs an edge until it is told to end. Prints one line of JSON once packets pass, and tells the service
/// manager, if one started it.
///
/// # Errors
/// What it cannot do.
pub fn run(run_dir: &Path, arguments: RunArgs) -> Result<(), Error> {
    let key = arguments.key_file.as_deref().map(Key::read).transpose()?;
    let control = arguments.control.control(key)?;
    if arguments.shim && arguments.reordering != Reordering::Adaptive {
        return Err(Error::ShimUnused);
    }
    if let (ControlSource::Controller(_), [_, second, ..]) =
        (&control, arguments.outside.as_slice())
    {
        return Err(Error::SeveralOutside(second.clone()));
    }
    let options = Options {
        devices: Devices {
            inside: arguments.inside,
            outside: arguments.outside,
            hold: arguments.hold,
        },
        name: arguments.name,
        control,
        reordering: arguments.reordering,
        shim: arguments.shim,
        hook: arguments.hook,
        run_dir: run_dir.to_owned(),
    };
    run::run(options, || {
        // Whoever started it may not care, and have closed it.
        let mut out = std::io::stdout();
        let _ = out
            .write_all(b"{\"ready\": true}\n")
            .and_then(|()| out.flush());
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::warn!(%error, "the service manager does not hear that the edge is ready");
        }
    })
}

/// Asks a running edge.
///
/// # Errors
/// Nobody answers, or somebody else does.
pub fn status(run_dir: &Path, name: &str) -> Result<Status, Error> {
    status::ask(&status::socket(run_dir, name))
}
