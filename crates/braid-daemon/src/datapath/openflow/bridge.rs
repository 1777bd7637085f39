//! The bridge, by `ovs-vsctl`. Each call is one transaction of Open vSwitch's database: all of it happens, or nothing.
//!
//! The bridge forwards nothing by itself (`fail_mode=secure`) from the moment it exists, so that uplinks are never
//! switched to one another. It bears the run directory it belongs to; a bridge without that is somebody else's.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use braid_host::user_error::UserError;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use tokio::process::Command;

use super::tracker;

/// Name of the bridge.
pub(super) const BRIDGE: &str = "braid-ovs";
/// Type of its datapath.
const DATAPATH_TYPE: &str = "netdev";
/// Seconds for Open vSwitch to act.
const TIMEOUT_SECS: &str = "5";

pub(super) struct Bridge {
    ovs_run_dir: PathBuf,
    /// The run directory, as its mark.
    owner: String,
}

impl Bridge {
    pub fn new(ovs_run_dir: PathBuf, run_dir: &Path) -> Self {
        Self {
            ovs_run_dir,
            owner: run_dir.display().to_string(),
        }
    }

    pub fn ovs_run_dir(&self) -> &Path {
        &self.ovs_run_dir
    }

    /// Returns the one path of a Unix socket that Open vSwitch takes for this bridge's controller.
    pub fn controller_socket(&self) -> PathBuf {
        self.ovs_run_dir.join(format!("{BRIDGE}.controller"))
    }

    /// Returns true if the database of Open vSwitch takes connections. Never waits.
    pub fn is_database_up(&self) -> bool {
        let connect = || {
            let address = UnixAddr::new(&self.ovs_run_dir.join("db.sock"))?;
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
            socket::connect(socket.as_raw_fd(), &address)
        };
        connect().is_ok()
    }

    /// Returns true if the bridge exists.
    ///
    /// # Errors
    /// Open vSwitch does not answer, or a bridge of this name is somebody else's.
    pub async fn find(&self) -> Result<bool, UserError> {
        let bridges = self.vsctl(&["list-br"]).await?;
        if !bridges.lines().any(|name| name == BRIDGE) {
            return Ok(false);
        }
        let owner = self.vsctl(&["br-get-external-id", BRIDGE, "braid"]).await?;
        if owner.trim() == self.owner {
            return Ok(true);
        }
        let text = match owner.trim() {
            "" => format!("a bridge named {BRIDGE} exists and is not Braid's"),
            other => format!("the bridge {BRIDGE} belongs to the run directory {other}"),
        };
        let fix = format!("braid down with that --run-dir, or ovs-vsctl del-br {BRIDGE}");
        Err(UserError::new("foreign-bridge", text).fix(fix))
    }

    /// Makes the bridge if it does not exist, with exactly these ports.
    ///
    /// # Errors
    /// Open vSwitch refuses; a port belongs to another bridge.
    pub async fn set_ports(&self, wanted: &[&str]) -> Result<(), UserError> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |command: &[&str]| {
            words.push("--".to_owned());
            words.extend(command.iter().map(|word| (*word).to_owned()));
        };
        let exists = self.find().await?;
        let present = match exists {
            true => self.vsctl(&["list-ports", BRIDGE]).await?,
            false => String::new(),
        };
        if !exists {
            let target = format!("unix:{}", self.controller_socket().display());
            let owner = format!("external_ids:braid=\"{}\"", self.owner);
            add(&["add-br", BRIDGE]);
            add(&[
                "set",
                "bridge",
                BRIDGE,
                "datapath_type=netdev",
                "fail_mode=secure",
                "protocols=OpenFlow13",
                &owner,
            ]);
            add(&["set-controller", BRIDGE, &target]);
            add(&[
                "set",
                "controller",
                BRIDGE,
                "max_backoff=1000",
                "inactivity_probe=5000",
                "connection_mode=out-of-band",
            ]);
        }
        let missing = wanted
            .iter()
            .filter(|port| !present.lines().any(|name| name == **port));
        missing.for_each(|port| add(&["add-port", BRIDGE, port]));
        let stale = present.lines().filter(|port| !wanted.contains(port));
        stale.for_each(|port| add(&["--if-exists", "del-port", BRIDGE, port]));
        if words.is_empty() {
            return Ok(());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.vsctl(&words).await.map(drop)
    }

