//! The thread that writes the history's files.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use braid_host::file;

use super::ring::{FILE_BYTES, Ring, Write};

/// Jobs that wait for a slow disk; further ones are dropped, and their records with them.
const MAX_JOBS: usize = 256;
/// Longest wait for the last job at the end of the daemon.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Hands work to the thread, which ends with this.
#[derive(Debug)]
pub struct Writer {
    jobs: SyncSender<Job>,
    error: Arc<Mutex<Option<String>>>,
}

enum Job {
    /// Write to a file; the whole is for a new one.
    Write {
        name: String,
        writes: Vec<Write>,
        whole: Vec<u8>,
    },
    Remove(String),
    /// Answer once all before is done.
    Finish(SyncSender<()>),
}

impl Writer {
    /// Starts the thread for files in this directory, which need not exist.
    pub fn start(folder: PathBuf) -> Writer {
        let (jobs, waiting) = sync_channel(MAX_JOBS);
        let error = Arc::new(Mutex::new(None));
        let shown = error.clone();
        let started = thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || work(&folder, &waiting, &shown));
        if let Err(refused) = started {
            set(&error, Some(refused.to_string()));
        }
        Writer { jobs, error }
    }

    /// Writes what a history has gathered.
    pub fn write(&self, name: &str, ring: &mut Ring) {
        let writes = ring.take_unwritten();
        if writes.is_empty() {
            return;
        }
        self.send(Job::Write {
            name: name.to_owned(),
            writes,
            whole: ring.image().to_vec(),
        });
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) {
        self.send(Job::Remove(name.to_owned()));
    }

    /// Waits for a moment until all is written.
    pub fn finish(&self) {
        let (tell, done) = sync_channel(1);
        self.send(Job::Finish(tell));
        // A disk that takes longer gets no more.
        let _ = done.recv_timeout(END_TIMEOUT);
    }

    /// Returns the error of the last job.
    pub fn error(&self) -> Option<String> {
        let error = self.error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, job: Job) {
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job) {
            set(&self.error, Some("the disk is too slow".to_owned()));
        }
    }
}

fn set(error: &Mutex<Option<String>>, value: Option<String>) {
    *error.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

fn work(folder: &Path, jobs: &Receiver<Job>, error: &Mutex<Option<String>>) {
    while let Ok(job) = jobs.recv() {
        let outcome = match job {
            Job::Write {
                name,
                writes,
                whole,
            } => write(folder, &name, &writes, &whole),
            Job::Remove(name) => file::remove(&folder.join(name)),
            Job::Finish(tell) => {
                // Nobody may wait any more.
                let _ = tell.send(());
                continue;
            }
        };
        let why = outcome
            .err()
            .map(|error| format!("{}: {error}", folder.display()));
        if let Some(why) = &why {
            tracing::debug!(why, "cannot write the history");
        }
        set(error, why);
    }
}

fn write(folder: &Path, name: &str, writes: &[Write], whole: &[u8]) -> io::Result<()> {
    let path = folder.join(name);
    let open = OpenOptions::new().write(true).open(&path);
    match open {
        Ok(file) if file.metadata()?.len() == FILE_BYTES as u64 => {
            for Write { offset, bytes } in writes {
                file.write_all_at(bytes, *offset)?;
            }
            Ok(())
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        // New, or somebody has shortened it.
        _ => {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
            file::replace(&path, whole, 0o600)
        }
    }
}
