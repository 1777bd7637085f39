//! Polls the carriers of candidate devices, so that a lost carrier is noticed at once.
//!
//! The kernel reports carrier changes through its link watch, which waits up to a second between two rounds
//! and, like every change of a device, for a lock that other namespaces hold for seconds while they are taken
//! down. The device itself has the current state (`IFF_LOWER_UP`), but nothing announces it, so it is polled.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::sys::{Socket, SocketAddr, protocols};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::snapshot::{Link, LinkState};
use crate::{Error, OWN_DEVICES, Snapshot, netlink};

/// Poll interval. One poll costs some tens of microseconds per device.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls devices on a blocking thread: a request to the kernel may block for as long as a lock is held.
pub(crate) struct CarrierMonitor {
    /// `None` while a poll is under way, or after one that failed.
    queries: Option<LinkQueries>,
    expected: Vec<Link>,
    poll: Option<JoinHandle<io::Result<(LinkQueries, bool)>>>,
    poll_at: Instant,
}

impl CarrierMonitor {
    /// Opens it for the network namespace of the calling thread.
    pub(crate) fn open() -> Result<CarrierMonitor, Error> {
        Ok(CarrierMonitor {
            queries: Some(LinkQueries::open()?),
            expected: Vec::new(),
            poll: None,
            poll_at: Instant::now(),
        })
    }

    /// Sets the expected state: [`CarrierMonitor::changed`] returns when a device that could be an uplink
    /// differs from this snapshot. Devices without an address cannot be uplinks, and other changes of a device
    /// come with an event.
    pub(crate) fn expect(&mut self, snapshot: &Snapshot) {
        let has_address = |link: &Link| {
            let mut addresses = snapshot.addresses.iter();
            addresses.any(|a| a.link == link.index && a.global)
        };
        self.expected.clear();
        let devices = snapshot.links.iter().filter(|link| {
            link.state != LinkState::AdminDown
                && link.layer.is_some()
                && !OWN_DEVICES.contains(&link.name.as_str())
                && has_address(link)
        });
        self.expected.extend(devices.cloned());
        // A poll that began before the snapshot was read is obsolete.
        self.poll = None;
        self.poll_at = Instant::now() + POLL_INTERVAL;
    }

    /// Schedules the next poll for now.
    pub(crate) fn poll_now(&mut self) {
        self.poll_at = Instant::now();
    }

    /// Waits until a device differs from the expected state. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        loop {
            if self.poll.is_none() {
                sleep_until(self.poll_at).await;
                let queries = self.queries.take();
                let expected = self.expected.clone();
                self.poll = Some(tokio::task::spawn_blocking(move || {
                    let mut queries = queries.map_or_else(LinkQueries::open, Ok)?;
                    let differs = queries.differ(&expected)?;
                    Ok((queries, differs))
                }));
            }
            let Some(poll) = &mut self.poll else { continue };
            let outcome = poll.await;
            self.poll = None;
            self.poll_at = Instant::now() + POLL_INTERVAL;
            match outcome {
                Ok(Ok((queries, differs))) => {
                    self.queries = Some(queries);
                    if differs {
                        return;
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "cannot read the carriers"),
                // The runtime is shutting down.
                Err(error) => tracing::debug!(%error, "reading the carriers was stopped"),
            }
        }
    }
}

/// A socket that queries the kernel about one device at a time.
struct LinkQueries {
    socket: Socket,
    /// Answers with their parsed form: parsing costs more than querying, and an answer mostly equals the last
    /// one.
    read: HashMap<u32, (Vec<u8>, Link)>,
}

impl LinkQueries {
    fn open() -> io::Result<LinkQueries> {
        let mut socket = Socket::new(protocols::NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(LinkQueries {
            socket,
            read: HashMap::new(),
        })
    }

    fn differ(&mut self, expected: &[Link]) -> io::Result<bool> {
        self.read
            .retain(|index, _| expected.iter().any(|link| link.index == *index));
        for link in expected {
            let answer = self.ask(link.index)?;
            if let Some((bytes, read)) = self.read.get(&link.index)
                && *bytes == answer
                && read == link
            {
                continue;
            }
            match parse(&answer)? {
                Some(read) if read == *link => self.read.insert(link.index, (answer, read)),
                _ => return Ok(true),
            };
        }
        Ok(false)
    }

    fn ask(&self, index: u32) -> io::Result<Vec<u8>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let leave_out = vec![LinkExtentMask::SkipStats];
        message.attributes.push(LinkAttribute::ExtMask(leave_out));
        let mut question = NetlinkMessage::from(RouteNetlinkMessage::GetLink(message));
        question.header.flags = NLM_F_REQUEST;
        question.finalize();
        let mut bytes = vec![0; question.buffer_len()];
        question.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        // The kernel has answered when the send call returns, so this never waits.
        let (answer, _) = self.socket.recv_from_full()?;
        Ok(answer)
    }
}

/// Returns `None` if there is no such device.
fn parse(answer: &[u8]) -> io::Result<Option<Link>> {
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer);
    match answer.map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
            Ok(Some(netlink::link(&link)))
        }
        NetlinkPayload::Error(error) if error.raw_code() == -libc::ENODEV => Ok(None),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        other => Err(io::Error::other(format!("an odd answer: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};
    use tokio::time::timeout;

    use super::*;

    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("ip of iproute2").success(), "ip {arguments}");
    }

    #[test]
    fn a_lost_and_a_found_carrier_are_seen_without_being_told() {
        // The namespace ends with its thread.
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("network tests need root: cannot unshare");
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(lose_and_find());
        });
        thread.join().unwrap();
    }

    async fn lose_and_find() {
        ip("link add dsl type veth peer name far");
        ip("link set far up");
        ip("link set dsl up");
        ip("addr add 10.1.0.2/24 dev dsl");
        let mut carriers = CarrierMonitor::open().unwrap();
        carriers.expect(&netlink::read().await.unwrap());
        let quiet = timeout(POLL_INTERVAL * 5, carriers.changed()).await;
        assert!(quiet.is_err(), "woken although nothing happened");
        for far in ["link set far down", "link set far up", "link del dsl"] {
            ip(far);
            let seen = timeout(POLL_INTERVAL * 50, carriers.changed()).await;
            assert!(seen.is_ok(), "{far} was not seen");
            carriers.expect(&netlink::read().await.unwrap());
        }
    }
}