    /// Removes the bridge if it exists and is ours. Returns what was undone.
    ///
    /// # Errors
    /// Open vSwitch does not answer.
    pub async fn remove(&self) -> Result<Option<String>, UserError> {
        // A bridge that somebody else made in its place stays.
        if !self
            .find()
            .await
            .or_else(|error| match error.code.as_str() {
                "foreign-bridge" => Ok(false),
                _ => Err(error),
            })?
        {
            return Ok(None);
        }
        self.vsctl(&["--if-exists", "del-br", BRIDGE]).await?;
        Ok(Some(format!("ovs-vsctl del-br {BRIDGE}")))
    }

    /// Gives the connection tracker idle times for our connections.
    ///
    /// # Errors
    /// Open vSwitch refuses.
    pub async fn set_timeouts(&self) -> Result<(), UserError> {
        let zone = format!("zone={}", tracker::ZONE);
        let policy: Vec<&str> = [
            &["--", "--may-exist", "add-zone-tp", DATAPATH_TYPE, &zone][..],
            &tracker::TIMEOUTS,
        ]
        .concat();
        if self.has_datapath().await? {
            return self.vsctl(&policy).await.map(drop);
        }
        // Open vSwitch writes no record of a datapath by itself.
        let owner = format!("external_ids:braid=\"{}\"", self.owner);
        let made: Vec<&str> = [
            &[
                "--",
                "--id=@made",
                "create",
                "Datapath",
                "datapath_version=0",
            ][..],
            &[
                &owner,
                "--",
                "set",
                "Open_vSwitch",
                ".",
                "datapaths:netdev=@made",
            ],
            &policy,
        ]
        .concat();
        self.vsctl(&made).await.map(drop)
    }

    /// Removes what [`Bridge::set_timeouts`] has made. Returns what was undone.
    ///
    /// # Errors
    /// Open vSwitch does not answer.
    pub async fn remove_timeouts(&self) -> Result<Option<String>, UserError> {
        if !self.has_datapath().await? {
            return Ok(None);
        }
        let owner = format!("external_ids:braid=\"{}\"", self.owner);
        let words = ["--bare", "--columns=_uuid", "find", "Datapath", &owner];
        if !self.vsctl(&words).await?.trim().is_empty() {
            let command = ["remove", "Open_vSwitch", ".", "datapaths", DATAPATH_TYPE];
            self.vsctl(&command).await?;
            return Ok(Some(format!("ovs-vsctl {}", command.join(" "))));
        }
        let zone = format!("zone={}", tracker::ZONE);
        let command = ["--if-exists", "del-zone-tp", DATAPATH_TYPE, &zone];
        self.vsctl(&command).await.map(|_| None)
    }

    /// Returns true if the database has a record of the userspace datapath.
    async fn has_datapath(&self) -> Result<bool, UserError> {
        let found = self
            .vsctl(&["get", "Open_vSwitch", ".", "datapaths"])
            .await?;
        Ok(found.contains(DATAPATH_TYPE))
    }

    async fn vsctl(&self, words: &[&str]) -> Result<String, UserError> {
        let database = format!("--db=unix:{}/db.sock", self.ovs_run_dir.display());
        let output = Command::new("ovs-vsctl")
            .args([&database, &format!("--timeout={TIMEOUT_SECS}")])
            .args(words)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| {
                let failure = UserError::new("ovs", format!("ovs-vsctl: {error}"));
                failure.fix("install Open vSwitch (openvswitch-switch), or set kind = \"ebpf\"")
            })?;
        let said = String::from_utf8_lossy(&output.stderr);
        // It reports a port that the switch could not open as a warning.
        let broken = !output.status.success() || said.contains("Error detected");
        if !broken {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = said.lines().next().unwrap_or("no word of why");
        let failure = UserError::new("ovs", format!("Open vSwitch refuses: {said}"));
        Err(failure.fix(format!(
            "see that ovsdb-server and ovs-vswitchd run, with their sockets in {} (ovs_run_dir in [datapath])",
            self.ovs_run_dir.display()
        )))
    }
}
