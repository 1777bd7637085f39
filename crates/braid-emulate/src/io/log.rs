//! The decision log: one CSV line per packet, once its fate is known.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::EmulatorError;
use crate::Time;
use crate::link::Output;

const HEADING: &str = "direction,number,bytes,arrived_ns,started_ns,due_ns,fate,written_ns";

/// The file, buffered: a line costs no system call.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Log {
    pub fn create(path: &Path) -> Result<Log, EmulatorError> {
        let refuse = |source| EmulatorError::Log {
            path: path.to_owned(),
            source,
        };
        let file = File::create(path).map_err(refuse)?;
        let mut file = BufWriter::with_capacity(1 << 16, file);
        writeln!(file, "{HEADING}").map_err(refuse)?;
        Ok(Log {
            path: path.to_owned(),
            file,
        })
    }

    /// `written` is when the packet was written to the device, if it was.
    pub fn line<P>(
        &mut self,
        direction: &str,
        output: &Output<P>,
        written: Option<Time>,
    ) -> Result<(), EmulatorError> {
        let Output {
            number,
            len,
            arrived,
            started,
            due,
            fate,
            ..
        } = output;
        let (arrived, started, due) = (arrived.as_nanos(), started.as_nanos(), due.as_nanos());
        let fate = fate.name();
        write!(
            self.file,
            "{direction},{number},{len},{arrived},{started},{due},{fate},"
        )
        .and_then(|()| match written {
            Some(at) => writeln!(self.file, "{}", at.as_nanos()),
            None => writeln!(self.file),
        })
        .map_err(|source| EmulatorError::Log {
            path: self.path.clone(),
            source,
        })
    }

    pub fn flush(&mut self) -> Result<(), EmulatorError> {
        self.file.flush().map_err(|source| EmulatorError::Log {
            path: self.path.clone(),
            source,
        })
    }
}
