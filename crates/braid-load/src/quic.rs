//! One QUIC stream, as a large download over HTTP/3 has it, by quinn: a server that sends without end, and a client that counts
//! what arrives.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use quinn::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, ServerConfig, TransportConfig, VarInt};
use rustls::DigitallySignedStruct;
use rustls::SignatureScheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use serde::Serialize;
use tokio::runtime;
use tokio::time::{Instant, timeout_at};

use crate::error::Error;
use crate::print_line;
use crate::serve::Ready;
use crate::stop_signal::StopSignal;

/// Name in the server's certificate, which nobody checks.
const NAME: &str = "braid-load";
/// Length of a bin.
const BIN: Duration = Duration::from_millis(20);
/// Bytes that are read or written at once.
const CHUNK_BYTES: usize = 65_536;
/// The windows of both ends: more than a path holds, so that congestion control alone decides.
const WINDOW_BYTES: u32 = 16 << 20;

#[derive(Debug, Args)]
pub(crate) struct QuicServeArgs {
    /// Address to listen on
    #[arg(value_name = "ADDRESS")]
    address: IpAddr,
    /// UDP port to listen on
    #[arg(long, default_value_t = 443)]
    port: u16,
    /// Congestion control
    #[arg(long, value_enum, default_value = "cubic")]
    congestion: Congestion,
    /// Longest time to serve, in seconds; SIGTERM ends it earlier
    #[arg(long, default_value_t = 900.0, value_name = "SECONDS")]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Congestion {
    Bbr,
    Cubic,
    Reno,
}

#[derive(Debug, Args)]
pub(crate) struct QuicTakeArgs {
    /// Address of the server
    #[arg(value_name = "ADDRESS")]
    address: IpAddr,
    /// Length of the download, connecting included
    #[arg(value_name = "SECONDS")]
    seconds: f64,
    /// UDP port of the server
    #[arg(long, default_value_t = 443)]
    port: u16,
    /// Source address
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    from: IpAddr,
}

/// The bytes that arrived, by bins since the beginning.
#[derive(Debug, Serialize)]
pub(crate) struct QuicTakeReport {
    bin_s: f64,
    bytes: Vec<u64>,
    /// The reason if the connection ended early.
    broken: Option<String>,
}

/// Sends a stream to each client that connects, until SIGTERM or time ends it.
pub(crate) fn serve(args: &QuicServeArgs) -> Result<(), Error> {
    let go_on = StopSignal::prepare()?;
    let explain = |error| Error::new(format!("serve QUIC on {}", args.address), error);
    let at = SocketAddr::new(args.address, args.port);
    let runtime = single_thread().map_err(explain)?;
    let endpoint = {
        let _guard = runtime.enter();
        server_config(args.congestion)
            .and_then(|config| Endpoint::server(config, at))
            .map_err(explain)?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            while let Some(incoming) = endpoint.accept().await {
                // A client that leaves ends its task by an error.
                tokio::spawn(async { send(incoming).await.ok() });
            }
        });
    });
    print_line(&Ready { ready: true })?;
    go_on.wait(Duration::from_secs_f64(args.seconds))
}

/// Receives the server's stream for a time.
pub(crate) fn take(args: &QuicTakeArgs) -> Result<QuicTakeReport, Error> {
    let explain = |error| Error::new(format!("connect to {} over QUIC", args.address), error);
    let runtime = single_thread().map_err(explain)?;
    let bins = (args.seconds / BIN.as_secs_f64()).round() as usize;
    let mut report = QuicTakeReport {
        bin_s: BIN.as_secs_f64(),
        bytes: vec![0; bins],
        broken: None,
    };
    let taken = runtime.block_on(async {
        let start = Instant::now();
        let end = start + BIN * u32::try_from(bins).unwrap_or(u32::MAX);
        timeout_at(end, receive(args, start, &mut report.bytes)).await
    });
    report.broken = match taken {
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) if report.bytes.iter().all(|bytes| *bytes == 0) => Some("nothing came".to_owned()),
        _ => None,
    };
    Ok(report)
}

async fn send(incoming: quinn::Incoming) -> io::Result<()> {
    let connection = incoming.await?;
    let mut stream = connection.open_uni().await?;
    let chunk = vec![0; CHUNK_BYTES];
    loop {
        stream.write_all(&chunk).await?;
    }
}

/// Counts what arrives; ends with an error alone.
async fn receive(args: &QuicTakeArgs, start: Instant, bins: &mut [u64]) -> io::Result<()> {
    let mut endpoint = Endpoint::client(SocketAddr::new(args.from, 0))?;
    endpoint.set_default_client_config(client_config()?);
    let server = SocketAddr::new(args.address, args.port);
    let connecting = endpoint.connect(server, NAME).map_err(io::Error::other)?;
    let connection = connecting.await?;
    let mut stream = connection.accept_uni().await?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let Some(bytes) = stream.read(&mut chunk).await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let bin = (start.elapsed().as_secs_f64() / BIN.as_secs_f64()) as usize;
        if let Some(bin) = bins.get_mut(bin) {
            *bin += bytes as u64;
        }
    }
}

fn single_thread() -> io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

fn server_config(congestion: Congestion) -> io::Result<ServerConfig> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let certificates = vec![made.cert.into()];
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates, key.into())
        })
        .map_err(io::Error::other)?;
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(config);
    let mut config = ServerConfig::with_crypto(Arc::new(crypto.map_err(io::Error::other)?));
    let mut transport = transport_config();
    match congestion {
        Congestion::Bbr => transport.congestion_controller_factory(Arc::new(BbrConfig::default())),
        Congestion::Cubic => {
            transport.congestion_controller_factory(Arc::new(CubicConfig::default()))
        }
        Congestion::Reno => {
            transport.congestion_controller_factory(Arc::new(NewRenoConfig::default()))
        }
    };
    config.transport_config(Arc::new(transport));
    Ok(config)
}

fn client_config() -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let crypto = QuicClientConfig::try_from(config).map_err(io::Error::other)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport_config()));
    Ok(config)
}

fn transport_config() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(WINDOW_BYTES.into());
    transport
}

/// Takes any certificate: the lab's networks have nobody else in them.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // QUIC has TLS 1.3 alone.
        Err(rustls::Error::General("TLS 1.2 over QUIC".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_arrives_by_each_congestion_control() {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for congestion in [Congestion::Bbr, Congestion::Cubic, Congestion::Reno] {
            let runtime = single_thread().unwrap();
            let endpoint = runtime.block_on(async {
                Endpoint::server(server_config(congestion).unwrap(), (here, 0).into()).unwrap()
            });
            let port = endpoint.local_addr().unwrap().port();
            std::thread::spawn(move || {
                runtime.block_on(async {
                    let incoming = endpoint.accept().await.unwrap();
                    send(incoming).await.unwrap_err();
                });
            });
            let seconds = 1.0;
            let report = take(&QuicTakeArgs {
                address: here,
                seconds,
                port,
                from: here,
            })
            .unwrap();
            assert_eq!((report.bytes.len(), report.broken), (50, None));
            assert!(report.bytes.iter().sum::<u64>() > 1_000_000);
        }
    }

    #[test]
    fn a_server_that_is_not_there_breaks_the_connection() {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let socket = std::net::UdpSocket::bind((here, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        let report = take(&QuicTakeArgs {
            address: here,
            seconds: 0.2,
            port,
            from: here,
        })
        .unwrap();
        assert_eq!(report.bytes, [0; 10]);
        assert_eq!(report.broken.as_deref(), Some("nothing came"));
    }
}
