//! Persistent state of the daemon: its changes to the machine, and the numbers of the uplinks.

use std::fs;
use std::io;
use std::path::Path;

use braid_core::{MAX_UPLINKS, UplinkId};
use serde::{Deserialize, Serialize};

use crate::file;
use crate::run_dir::{RunDir, network_namespace};
use crate::sysctl::{Saved, SavedSysctl};
use crate::user_error::UserError;

/// Contents of `state.json`. Written before the kernel is changed, so that another process can undo the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The boot that it belongs to: a reboot undoes all changes.
    pub boot: String,
    /// The network namespace that was changed, as `/proc/self/ns/net` names it.
    pub network: String,
    /// Previous values of changed sysctls.
    pub saved: Saved,
    /// Devices that outlive the process.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Numbers of the uplinks, if it has any. Flows in the kernel refer to these, so the next daemon must use the
    /// same ones.
    pub uplinks: Vec<UplinkNumber>,
}

/// The number of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkNumber {
    /// Its number.
    pub index: u8,
    /// Its network device.
    pub device: String,
    /// The kernel's index of that device, which identifies it after it was renamed; 0 while it does not exist.
    #[serde(default)]
    pub ifindex: u32,
    /// Number of failures: path cache entries from before the last one are invalid.
    #[serde(default)]
    pub failures: u32,
}

/// State of an earlier daemon in the run directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreviousState {
    /// None, or none of this boot.
    Nothing,
    /// Its state.
    State(State),
    /// An unreadable file: the reason, and its present place. Changes can only be found in the kernel, and the
    /// previous values of sysctls are lost.
    Broken(String),
}

impl State {
    /// Returns a state of this boot and network without any changes.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn fresh() -> Result<State, UserError> {
        Ok(State {
            boot: boot()?,
            network: network_namespace()?,
            ..State::default()
        })
    }

    /// Reads the state of an instance. An unreadable file is renamed, so that it fails only once and can still
    /// be inspected.
    ///
    /// # Errors
    /// The system refused to read or rename the file.
    pub fn load(run_dir: &RunDir) -> Result<PreviousState, UserError> {
        let path = run_dir.state();
        let refused =
            |what: &str, error| UserError::io(format!("{what} {}", path.display()), &error);
        let aside = run_dir.broken_state();
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && aside.exists() => {
                return Ok(PreviousState::Broken(format!("see {}", aside.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(PreviousState::Nothing);
            }
            bytes => bytes.map_err(|error| refused("read", error))?,
        };
        match State::parse(&path, &bytes) {
            Ok(state) if state.boot == boot()? => Ok(PreviousState::State(state)),
            Ok(_) => Ok(PreviousState::Nothing),
            Err(failure) => {
                fs::rename(&path, &aside).map_err(|error| refused("put aside", error))?;
                let text = format!("{}; it is now {}", failure.text, aside.display());
                tracing::warn!(text, "cannot read the state of an earlier daemon");
                Ok(PreviousState::Broken(text))
            }
        }
    }

    /// Reads the contents of a state file; `path` is for the error only.
    ///
    /// # Errors
    /// They are not a valid state.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<State, UserError> {
        let broken = |why: String| {
            let fix = "braid up and braid down put it aside and go by what the kernel tells";
            UserError::new("state", format!("{}: {why}", path.display())).fix(fix)
        };
        let state: State =
            serde_json::from_slice(bytes).map_err(|error| broken(error.to_string()))?;
        state.check().map_err(broken)?;
        Ok(state)
    }

    /// Root writes to these paths, so they must be below `/proc/sys/net` whoever wrote the file.
    fn check(&self) -> Result<(), String> {
        for SavedSysctl { key, .. } in &self.saved.sysctls {
            let mut parts = key.split('/');
            let below_net = parts.next() == Some("net") && key.len() > "net/".len();
            if !below_net || parts.any(|part| matches!(part, "" | "." | "..")) {
                return Err(format!("{key:?} is no sysctl of Braid's"));
            }
        }
        for (at, uplink) in self.uplinks.iter().enumerate() {
            let index = uplink.index;
            if UplinkId(index).index() >= MAX_UPLINKS {
                return Err(format!("{index} is no uplink's number"));
            }
            if self.uplinks[..at].iter().any(|other| other.index == index) {
                return Err(format!("two uplinks have number {index}"));
            }
        }
        Ok(())
    }

    /// Checks that the state belongs to the network namespace of the calling thread: undoing it in another one
    /// would harm both.
    ///
    /// # Errors
    /// It belongs to another one.
    pub fn check_network(&self) -> Result<(), UserError> {
        let here = network_namespace()?;
        if self.network == here {
            return Ok(());
        }
        let text = format!(
            "started in network namespace {}, this is {here}",
            self.network
        );
        Err(UserError::new("other-network", text).fix(
            "run it there (nsenter --net=…); if that namespace is gone, unmount bpf/ in the run \
             directory and remove the directory",
        ))
    }

    /// Replaces the file atomically and durably: readers see the old or the new one.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn store(&self, run_dir: &RunDir) -> Result<(), UserError> {
        let path = run_dir.state();
        let write = || file::replace(&path, &serde_json::to_vec_pretty(self)?, 0o644);
        write().map_err(|error| UserError::io(format!("write {}", path.display()), &error))
    }
}

