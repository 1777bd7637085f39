//! Trains on TCP connections: each sends one window, down what the server has, up a small upload whose
//! acknowledgements tell when its segments arrived.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use braid_core::capacity::{BURST_PACKETS, TrainPacket};
use braid_device::tcp_progress;
use braid_packet::{Packet, Transport};
use futures_util::future::try_join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::{Arrival, Arrivals};
use crate::probe::Egress;
use crate::transfer::connection::{Counters, connector, encrypted, incompressible};
use crate::transfer::{TransferDirection, TransferError, TransferUrl, establish};

/// Data of a full segment without options, by Ethernet's MTU; the kernel makes a window a multiple of it.
const SEGMENT: u32 = 1460;
/// Bytes that TLS may add to an upload.
const TLS_OVERHEAD: usize = 64;
/// Beginning of an answer that is looked at.
const HEAD: usize = 1024;
/// Time in which the head of an answer is read.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// Place from which a sequence number is an older one.
const OLD: u32 = 1 << 30;
/// Option of TCP that ends the options, that fills space, and that says what came out of order.
const OPTION_END: u8 = 0;
const OPTION_PADDING: u8 = 1;
const OPTION_SACK: u8 = 5;

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Connections of one train.
pub(super) struct Connections {
    server: SocketAddr,
    direction: TransferDirection,
    url: TransferUrl,
    streams: Vec<Box<dyn Stream>>,
    counters: Vec<Counters>,
    /// By the local port.
    flows: BTreeMap<u16, Flow>,
    /// Data of a full segment, and the headers of each.
    mss: u32,
    headers: u64,
}

/// Numbers of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    number: u16,
    /// Sequence number at which the train begins, of the server's data and of ours.
    received: u32,
    sent: u32,
    /// The last acknowledgement.
    acknowledged: u32,
    /// Acknowledgements since then of what came out of order.
    repeated: u32,
}

impl Connections {
    /// Establishes a connection for each burst, with TLS if the URL says so. Each receives one burst and no more.
    pub async fn establish(
        egress: &Egress,
        server: SocketAddr,
        url: &TransferUrl,
        direction: TransferDirection,
        bursts: usize,
        arrivals: &mut Arrivals,
    ) -> Result<Connections, TransferError> {
        arrivals.discard();
        let tls = if url.tls { Some(connector(url)?) } else { None };
        let window = BURST_PACKETS as u32 * SEGMENT;
        let connecting = (0..bursts).map(|_| establish(egress, server, Some(window)));
        let connected = try_join_all(connecting).await?;
        let mut made = Connections {
            server,
            direction,
            url: url.clone(),
            streams: Vec::new(),
            counters: Vec::new(),
            flows: BTreeMap::new(),
            mss: SEGMENT,
            headers: 0,
        };
        for (number, stream) in connected.iter().enumerate() {
            made.counters.push(Counters::of(stream, server)?);
            let local = stream.local_addr().map_err(TransferError::Counters)?;
            let number = number as u16;
            made.flows.insert(
                local.port(),
                Flow {
                    number,
                    ..Flow::default()
                },
            );
            let progress = tcp_progress(stream).map_err(TransferError::Counters)?;
            made.mss = progress.sent_mss.max(1);
            made.headers = if server.is_ipv4() { 40 } else { 60 }
                + if progress.has_timestamps { 12 } else { 0 };
        }
        let tls = tls.as_ref();
        let streams = connected.into_iter().map(|stream| async move {
            Ok::<Box<dyn Stream>, TransferError>(match tls {
                None => Box::new(stream),
                Some(tls) => Box::new(encrypted(tls, url, stream).await?),
            })
        });
        made.streams = try_join_all(streams).await?;
        // Handshakes are no part of the train.
        arrivals.each(|packet, _| made.prepare(packet));
        Ok(made)
    }

    /// Takes a packet before the train.
    fn prepare(&mut self, packet: &Packet<'_>) {
        let Transport::Tcp {
            dest,
            sequence,
            acknowledgement,
            flags,
            header,
            ..
        } = packet.transport
        else {
            return;
        };
        if let Some(flow) = self.flows.get_mut(&dest) {
            let is_syn = u32::from(flags & braid_packet::build::flags::SYN != 0);
            let payload = packet.segment().len() - header;
            flow.received = sequence.wrapping_add(payload as u32 + is_syn);
            flow.sent = acknowledgement;
            flow.acknowledged = acknowledgement;
        }
    }

    /// Sends the request on each connection.
    pub async fn send(&mut self) -> Result<(), TransferError> {
        let request = self.request();
        for stream in &mut self.streams {
            stream.write_all(&request).await.map_err(broken)?;
            stream.flush().await.map_err(broken)?;
        }
        Ok(())
    }

    fn request(&self) -> Vec<u8> {
        let (method, length) = match self.direction {
            TransferDirection::Down => ("GET", None),
            TransferDirection::Up => ("POST", Some(BURST_PACKETS * self.mss as usize)),
        };
        let url = &self.url;
        let mut text = format!(
            "{method} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n\
             Connection: close\r\n",
            url.path,
            url.authority,
            concat!("braid/", env!("CARGO_PKG_VERSION")),
        );
        let Some(length) = length else {
            return (text + "\r\n").into_bytes();
        };
        let overhead = if url.tls { TLS_OVERHEAD } else { 0 };
        // A length of five digits, and two ends of lines.
        let around = text.len() + "Content-Length: 12345\r\n\r\n".len() + overhead;
        let body = length.saturating_sub(around).max(1);
        text += &format!("Content-Length: {body}\r\n\r\n");
        let mut request = text.into_bytes();
        request.extend(incompressible().iter().take(body));
        request
    }

