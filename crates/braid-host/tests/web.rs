//! The guard of the page, as a browser and an intruder meet it: real connections, real requests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use braid_host::web::{Guard, LoginToken, LoginTokens, Role, WebAuth, guarded, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A page with one thing to see and one to do, and both tokens.
struct Page {
    address: SocketAddr,
    tokens: LoginTokens,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Returns the value of a header; empty if there is none.
    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next()
            .unwrap_or_default()
    }
}

impl Page {
    async fn open() -> Page {
        let tokens = LoginTokens::default()
            .with(Role::Viewer, LoginToken::generate().unwrap())
            .with(Role::Operator, LoginToken::generate().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new()
            .route("/", get(|| async { "the page" }))
            .route("/v1/status", get(|| async { "the status" }))
            .route("/v1/reload", post(|| async { "done" }));
        let guard = Guard {
            auth: Arc::new(WebAuth::new(tokens.clone()).unwrap()),
            names: vec!["gate.example".parse().unwrap()],
            command: "braid web token",
        };
        tokio::spawn(serve(listener, None, guarded(routes, guard)));
        Page { address, tokens }
    }

    async fn send(&self, request: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let text = format!(
            "{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Answer {
            status: head[9..12].parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Sends a request by the page's own name.
    async fn ask(&self, request: &str, headers: &str) -> Answer {
        let headers = format!("host: {}\r\n{headers}", self.address);
        self.send(request, &headers, "").await
    }

    async fn try_token(&self, token: &str) -> Answer {
        let headers = format!("host: {}\r\n", self.address);
        self.send("POST /login", &headers, &format!("token={token}"))
            .await
    }

    /// Logs in, and returns the header with the session's cookie.
    async fn log_in(&self, role: Role) -> String {
        let token = self.tokens.get(role).unwrap().as_str();
        let answer = self.try_token(token).await;
        assert_eq!((answer.status, answer.header("location")), (303, "/"));
        let cookie = answer.header("set-cookie");
        for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age="] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let (cookie, _) = cookie.split_once(';').unwrap();
        format!("cookie: {cookie}\r\n")
    }

    /// Returns the header with the CSRF token of a session.
    async fn csrf(&self, cookie: &str) -> String {
        let session = self.ask("GET /session", cookie).await;
        let session: serde_json::Value = serde_json::from_str(&session.body).unwrap();
        format!(
            "x-csrf-token: {}\r\n",
            session["csrf_token"].as_str().unwrap()
        )
    }
}

#[tokio::test]
async fn without_a_session_there_is_the_form_and_nothing_else() {
    let page = Page::open().await;
    for path in ["/", "/nothing", "/app.js"] {
        let answer = page.ask(&format!("GET {path}"), "").await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.body.contains("name=\"token\""), "{path}");
        assert!(answer.body.contains("<code>sudo braid web token</code>"));
        assert!(!answer.body.contains("the page"), "{path}");
    }
    for request in ["GET /v1/status", "GET /session", "GET /v1/nothing"] {
        let answer = page.ask(request, "").await;
        assert_eq!(answer.status, 401, "{request}");
        assert!(answer.body.starts_with("{\"error\":"), "{}", answer.body);
    }
    for request in ["POST /v1/reload", "POST /logout", "DELETE /"] {
        assert_eq!(page.ask(request, "").await.status, 401, "{request}");
    }
    for cookie in ["cookie: braid=x\r\n".to_owned(), {
        let port = page.address.port();
        format!("cookie: a=b; braid-{port}=AAAA; braid-{port}=\r\n")
    }] {
        assert_eq!(page.ask("GET /", &cookie).await.status, 401, "{cookie}");
    }
}

/// A stranger's idle connections took all places for as long as it liked to ask.
#[tokio::test]
async fn a_connection_without_a_session_is_not_kept() {
    let page = Page::open().await;
    let cookie = page.log_in(Role::Viewer).await;
    for (request, cookie, is_kept) in [
        ("GET / ", "", false),
        ("GET /v1/status ", "", false),
        ("POST /login ", "", false),
        ("GET / ", &cookie[..], true),
        ("POST /v1/reload ", &cookie[..], true),
    ] {
        let mut stream = TcpStream::connect(page.address).await.unwrap();
        let head = format!(
            "{request}HTTP/1.1\r\nhost: {}\r\n{cookie}\r\n",
            page.address
        );
        // The second request of a connection, which closes it, is answered only if the first has not.
        let last = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut start = [0; 9];
        stream.read_exact(&mut start).await.unwrap();
        // It may be closed by now.
        let _ = stream.write_all(last.as_bytes()).await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        let rest = String::from_utf8_lossy(&rest);
        assert_eq!(rest.contains("HTTP/1.1 "), is_kept, "{request}: {rest}");
        let told = rest.split("HTTP/1.1 ").next().unwrap_or_default();
        assert_eq!(told.contains("connection: close"), !is_kept, "{told}");
    }
}

#[tokio::test]
async fn a_session_sees_the_page_until_it_is_ended() {
    let page = Page::open().await;
    let cookie = page.log_in(Role::Viewer).await;
    assert_eq!(page.ask("GET /", &cookie).await.body, "the page");
    assert_eq!(page.ask("GET /v1/status", &cookie).await.body, "the status");
    let csrf = page.csrf(&cookie).await;
    assert_eq!(page.ask("GET /logout", &cookie).await.status, 405);
    let gone = page.ask("POST /logout", &format!("{cookie}{csrf}")).await;
    assert_eq!(gone.status, 204);
    assert!(gone.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(page.ask("GET /", &cookie).await.status, 401);
}

#[tokio::test]
async fn every_answer_has_the_headers_that_keep_other_sites_out() {
    let page = Page::open().await;
    let cookie = page.log_in(Role::Viewer).await;
    let answers = [
        page.ask("GET /", "").await,
        page.ask("GET /", &cookie).await,
        page.ask("GET /v1/status", "").await,
        page.ask("GET /nothing", &cookie).await,
        page.send("GET /", "host: evil.example\r\n", "").await,
        page.try_token("wrong").await,
    ];
    for answer in &answers {
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(policy.contains("base-uri 'none'"), "{policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "same-origin");
        assert_eq!(answer.header("cache-control"), "no-store");
    }
}

#[tokio::test]
async fn only_own_names_are_answered() {
    let page = Page::open().await;
    let cookie = page.log_in(Role::Viewer).await;
    let port = page.address.port();
    for host in [
        format!("127.0.0.1:{port}"),
        "localhost".into(),
        "LocalHost:9".into(),
        "gate.example".into(),
        "Gate.Example.:443".into(),
    ] {
        let headers = format!("host: {host}\r\n{cookie}");
        assert_eq!(page.send("GET /", &headers, "").await.status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "127.0.0.2",
        "gate.example.evil.example",
        "[::1]",
        "",
        ":80",
        "localhost@x",
    ] {
        let headers = format!("host: {host}\r\n{cookie}");
        let answer = page.send("GET /", &headers, "").await;
        assert!(
            [400, 421].contains(&answer.status),
            "{host}: {}",
            answer.status
        );
        assert!(!answer.body.contains("the page"), "{host}");
    }
    assert_eq!(
        page.send("GET /", &cookie, "").await.status,
        421,
        "no name at all"
    );
}

#[tokio::test]
async fn a_change_needs_an_operator_and_the_sessions_csrf_token() {
    let page = Page::open().await;
    let operator = page.log_in(Role::Operator).await;
    let viewer = page.log_in(Role::Viewer).await;
    let (may, of_viewer) = (page.csrf(&operator).await, page.csrf(&viewer).await);
    let origin = format!("origin: http://{}\r\n", page.address);
    for good in [
        format!("{operator}{may}"),
        format!("{operator}{may}{origin}"),
    ] {
        assert_eq!(page.ask("POST /v1/reload", &good).await.body, "done");
    }
    for (bad, why) in [
        (operator.clone(), "no token"),
        (format!("{operator}x-csrf-token: \r\n"), "an empty token"),
        (format!("{operator}{of_viewer}"), "another session's token"),
        (format!("{viewer}{of_viewer}"), "a viewer"),
        (
            format!("{operator}{may}origin: http://evil.example\r\n"),
            "another site",
        ),
        (
            format!("{operator}{may}origin: null\r\n"),
            "a site that hides",
        ),
        (
            format!("{operator}{may}origin: https://{}\r\n", page.address),
            "another scheme",
        ),
    ] {
        let answer = page.ask("POST /v1/reload", &bad).await;
        assert_eq!(answer.status, 403, "{why}");
        assert!(!answer.body.contains("done"), "{why}");
    }
    assert_eq!(page.ask("GET /v1/reload", &operator).await.status, 405);
}

#[tokio::test]
async fn wrong_tokens_are_limited_and_other_sites_cannot_log_in() {
    let page = Page::open().await;
    let headers = format!("host: {}\r\norigin: http://evil.example\r\n", page.address);
    let token = page.tokens.get(Role::Viewer).unwrap().as_str();
    let foreign = page
        .send("POST /login", &headers, &format!("token={token}"))
        .await;
    assert_eq!((foreign.status, foreign.header("set-cookie")), (403, ""));
    let own = format!("host: {}\r\n", page.address);
    let long = format!("token={}", "x".repeat(100_000));
    assert_eq!(page.send("POST /login", &own, &long).await.status, 400);
    assert_eq!(page.send("POST /login", &own, "x=y").await.status, 400);

    let mut refused = 0;
    let limited = loop {
        let answer = page.try_token("abcd-abcd").await;
        assert_eq!(answer.header("set-cookie"), "");
        match answer.status {
            401 => refused += 1,
            _ => break answer,
        }
        assert!(refused < 20, "nothing limits them");
    };
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(
        page.try_token(token).await.status,
        429,
        "the right one waits as well"
    );
}
