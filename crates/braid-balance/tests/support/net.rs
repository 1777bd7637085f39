//! Network namespaces, and servers and clients that live in them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

/// Time that an expected event may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a command line; its failure is the test's.
pub fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program).args(words).output().expect(program);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{line}: {errors}(these tests need root)"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A network namespace, deleted when dropped.
pub struct Namespace(String);

impl Namespace {
    pub fn new(name: &str) -> Self {
        run(&format!("ip netns add {name}"));
        let namespace = Self(name.to_owned());
        namespace.ip("link set lo up");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// `ip -n NAME …`
    pub fn ip(&self, line: &str) -> String {
        run(&format!("ip -n {} {line}", self.0))
    }

    /// Runs a command inside.
    pub fn run(&self, line: &str) -> String {
        run(&format!("ip netns exec {} {line}", self.0))
    }

    /// Returns true if a command inside succeeds.
    pub fn succeeds(&self, line: &str) -> bool {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0])
            .args(line.split_whitespace());
        command.output().expect("ip").status.success()
    }

    pub fn sysctl(&self, name: &str, value: &str) {
        self.run(&format!("sysctl -qw {name}={value}"));
    }

    /// Runs `work` on a thread inside.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let file = File::open(format!("/run/netns/{}", self.0)).expect("the namespace");
                setns(file, CloneFlags::CLONE_NEWNET).expect("entering it (needs root)");
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub fn ifindex(&self, device: &str) -> u32 {
        self.enter(|| nix::net::if_::if_nametoindex(device).expect("an existing device"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Serves until the namespace is gone: TCP tells the peer's address and then echoes; UDP answers
/// each datagram with the peer's address, a newline and the datagram.
pub fn serve(namespace: &Namespace, address: IpAddr, port: u16) {
    // The kernel makes the route of an IPv6 address a moment after the address; packets before it are refused.
    let deadline = Instant::now() + PATIENCE;
    let family = if address.is_ipv4() { "-4" } else { "-6" };
    let show = format!("{family} route show table local {address}");
    while !namespace.ip(&show).starts_with("local") {
        assert!(Instant::now() < deadline, "{address} is not local");
        thread::yield_now();
    }
    let (listener, socket) = namespace.enter(|| {
        let listener = TcpListener::bind((address, port)).expect("a free port");
        let socket = UdpSocket::bind((address, port)).expect("a free port");
        (listener, socket)
    });
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer(stream));
        }
    });
    thread::spawn(move || {
        let mut datagram = vec![0; 65536];
        while let Ok((length, peer)) = socket.recv_from(&mut datagram) {
            let mut reply = format!("{peer}\n").into_bytes();
            reply.extend_from_slice(&datagram[..length]);
            let _ = socket.send_to(&reply, peer);
        }
    });
}

fn answer(mut stream: TcpStream) {
    let Ok(peer) = stream.peer_addr() else { return };
    if stream.write_all(format!("{peer}\n").as_bytes()).is_err() {
        return;
    }
    let mut bytes = [0; 65536];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// A TCP connection to a server of [`serve`], with the address that the server sees.
pub struct Client {
    pub stream: TcpStream,
    pub seen: SocketAddr,
}

impl Client {
    /// Connects from the calling thread's namespace.
    pub fn connect(server: SocketAddr) -> Self {
        Self::try_connect(server).unwrap_or_else(|error| panic!("{server}: {error}"))
    }

    pub fn try_connect(server: SocketAddr) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            stream.read_exact(&mut byte)?;
            if byte == *b"\n" {
                break;
            }
            line.extend(byte);
        }
        let seen = String::from_utf8(line)
            .expect("text")
            .parse()
            .expect("an address");
        Ok(Self { stream, seen })
    }

    /// Sends `bytes` and expects them back.
    pub fn echo(&mut self, bytes: &[u8]) {
        let mut writer = self.stream.try_clone().expect("a second handle");
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(bytes).expect("the server reads"));
            let mut back = vec![0; bytes.len()];
            self.stream
                .read_exact(&mut back)
                .expect("the server echoes");
            assert!(back == bytes, "the echo differs");
        });
    }
}

/// Sends a datagram through `socket` and returns the address that the server saw.
pub fn ask(socket: &UdpSocket, server: SocketAddr) -> std::io::Result<SocketAddr> {
    ask_with(socket, server, b"hello")
}

/// The same with a payload of one's own, which must come back whole.
pub fn ask_with(
    socket: &UdpSocket,
    server: SocketAddr,
    payload: &[u8],
) -> std::io::Result<SocketAddr> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(payload, server)?;
    let mut reply = vec![0; 65536];
    let (length, from) = socket.recv_from(&mut reply)?;
    assert_eq!(from, server, "the answer's source");
    let mut parts = reply[..length].splitn(2, |byte| *byte == b'\n');
    let (seen, back) = (
        parts.next().expect("an address"),
        parts.next().expect("a payload"),
    );
    assert!(back == payload, "the echo differs");
    Ok(std::str::from_utf8(seen)
        .expect("text")
        .parse()
        .expect("an address"))
}

/// A UDP socket in the calling thread's namespace, of the server's family.
pub fn udp_socket(server: SocketAddr) -> UdpSocket {
    UdpSocket::bind(if server.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    })
    .expect("a socket")
}
