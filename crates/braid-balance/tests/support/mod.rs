//! Namespaces, devices and servers for tests on real packets. Everything a test makes is taken
//! away when it ends, however it ends. Needs root; without it the first command fails loudly.
#![allow(dead_code)]

pub mod choose;
pub mod frame;
pub mod net;
pub mod probe;
pub mod race;
pub mod race_twin;
pub mod talk;
pub mod tun;
pub mod twin;
pub mod world;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

static SERIAL: AtomicUsize = AtomicUsize::new(0);

/// A name that no other test and no other run uses.
pub fn unique() -> String {
    format!(
        "brb{}x{}",
        std::process::id(),
        SERIAL.fetch_add(1, Ordering::Relaxed)
    )
}

/// A bpffs of one's own.
pub struct BpfFs(TempDir);

impl BpfFs {
    pub fn mount() -> Self {
        let folder = tempfile::tempdir().expect("a new directory");
        mount(
            Some("bpf"),
            folder.path(),
            Some("bpf"),
            MsFlags::empty(),
            None::<&str>,
        )
        .expect("mounting a bpffs (these tests need root)");
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}