    /// Returns the bytes of data after which the train has come, but for a segment of each connection: a server may send
    /// the head of its answer by itself, and waits with what does not fill a segment.
    pub fn bytes(&self) -> u64 {
        (self.flows.len() * (BURST_PACKETS - 1)) as u64 * u64::from(self.mss)
    }

    /// Returns what a packet shows of the train.
    pub fn arrived(&mut self, packet: &Packet<'_>) -> Option<Arrival> {
        let Transport::Tcp {
            source,
            dest,
            sequence,
            acknowledgement,
            header,
            ..
        } = packet.transport
        else {
            return None;
        };
        let (mss, is_known) = (self.mss, source == self.server.port());
        let flow = self.flows.get_mut(&dest).filter(|_| is_known)?;
        let payload = (packet.segment().len() - header) as u32;
        let range = match self.direction {
            TransferDirection::Down => {
                let start = sequence.wrapping_sub(flow.received);
                start..start.saturating_add(payload)
            }
            TransferDirection::Up => flow.acknowledge(
                acknowledgement,
                has_sack(packet.segment().get(20..header)?),
                mss,
            ),
        };
        let length = u64::from(range.end.saturating_sub(range.start));
        if length == 0 || range.start > OLD {
            return None;
        }
        let segments = length.div_ceil(u64::from(mss));
        Some((flow.number, range, length + segments * self.headers, length))
    }

    /// Returns the bytes that the connections have cost so far.
    pub fn spent(&mut self) -> Result<u64, TransferError> {
        let mut spent = 0;
        for counters in &mut self.counters {
            counters
                .carried(self.direction)
                .map_err(TransferError::Counters)?;
            spent += counters.spent();
        }
        Ok(spent)
    }

    /// Reads the beginning of the answer to the first request, if it decides about the train.
    ///
    /// # Errors
    /// The server refuses the request, or its contents are too small.
    pub async fn check(&mut self, packets: &[TrainPacket]) -> Result<(), TransferError> {
        let (TransferDirection::Down, Some(stream)) = (self.direction, self.streams.first_mut())
        else {
            return Ok(());
        };
        let mut head = [0; HEAD];
        let length = match timeout(HEAD_TIMEOUT, stream.read(&mut head)).await {
            Ok(read) => read.map_err(broken)?,
            Err(_) => return Err(TransferError::Silent),
        };
        let head = String::from_utf8_lossy(&head[..length]).into_owned();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status: u16 = status.ok_or_else(|| TransferError::Broken("no HTTP".to_owned()))?;
        let field = |wanted: &str| {
            head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case(wanted)
                    .then(|| value.trim().to_owned())
            })
        };
        if !(200..300).contains(&status) {
            let location = field("location");
            return Err(TransferError::Status { status, location });
        }
        let told: Option<u64> = field("content-length").and_then(|length| length.parse().ok());
        let window = (BURST_PACKETS - 1) as u64 * u64::from(self.mss);
        if let Some(bytes) = told.filter(|bytes| *bytes < window) {
            return Err(TransferError::Small { bytes });
        }
        // The end of what is too small for a window. Losses alone do not end there.
        let is_end = timeout(Duration::ZERO, stream.read(&mut [0; 2 * HEAD])).await;
        let bytes: u64 = packets.iter().map(|packet| packet.size.get()).sum();
        match is_end {
            Ok(Ok(read)) if read + length < HEAD => Err(TransferError::Small { bytes }),
            _ => Ok(()),
        }
    }
}

impl Flow {
    /// Takes an acknowledgement, and returns the place of what it says has arrived.
    fn acknowledge(&mut self, number: u32, has_sack: bool, mss: u32) -> Range<u32> {
        let more = number.wrapping_sub(self.acknowledged);
        let start = self.acknowledged.wrapping_sub(self.sent);
        if more > 0 && more < OLD {
            self.acknowledged = number;
            self.repeated = 0;
            return start..start + more;
        }
        if more == 0 && has_sack {
            // One more segment after the missing one.
            self.repeated += 1;
            let start = start + self.repeated * mss;
            return start..start + mss;
        }
        0..0
    }
}

fn has_sack(mut options: &[u8]) -> bool {
    loop {
        match options {
            [] | [OPTION_END, ..] => return false,
            [OPTION_SACK, ..] => return true,
            [OPTION_PADDING, rest @ ..] => options = rest,
            [_, length, ..] => {
                let length = usize::from(*length).max(2);
                options = options.get(length..).unwrap_or_default();
            }
            [_] => return false,
        }
    }
}

fn broken(error: io::Error) -> TransferError {
    TransferError::Broken(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_tell_what_arrived() {
        let mut flow = Flow {
            sent: u32::MAX - 99,
            acknowledged: u32::MAX - 99,
            ..Flow::default()
        };
        assert_eq!(flow.acknowledge(900, false, 1000), 0..1000, "numbers wrap");
        assert_eq!(flow.acknowledge(900, false, 1000), 0..0, "a window update");
        assert_eq!(
            flow.acknowledge(900, true, 1000),
            2000..3000,
            "one is missing"
        );
        assert_eq!(flow.acknowledge(900, true, 1000), 3000..4000);
        assert_eq!(
            flow.acknowledge(3900, false, 1000),
            1000..4000,
            "sent again"
        );
        assert_eq!(flow.acknowledge(1900, false, 1000), 0..0, "an older one");
    }

    #[test]
    fn options_tell_selective_acknowledgements() {
        let timestamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        assert!(!has_sack(&timestamps));
        assert!(has_sack(&[&timestamps[..], &[1, 1, 5, 10]].concat()));
        for options in [&[][..], &[0, 5], &[8, 0], &[8], &[9, 200, 5]] {
            assert!(!has_sack(options), "{options:?}");
        }
    }
}