/// Returns the id of this boot.
///
/// # Errors
/// `/proc` cannot be read.
pub fn boot() -> Result<String, UserError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path);
    text.map(|id| id.trim().to_owned())
        .map_err(|error| UserError::io(format!("read {path}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_what_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert_eq!(State::load(&run_dir).unwrap(), PreviousState::Nothing);
        let mut state = State::fresh().unwrap();
        state.uplinks.push(UplinkNumber {
            index: 3,
            device: "wwan0".into(),
            ifindex: 9,
            failures: 2,
        });
        state.store(&run_dir).unwrap();
        let loaded = State::load(&run_dir).unwrap();
        assert_eq!(loaded, PreviousState::State(state.clone()));
        state.check_network().unwrap();
        state.boot = "an earlier one".into();
        state.store(&run_dir).unwrap();
        assert_eq!(State::load(&run_dir).unwrap(), PreviousState::Nothing);
    }

    #[test]
    fn a_broken_file_is_put_aside_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        for contents in [&b""[..], b"{", b"\0\0\0\0", b"{\"boot\":\"\xff"] {
            fs::write(run_dir.state(), contents).unwrap();
            let PreviousState::Broken(why) = State::load(&run_dir).unwrap() else {
                panic!("taken for a state: {contents:?}");
            };
            assert!(why.ends_with("state.json.broken"), "{why}");
            assert_eq!(fs::read(run_dir.broken_state()).unwrap(), contents);
            let again = State::load(&run_dir).unwrap();
            assert!(matches!(again, PreviousState::Broken(_)), "{again:?}");
        }
        let state = State::fresh().unwrap();
        state.store(&run_dir).unwrap();
        assert_eq!(State::load(&run_dir).unwrap(), PreviousState::State(state));
    }

    fn with_key(key: &str) -> State {
        let mut state = State::fresh().unwrap();
        state.saved.sysctls.push(SavedSysctl {
            key: key.into(),
            before: "0".into(),
            ours: "1".into(),
        });
        state
    }

    #[test]
    fn a_file_that_would_have_us_write_elsewhere_is_foreign() {
        let refused = |state: &State| {
            let bytes = serde_json::to_vec(state).unwrap();
            State::parse(Path::new("state.json"), &bytes).is_err()
        };
        assert!(!refused(&with_key("net/ipv4/conf/eth0.5/rp_filter")));
        for key in [
            "net/../kernel/core_pattern",
            "../../etc/passwd",
            "/etc/passwd",
            "kernel/core_pattern",
            "net//x",
            "net/.",
            "net/",
            "net",
            "",
        ] {
            assert!(refused(&with_key(key)), "{key}");
        }
        let mut twice = State::fresh().unwrap();
        let same = |device: &str| UplinkNumber {
            index: 3,
            device: device.into(),
            ifindex: 0,
            failures: 0,
        };
        twice.uplinks = vec![same("a"), same("b")];
        assert!(refused(&twice));
        twice.uplinks = vec![UplinkNumber {
            index: 200,
            ..same("a")
        }];
        assert!(refused(&twice));
    }
}
