//! The command line: `braid edge run` and `braid edge status`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::controller::Endpoint;
use crate::datapath::{Devices, Hook};
use crate::key::Key;
use crate::run::{self, ControlSource, Options};
use crate::status::{self, Status};
use crate::{Error, Reordering, Repair};

/// Commands of `braid edge`.
#[derive(Debug, Subcommand)]
pub enum EdgeCommand {
    /// Split packets from the hosts over the fabric's paths, and restore the order of packets for them
    ///
    /// Runs between two devices, one towards the hosts and one towards a switch's port, until SIGTERM
    /// or SIGINT. The edge follows the controller's table. While the controller is away the last table
    /// holds; before the first one all packets take single paths. The programs end with the edge: a
    /// bridge of the two devices, if there is one, then carries on.
    Run(RunArgs),
    /// Show the state of a running edge
    Status(StatusArgs),
}

/// `braid edge run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the edge in the controller's configuration
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Device towards the hosts
    #[arg(long, value_name = "DEVICE")]
    pub inside: String,
    /// Device towards the switch; with --paths, each device towards a router
    #[arg(long, value_name = "DEVICE", required = true)]
    pub outside: Vec<String>,
    /// Source of the paths
    #[command(flatten)]
    pub control: ControlArgs,
    /// File with this edge's key, as in the controller's configuration; required for http://ADDRESS:PORT,
    /// where both sides authenticate by it
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    pub key_file: Option<PathBuf>,
    /// Method by which TCP segments of several paths are put in order
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    pub reordering: Reordering,
    /// Keep copies, for a moment, of packets sent by a path that loses some, and send those that the other
    /// edge misses again by another path
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        conflicts_with = "paths"
    )]
    pub repair: Repair,
    /// Have other edges split UDP, QUIC and other flows too, if they fill a path, numbered by a shim of 8 bytes
    /// that is removed here; only flows whose packets fit into the devices' MTU with it
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        num_args = 0..=1,
        default_missing_value = "auto",
        conflicts_with = "paths"
    )]
    pub shim: Shim,
    /// Attach the programs by TCX (Linux 6.6 and later) or by clsact filters
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub hook: Hook,
    /// Name of the TAP device to create; packets that wait for missing ones pass through it
    #[arg(long, value_name = "DEVICE", default_value = "braid-hold")]
    pub hold: String,
}

/// Numbers for packets that have none that an edge can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Shim {
    /// With several paths, where all packets are put in order (`--reordering adaptive`)
    #[default]
    Auto,
    /// None: each flow keeps to one path
    Off,
}

/// Source of an edge's paths; exactly one is given.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ControlArgs {
    /// The controller: unix:/run/braid/fabric.sock or http://ADDRESS:PORT; once for each of several
    #[arg(long, value_name = "PLACE")]
    controller: Vec<Endpoint>,
    /// Instead of a controller, a file of layer-3 paths (pairs of prefixes) over other people's routers
    #[arg(long, value_name = "FILE")]
    paths: Option<PathBuf>,
}

impl ControlArgs {
    fn control(self, key: Option<Key>) -> Result<ControlSource, Error> {
        if let Some(paths) = self.paths {
            return Ok(ControlSource::File(paths));
        }
        // The argument group requires one of them. A socket takes no key, but one of several may be one.
        let remote = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Http(..));
        let keyed = self.controller.iter().any(remote);
        for (number, endpoint) in self.controller.iter().enumerate() {
            if self.controller[..number]
                .iter()
                .any(|known| known.is_same(endpoint))
            {
                return Err(Error::SameController(endpoint.clone()));
            }
        }
        let controllers = self.controller.into_iter();
        controllers
            .map(|endpoint| match remote(&endpoint) || !keyed {
                true => endpoint.with_key(key.clone()),
                false => Ok(endpoint),
            })
            .collect::<Result<_, _>>()
            .map(ControlSource::Controllers)
    }
}

