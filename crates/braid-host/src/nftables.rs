//! Tables of nftables, by `nft`.

use std::io;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Errors of `nft`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not exist, or cannot be run.
    #[error("nft: {0}")]
    Missing(#[source] io::Error),
    /// It refuses, for this reason.
    #[error("nft refuses a table of Braid's: {0}")]
    Refused(String),
}

/// Runs commands as one transaction: all of them happen, or none.
///
/// # Errors
/// There is no `nft`, or it refuses.
pub async fn load(ruleset: &str) -> Result<(), Error> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::Missing)?;
    if let Some(mut input) = child.stdin.take() {
        let written = input.write_all(ruleset.as_bytes()).await;
        written.map_err(Error::Missing)?;
    }
    let output = child.wait_with_output().await.map_err(Error::Missing)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("it says nothing");
    Err(Error::Refused(said.to_owned()))
}

/// Returns true if a table exists, by its family and name.
///
/// # Errors
/// `nft` cannot be run. Without `nft` there never was a table.
pub async fn has_table(table: &str) -> Result<bool, Error> {
    let asked = Command::new("nft")
        .args(["list", "tables"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await;
    match asked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::Missing(error)),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            Ok(said.lines().any(|line| line == format!("table {table}")))
        }
    }
}
