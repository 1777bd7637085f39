//! Epochs tell the starts of an edge apart: shim numbers begin at 0 with each start, while the other edge
//! may still remember the last start's.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use braid_host::file::replace;

use crate::Error;

/// Returns the epoch of this start, one more than the last one in `file`, so that epochs repeat after 256
/// starts. If the last one is unknown, as after a reboot, the clock's seconds are used.
///
/// # Errors
/// The file can neither be read nor written.
pub fn next(file: &Path) -> Result<u8, Error> {
    let failed = |source| Error::system(format!("keeping {}", file.display()), source);
    let last = match fs::read_to_string(file) {
        Ok(text) => text.trim_ascii().parse().ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let epoch = last.map_or_else(seconds, |last: u8| last.wrapping_add(1));
    replace(file, format!("{epoch}\n").as_bytes(), 0o644).map_err(failed)?;
    Ok(epoch)
}

/// Returns the low byte of the clock's seconds.
fn seconds() -> u8 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs().to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_epoch_comes_again_before_all_others_have() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("epoch");
        let start = || next(&file).expect("an epoch");
        let first = start();
        let others: BTreeSet<u8> = (0..255).map(|_| start()).collect();
        assert_eq!(others.len(), 255);
        assert!(!others.contains(&first));
        assert_eq!(start(), first);
        // An invalid file does not prevent a start, and is replaced.
        fs::write(&file, "").expect("a file");
        let mended = start();
        assert_eq!(start(), mended.wrapping_add(1));
        let nowhere = file.join("nowhere");
        let error = next(&nowhere).unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
    }
}
