//! JSON of secrets: writing it leaves no copies in memory that was given back.

use std::io;

use serde::Serialize;
use zeroize::Zeroizing;

/// A value's JSON in one line, zeroed on drop.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn to_vec(value: &impl Serialize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    measured(|to| serde_json::to_writer(to, value))
}

/// A value's JSON in indented lines, zeroed on drop.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn to_vec_pretty(value: &impl Serialize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    measured(|to| serde_json::to_writer_pretty(to, value))
}

/// Writes twice: once for the length, since a buffer that grows leaves copies.
fn measured(
    write: impl Fn(&mut dyn io::Write) -> serde_json::Result<()>,
) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    let mut length = Length(0);
    write(&mut length)?;
    let mut json = Zeroizing::new(Vec::with_capacity(length.0));
    write(&mut *json)?;
    Ok(json)
}

/// Counts what is written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
