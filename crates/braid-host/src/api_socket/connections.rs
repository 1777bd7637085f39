//! Connections to a local API: how many there may be, and how long one may be silent.
//!
//! Everybody on the machine may be able to connect (two groups, [`crate::peer`]), and each connection is a descriptor of the
//! process that moves the packets. Root's and the process' own user's are not limited, so that both always get
//! an answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::middleware::from_fn_with_state;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::admit;
use crate::http_connection::http_connection;
use crate::peer::{Access, Peer, PeerAuth};
use crate::seats::{Seat, Seats};

/// Most connections of one user who may read; further ones are closed.
const MAX_CONNECTIONS_OF_ONE: usize = 32;
/// Most connections of all who may not, who get a refusal.
const MAX_REFUSED_CONNECTIONS: usize = 8;
/// Most connections of all of these.
const MAX_CONNECTIONS: usize = 128;
/// Time for the headers of a request; also the time for which a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a failure to accept, which is for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Those whose connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    User(u32),
    Refused,
}

/// Serves a router to those whom `auth` admits, until `end` completes and the last reply is sent.
pub async fn serve(
    listener: UnixListener,
    auth: PeerAuth,
    router: Router,
    end: impl Future<Output = ()> + Send,
) {
    let router = router.layer(from_fn_with_state(auth.clone(), admit));
    let seats = Arc::new(Seats::default());
    let (ending, ended) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut end = pin!(end);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut end => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let peer = Peer::of(&stream);
        if let Ok(seat) = seat(&seats, &auth, peer) {
            let exchange = exchange(stream, peer, router.clone(), ended.clone());
            connections.spawn(async move {
                exchange.await;
                drop(seat);
            });
        }
    }
    drop(listener);
    drop(ending);
    while connections.join_next().await.is_some() {}
}

/// There is no place left.
struct Full;

/// Takes a place for a peer; none for one that is not counted.
fn seat(
    seats: &Arc<Seats<Holder>>,
    auth: &PeerAuth,
    peer: Peer,
) -> Result<Option<Seat<Holder>>, Full> {
    if auth.is_own(peer) {
        return Ok(None);
    }
    let (holder, most) = match peer.uid() {
        Some(uid) if auth.admit(peer, Access::Read).is_ok() => {
            (Holder::User(uid), MAX_CONNECTIONS_OF_ONE)
        }
        _ => (Holder::Refused, MAX_REFUSED_CONNECTIONS),
    };
    let seat = seats.take(holder, most, MAX_CONNECTIONS);
    seat.ok_or(Full).map(Some)
}

async fn exchange(stream: UnixStream, peer: Peer, router: Router, ended: watch::Receiver<()>) {
    let connection = http_connection(stream, ConnectInfo(peer), router, HEAD_TIMEOUT);
    let mut connection = pin!(connection);
    let over = async {
        let mut ended = ended;
        // Only its sender's end is waited for.
        while ended.changed().await.is_ok() {}
    };
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = over => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::trace!(%error, "a connection to the API ended");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use axum::routing::get;
    use nix::unistd::{Gid, Group};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;
    use crate::api_socket::bind;
    use crate::config::ApiConfig;
    use crate::run_dir::RunDir;

    const NOBODY: u32 = 65_534;

    /// Opens 200 connections, says nothing, and waits until no more than a number of them are open. Tells how many are,
    /// and keeps them until it is killed.
    const CROWD: &str = "
import select, socket, sys
path, most = sys.argv[1], int(sys.argv[2])
crowd = [socket.socket(socket.AF_UNIX) for _ in range(200)]
for each in crowd:
    each.connect(path)
poll = select.poll()
for each in crowd:
    poll.register(each, select.POLLIN | select.POLLHUP)
closed = 0
while len(crowd) - closed > most:
    for number, _ in poll.poll():
        poll.unregister(number)
        closed += 1
print(len(crowd) - closed, flush=True)
sys.stdin.read()
";

    struct Api {
        run_dir: RunDir,
        _end: oneshot::Sender<()>,
        _folder: tempfile::TempDir,
    }

    impl Api {
        fn serve(group: Option<String>) -> Api {
            let folder = tempfile::tempdir().unwrap();
            fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
            let run_dir = RunDir::new(folder.path());
            let auth = PeerAuth::new(&ApiConfig {
                group,
                change_group: None,
            });
            let auth = auth.unwrap();
            let listener = bind(&run_dir, &auth).unwrap();
            // As with two groups.
            fs::set_permissions(run_dir.socket(), Permissions::from_mode(0o666)).unwrap();
            let router = Router::new().route("/v1/status", get(|| async { "fine" }));
            let (end, ended) = oneshot::channel();
            tokio::spawn(serve(listener, auth, router, async {
                let _ = ended.await;
            }));
            Api {
                run_dir,
                _end: end,
                _folder: folder,
            }
        }

        async fn connect(&self) -> UnixStream {
            UnixStream::connect(self.run_dir.socket()).await.unwrap()
        }
    }

    async fn ask(stream: &mut UnixStream) -> String {
        let request = b"GET /v1/status HTTP/1.1\r\nhost: braid\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Silent connections of one local user used up the descriptors of the daemon and the hub.
    async fn expect_room_beside_a_crowd(group: Option<String>, places: usize) {
        let api = Api::serve(group);
        let mut crowd = Command::new("python3");
        let crowd = crowd
            .args(["-c", CROWD])
            .arg(api.run_dir.socket())
            .arg(places.to_string())
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut crowd = crowd.spawn().unwrap();
        let output = crowd.stdout.take().unwrap();
        let told = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).unwrap();
            line
        });
        let told = timeout(HEAD_TIMEOUT / 2, told).await;
        let mut root = api.connect().await;
        let answer = ask(&mut root).await;
        crowd.kill().unwrap();
        crowd.wait().unwrap();
        assert_eq!(told.unwrap().unwrap().trim(), places.to_string());
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("fine"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_user_without_access_has_few_connections() {
        expect_room_beside_a_crowd(None, MAX_REFUSED_CONNECTIONS).await;
    }

    #[tokio::test]
    async fn a_user_who_may_read_has_some() {
        let group = Group::from_gid(Gid::from_raw(NOBODY)).unwrap();
        let group = group.expect("every Debian has it").name;
        expect_room_beside_a_crowd(Some(group), MAX_CONNECTIONS_OF_ONE).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed() {
        let api = Api::serve(None);
        let mut stream = api.connect().await;
        stream.write_all(b"GET /v1/sta").await.unwrap();
        sleep(2 * HEAD_TIMEOUT).await;
        // Another test's child holds a copy of every descriptor until it runs its own program, so the end of the
        // connection may be seen only then, by the real clock.
        tokio::time::resume();
        let mut answer = Vec::new();
        let read = timeout(HEAD_TIMEOUT / 2, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "it is still open");
    }
}
