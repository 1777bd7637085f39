//! Commands.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::ATTEMPT_TIMEOUT;
use crate::message::Message;

/// Longest part of a command's complaint that is told.
const MAX_COMPLAINT_CHARS: usize = 200;

/// Runs a command with the message as JSON on its standard input. It is killed after [`ATTEMPT_TIMEOUT`].
pub(super) async fn run(words: &[String], message: &Message) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("an empty command")?;
    let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("BRAID_ALARM_TEXT", &message.text)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    let stdin = child.stdin.take();
    let ends = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read its input is as good as one that does.
            let _ = stdin.write_all(&json).await;
        }
        child.wait_with_output().await
    };
    let output = match timeout(ATTEMPT_TIMEOUT, ends).await {
        Ok(output) => output.map_err(|error| format!("{program}: {error}"))?,
        Err(_) => {
            return Err(format!(
                "{program} did not end within {} s",
                ATTEMPT_TIMEOUT.as_secs()
            ));
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let complaint: String = complaint.trim().chars().take(MAX_COMPLAINT_CHARS).collect();
    match complaint.is_empty() {
        true => Err(format!("{program} ended with {}", output.status)),
        false => Err(format!(
            "{program} ended with {}: {complaint}",
            output.status
        )),
    }
}
