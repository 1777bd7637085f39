//! Client of the daemon's API on its Unix socket.

use std::io;
use std::time::Duration;

use braid_host::report::ErrorReport;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longest wait for an answer. `POST /v1/down` takes longest: some dozens of kernel requests.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Reason why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The daemon cannot be reached.
    Unreachable(UserError),
    /// The daemon answered with this error.
    Refused(UserError),
}

/// Sends a GET request.
pub async fn get<T: DeserializeOwned>(run_dir: &RunDir, path: &str) -> Result<T, NoAnswer> {
    ask(run_dir, Method::GET, path, Bytes::new(), ANSWER_WITHIN).await
}

/// Sends a GET request that the daemon may answer after `wait`.
pub async fn await_news<T: DeserializeOwned>(
    run_dir: &RunDir,
    path: &str,
    wait: Duration,
) -> Result<T, NoAnswer> {
    let patience = ANSWER_WITHIN + wait;
    ask(run_dir, Method::GET, path, Bytes::new(), patience).await
}

/// Sends a POST request without a body.
pub async fn post<T: DeserializeOwned>(run_dir: &RunDir, path: &str) -> Result<T, NoAnswer> {
    ask(run_dir, Method::POST, path, Bytes::new(), ANSWER_WITHIN).await
}

/// Sends a POST request without a body that the daemon may answer after `wait`.
pub async fn post_and_wait<T: DeserializeOwned>(
    run_dir: &RunDir,
    path: &str,
    wait: Duration,
) -> Result<T, NoAnswer> {
    let patience = ANSWER_WITHIN + wait;
    ask(run_dir, Method::POST, path, Bytes::new(), patience).await
}

/// Sends a POST request with a body.
pub async fn create<T: DeserializeOwned>(
    run_dir: &RunDir,
    path: &str,
    what: &impl Serialize,
) -> Result<T, NoAnswer> {
    let body = serde_json::to_vec(what)
        .map_err(|error| NoAnswer::Refused(UserError::new("json", error.to_string())))?;
    ask(run_dir, Method::POST, path, body.into(), ANSWER_WITHIN).await
}

/// Sends a DELETE request.
pub async fn delete<T: DeserializeOwned>(run_dir: &RunDir, path: &str) -> Result<T, NoAnswer> {
    ask(run_dir, Method::DELETE, path, Bytes::new(), ANSWER_WITHIN).await
}

/// Escapes any name as one segment of a path.
pub fn path_segment(name: &str) -> String {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    utf8_percent_encode(name, PLAIN).to_string()
}

async fn ask<T>(
    run_dir: &RunDir,
    method: Method,
    path: &str,
    body: Bytes,
    patience: Duration,
) -> Result<T, NoAnswer>
where
    T: DeserializeOwned,
{
    let stream = UnixStream::connect(run_dir.socket())
        .await
        .map_err(|error| NoAnswer::Unreachable(unreachable(run_dir, &error)))?;
    let exchanged = timeout(patience, exchange(stream, method, path, body)).await;
    let broken = |why: String| {
        let place = run_dir.socket();
        let text = format!(
            "the daemon behind {} does not answer: {why}",
            place.display()
        );
        let log = run_dir.log();
        NoAnswer::Unreachable(
            UserError::new("no-answer", text).fix(format!("see {}", log.display())),
        )
    };
    let (good, body) = exchanged
        .map_err(|_| broken(format!("nothing within {} s", patience.as_secs())))?
        .map_err(|error| broken(error.to_string()))?;
    if good {
        return serde_json::from_slice(&body).map_err(|error| {
            let text = format!("the daemon's answer is not understood: {error}");
            let fix = "the daemon may be of another version: braid up after ending it with SIGTERM";
            NoAnswer::Refused(UserError::new("version", text).fix(fix))
        });
    }
    match serde_json::from_slice::<ErrorReport>(&body) {
        Ok(report) => Err(NoAnswer::Refused(report.error)),
        Err(_) => Err(broken(
            "it says something that is no error of ours".to_owned(),
        )),
    }
}

async fn exchange(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(bool, Bytes), hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let conversation = async {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "braid")
            .header("connection", "close")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .expect("a request whose words are escaped is well-formed");
        let response = sender.send_request(request).await?;
        let good = response.status().is_success();
        Ok((good, response.into_body().collect().await?.to_bytes()))
    };
    let (answer, _) = tokio::join!(conversation, connection);
    answer
}

/// Explains an unreachable daemon.
fn unreachable(run_dir: &RunDir, error: &io::Error) -> UserError {
    let place = run_dir.socket();
    let place = place.display();
    if error.kind() == io::ErrorKind::PermissionDenied {
        let failure = UserError::new("forbidden", format!("the daemon at {place}: {error}"));
        return failure.fix("use sudo, or have [api] group name a group that you are in");
    }
    if error.kind() == io::ErrorKind::NotADirectory || error.kind() == io::ErrorKind::InvalidInput {
        let path = run_dir.path().display();
        let failure = UserError::new("not-up", format!("run directory {path}: {error}"));
        return failure.fix("--run-dir names the directory that braid up was given");
    }
    if let Some(pid) = run_dir.holder() {
        let text = format!("the daemon, process {pid}, does not listen at {place}: {error}");
        return UserError::new("no-answer", text).fix(format!("see {}", run_dir.log().display()));
    }
    if run_dir.state().exists() {
        let text = "no daemon is running, but its datapath is at work (it crashed or was killed)";
        let fix = "braid up takes over without a lost packet; braid down removes everything";
        return UserError::new("daemon-dead", text).fix(fix);
    }
    UserError::new("not-up", format!("no daemon at {place}: {error}")).fix("braid up starts one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_part_of_a_path() {
        assert_eq!(path_segment("lap-top_2.home"), "lap-top_2.home");
        assert_eq!(path_segment("a/../b c"), "a%2F..%2Fb%20c");
    }
}
