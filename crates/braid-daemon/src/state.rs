//! What the daemon must not forget when it dies: what it changed, and which uplink had which number.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::plumbing::Saved;
use crate::run_dir::{RunDir, network_namespace};

/// Contents of `state.json`. Written before the kernel is changed, so that whatever is changed can
/// be undone by somebody else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The boot that it belongs to: what an earlier boot changed is gone.
    pub boot: String,
    /// The network namespace that was changed, as `/proc/self/ns/net` names it.
    pub network: String,
    /// Sysctls as they were found.
    pub saved: Saved,
    /// Flows in the kernel refer to uplinks by number: the next daemon must use the same ones.
    pub uplinks: Vec<Remembered>,
}

/// An uplink's number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Its number.
    pub index: u8,
    /// Its network device.
    pub device: String,
    /// The kernel's index of that device, by which it is known again after it was renamed; 0 while
    /// it does not exist.
    #[serde(default)]
    pub ifindex: u32,
}

impl State {
    /// A state of this boot and network, with nothing changed yet.
    ///
    /// # Errors
    /// `/proc` is not to be had.
    pub fn fresh() -> Result<State, Failure> {
        Ok(State {
            boot: boot()?,
            network: network_namespace()?,
            ..State::default()
        })
    }

    /// Reads the state of an instance; `None` if it left none in this boot.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn load(run_dir: &RunDir) -> Result<Option<State>, Failure> {
        let path = run_dir.state();
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => {
                bytes.map_err(|error| Failure::io(format!("read {}", path.display()), &error))?
            }
        };
        let state = State::parse(&path, &bytes)?;
        Ok((state.boot == boot()?).then_some(state))
    }

    /// Reads the contents of a state file; `path` is for the error only.
    ///
    /// # Errors
    /// They are not a state, whatever the disk has made of them, with what to do about it.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<State, Failure> {
        serde_json::from_slice(bytes).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            let fix = "remove the file and run braid down; sysctls then stay as Braid set them";
            Failure::new("state", text).fix(fix)
        })
    }

    /// Checks that the state is of the network namespace that the calling thread is in: undoing
    /// somewhere else what was done here would harm both.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check_network(&self) -> Result<(), Failure> {
        let here = network_namespace()?;
        if self.network == here {
            return Ok(());
        }
        let text = format!(
            "started in network namespace {}, this is {here}",
            self.network
        );
        Err(Failure::new("other-network", text).fix(
            "run it there (nsenter --net=…); if that namespace is gone, unmount bpf/ in the run \
             directory and remove the directory",
        ))
    }

    /// Replaces the file in one step and makes it durable: whoever reads it sees the old or the new
    /// one, never half.
    ///
    /// # Errors
    /// What the system said.
    pub fn store(&self, run_dir: &RunDir) -> Result<(), Failure> {
        let path = run_dir.state();
        let fresh = path.with_extension("json.new");
        let write = || {
            let text = serde_json::to_vec_pretty(self)?;
            let mut file = File::create(&fresh)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)
        };
        write().map_err(|error| Failure::io(format!("write {}", path.display()), &error))
    }
}

fn boot() -> Result<String, Failure> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path);
    text.map(|id| id.trim().to_owned())
        .map_err(|error| Failure::io(format!("read {path}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_what_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert_eq!(State::load(&run_dir).unwrap(), None);
        let mut state = State::fresh().unwrap();
        state.uplinks.push(Remembered {
            index: 3,
            device: "wwan0".into(),
            ifindex: 9,
        });
        state.store(&run_dir).unwrap();
        assert_eq!(State::load(&run_dir).unwrap(), Some(state.clone()));
        state.check_network().unwrap();
        state.boot = "an earlier one".into();
        state.store(&run_dir).unwrap();
        assert_eq!(State::load(&run_dir).unwrap(), None);
    }

    #[test]
    fn a_broken_file_is_an_error_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        for contents in [&b""[..], b"{", b"\0\0\0\0", b"{\"boot\":\"\xff"] {
            fs::write(run_dir.state(), contents).unwrap();
            assert!(State::load(&run_dir).unwrap_err().fix.is_some());
        }
    }
}