/// `braid edge status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the edge
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs an edge until SIGTERM or SIGINT. Prints one line of JSON once packets pass, and notifies the
/// service manager, if there is one.
///
/// # Errors
/// The edge cannot start, or cannot go on.
pub fn run(run_dir: &Path, arguments: RunArgs) -> Result<(), Error> {
    let key = arguments.key_file.as_deref().map(Key::read).transpose()?;
    let control = arguments.control.control(key)?;
    if arguments.outside.contains(&arguments.inside) {
        return Err(Error::SameDevice(arguments.inside));
    }
    if let (ControlSource::Controllers(_), [_, second, ..]) =
        (&control, arguments.outside.as_slice())
    {
        return Err(Error::SeveralOutside(second.clone()));
    }
    let is_tagged = matches!(control, ControlSource::Controllers(_));
    let is_adaptive = arguments.reordering == Reordering::Adaptive;
    let options = Options {
        devices: Devices {
            inside: arguments.inside,
            outside: arguments.outside,
            hold: arguments.hold,
        },
        name: arguments.name,
        control,
        reordering: arguments.reordering,
        repair: arguments.repair,
        shim: arguments.shim == Shim::Auto && is_tagged && is_adaptive,
        hook: arguments.hook,
        run_dir: run_dir.to_owned(),
    };
    run::run(options, || {
        // The parent may have closed standard output.
        let mut out = std::io::stdout();
        let _ = out
            .write_all(b"{\"ready\": true}\n")
            .and_then(|()| out.flush());
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::warn!(%error, "the service manager does not hear that the edge is ready");
        }
    })
}

/// Queries a running edge.
///
/// # Errors
/// No edge answers, or the answer is not understood.
pub fn status(run_dir: &Path, name: &str) -> Result<Status, Error> {
    status::ask(&status::socket(run_dir, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_controllers_share_the_edges_key_but_for_a_socket() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, b"0123456789abcdef").expect("room");
        let key = Key::read(file.path()).expect("a key");
        let control = |places: &[&str], key: Option<Key>| {
            let controller = places.iter().map(|place| place.parse());
            let controller = controller.collect::<Result<_, _>>().expect("endpoints");
            let paths = None;
            ControlArgs { controller, paths }.control(key)
        };
        let both = ["unix:/run/braid/fabric.sock", "http://192.0.2.2:8080"];
        let ControlSource::Controllers(endpoints) =
            control(&both, Some(key.clone())).expect("both of them")
        else {
            panic!("no controllers");
        };
        let [Endpoint::Unix(_), Endpoint::Http(_, Some(given))] = &endpoints[..] else {
            panic!("{endpoints:?}");
        };
        assert_eq!(given, &key);
        assert!(matches!(control(&both, None), Err(Error::NoKey)));
        assert!(matches!(
            control(&both[..1], Some(key)),
            Err(Error::KeyForSocket)
        ));
    }

    #[test]
    fn a_device_on_both_sides_is_named() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: RunArgs,
        }
        let words = "edge --name west --inside lan0 --outside fab0 --outside lan0 --controller unix:/nowhere";
        let line: Line = clap::Parser::parse_from(words.split(' '));
        let error = run(Path::new("/nowhere"), line.run).unwrap_err();
        assert!(
            matches!(&error, Error::SameDevice(device) if device == "lan0"),
            "{error}"
        );
    }

    #[test]
    fn a_controller_that_is_given_twice_is_named() {
        let controller = |places: [&str; 3]| {
            let controller = places.iter().map(|place| place.parse());
            let controller = controller.collect::<Result<_, _>>().expect("endpoints");
            let paths = None;
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(&file, b"0123456789abcdef").expect("room");
            let key = Key::read(file.path()).expect("a key");
            ControlArgs { controller, paths }.control(Some(key))
        };
        for [one, again] in [
            ["http://192.0.2.2:8080", "http://192.0.2.2:8080/"],
            ["http://[2001:db8::2]:8080", "http://[2001:DB8:0::2]:8080"],
            ["http://alpha.example:8080", "http://Alpha.example:8080"],
            [
                "unix:/run/braid/fabric.sock",
                "unix:/run//braid/fabric.sock",
            ],
        ] {
            let error = controller([one, "http://192.0.2.3:8080", again]).expect_err("two are one");
            let text = error.to_string();
            assert!(text.contains(" is given twice"), "{text}");
            assert!(
                text.contains(again.trim_end_matches('/')) || again.starts_with("unix"),
                "{text}"
            );
        }
        let apart = [
            "http://192.0.2.2:8080",
            "http://192.0.2.2:8081",
            "unix:/run/braid/fabric.sock",
        ];
        assert!(controller(apart).is_ok());
    }
}
