//! Which start of an edge this is: with each its numbers begin at 0, and the far edge may still know the
//! last one's.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::Error;

/// The epoch of this start: the one after the last start's, which `file` has, so that each comes again
/// after 256 starts. Where the last one is not known, as after a reboot, the clock's seconds say.
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
    let fresh = file.with_extension("fresh");
    fs::write(&fresh, format!("{epoch}\n")).map_err(failed)?;
    fs::rename(&fresh, file).map_err(failed)?;
    Ok(epoch)
}

/// Of the clock, as many as fit.
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
        // What is no epoch is no reason not to start, and is mended.
        fs::write(&file, "").expect("a file");
        let mended = start();
        assert_eq!(start(), mended.wrapping_add(1));
        let nowhere = file.join("nowhere");
        let error = next(&nowhere).unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
    }
}
