//! HTTP/1.1 requests, which captive portals intercept.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::{Egress, ProbeError, tcp};
use crate::liveness::Expect;

/// Longest response header in bytes; a longer one is not the expected answer.
const MAX_HEAD: usize = 16 * 1024;

pub(super) async fn ask(
    egress: &Egress,
    dest: SocketAddr,
    host: &str,
    path: &str,
    expect: &Expect,
) -> Result<(), ProbeError> {
    let request = request(dest, host, path)?;
    // A refused connection is no portal: portals want to be seen.
    let stream = tcp::connect(egress, dest, None)
        .await?
        .map_err(ProbeError::heard)?;
    let mut client = http1::Builder::new();
    client.max_buf_size(MAX_HEAD);
    let handshake = client.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(silent)?;
    let talk = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        read(answer, expect).await
    };
    driven(connection, talk).await
}

/// Returns the outcome of requests on a connection of HTTP. The end of the connection does not decide: the requests' own
/// outcome says more.
pub(crate) async fn driven<T>(connection: impl Future, requests: impl Future<Output = T>) -> T {
    let drive = async {
        connection.await;
        std::future::pending().await
    };
    tokio::select! {
        outcome = requests => outcome,
        never = drive => never,
    }
}

fn request(dest: SocketAddr, host: &str, path: &str) -> Result<Request<Empty<Bytes>>, ProbeError> {
    let name = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let name = match dest.port() {
        80 => name,
        port => format!("{name}:{port}"),
    };
    Request::get(path)
        .header(HOST, name)
        .header(USER_AGENT, "braid")
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| ProbeError::NotSent(std::io::Error::other(error)))
}

async fn read(answer: Response<hyper::body::Incoming>, expect: &Expect) -> Result<(), ProbeError> {
    let status = answer.status();
    let most = match expect {
        Expect::NoContent => 0,
        Expect::Body(body) => body.len(),
    };
    // An unexpected status decides without the body.
    judge(expect, status, None).map_err(ProbeError::Wrong)?;
    let body = Limited::new(answer.into_body(), most).collect().await;
    match body {
        Ok(body) => judge(expect, status, Some(&body.to_bytes())).map_err(ProbeError::Wrong),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(ProbeError::Wrong(format!("more than {most} bytes of body")))
        }
        Err(_) => Err(ProbeError::Silent),
    }
}

/// Compares the status, and the body once it is read, with the expected ones.
///
/// # Errors
/// A short description of the difference.
pub fn judge(expect: &Expect, status: StatusCode, body: Option<&[u8]>) -> Result<(), String> {
    let (wanted, text) = match expect {
        Expect::NoContent => (StatusCode::NO_CONTENT, ""),
        Expect::Body(body) => (StatusCode::OK, body.as_str()),
    };
    if status != wanted {
        return Err(format!(
            "status {} instead of {}",
            status.as_u16(),
            wanted.as_u16()
        ));
    }
    match body {
        Some(body) if body != text.as_bytes() => Err(format!(
            "another body of {} bytes than was expected",
            body.len()
        )),
        _ => Ok(()),
    }
}

/// An answer that is not HTTP does not come from the target.
fn broken(error: hyper::Error) -> ProbeError {
    if error.is_parse() {
        ProbeError::Wrong("an answer that is no HTTP".to_owned())
    } else {
        ProbeError::Silent
    }
}

fn silent(_: hyper::Error) -> ProbeError {
    ProbeError::Silent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_have_to_be_exact() {
        let none = Expect::NoContent;
        let text = Expect::Body("success\n".to_owned());
        for (expect, status, body, wrong) in [
            (&none, 204, "", None),
            (&none, 302, "", Some("status 302 instead of 204")),
            (&none, 200, "", Some("status 200 instead of 204")),
            (&text, 200, "success\n", None),
            (&text, 204, "", Some("status 204 instead of 200")),
            (
                &text,
                200,
                "success",
                Some("another body of 7 bytes than was expected"),
            ),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let found = judge(expect, status, Some(body.as_bytes())).err();
            assert_eq!(found.as_deref(), wrong, "{expect:?} {status} {body:?}");
        }
    }
}
