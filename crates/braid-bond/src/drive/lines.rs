//! A client's links as sockets: one each, bound to the link's device and source address.
//!
//! A socket that fails takes its link out of the tunnel at once, so that what is in flight on it goes
//! out on others, and is made anew every [`RETRY`]. Other links do not notice.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use super::report::Shares;
use super::udp::{Inbox, Origin, Outbox, Run, Udp};
use super::{ClientEvent, Link, LinkError, LinkStatus};
use crate::proto::gre::{self, UDP_HEADER};
use crate::proto::tunnel::{LinkConfig, PAYLOAD_MOST, Tunnel};
use braid_core::{LinkId, MAX_LINKS, Time};
use braid_device::{Failure, Interface};

/// A link without a working socket is tried again after this.
const RETRY: Duration = Duration::from_secs(2);

/// A link's socket, or why it has none.
#[derive(Debug)]
struct Line {
    link: Link,
    udp: Option<Udp>,
    /// Beside it, if data may go in the clear.
    gre: Option<Udp>,
    errors: u64,
    /// Why it does not work; none while it does.
    error: Option<String>,
    retry: Option<Time>,
    /// What is to be told about it.
    news: Option<ClientEvent>,
}

/// What a system call for a run came to.
enum Outcome {
    Sent,
    /// For want of room, or because it is too large for the device: lost, and the tunnel will notice.
    Dropped,
    Failed(io::Error),
}

/// All links of a client.
#[derive(Debug)]
pub(super) struct Lines {
    lines: [Option<Line>; MAX_LINKS],
    mark: Option<u32>,
    /// Whether links have sockets for GRE.
    gre: bool,
    outbox: Outbox,
    inbox: Inbox,
    pub shares: Shares,
    /// Links whose sockets have just failed or recovered, one bit each.
    changed: u32,
}

/// Headers before a GRE packet.
pub(super) fn gre_headers(address: SocketAddr) -> u64 {
    headers(address) - UDP_HEADER as u64
}

/// Headers before a UDP payload.
pub(super) fn headers(address: SocketAddr) -> u64 {
    if address.is_ipv4() { 28 } else { 48 }
}

impl Lines {
    pub fn new(mark: Option<u32>, gre: bool) -> Lines {
        Lines {
            lines: [const { None }; MAX_LINKS],
            mark,
            gre,
            outbox: Outbox::default(),
            inbox: Inbox::new(),
            shares: Shares::default(),
            changed: 0,
        }
    }

    /// Makes the links those of `wanted`; what stays as it is notices nothing.
    pub fn set(
        &mut self,
        now: Time,
        wanted: Vec<Link>,
        tunnel: &mut Tunnel,
        tell: &mut dyn FnMut(ClientEvent),
    ) {
        for index in 0..MAX_LINKS {
            let id = LinkId(index as u8);
            let is_wanted = wanted.iter().any(|link| link.id == id);
            if self.lines[index].is_some() && !is_wanted {
                tunnel.remove_link(now, id);
                self.lines[index] = None;
            }
        }
        for link in wanted {
            if let Some(place) = self.lines.get_mut(link.id.index()) {
                place_link(now, place, link, tunnel);
            }
        }
        self.open(now, true, tunnel, tell);
    }

    /// Makes the sockets that are missing and due, or all that are missing.
    pub fn open(
        &mut self,
        now: Time,
        all: bool,
        tunnel: &mut Tunnel,
        tell: &mut dyn FnMut(ClientEvent),
    ) {
        for line in self.lines.iter_mut().flatten() {
            let due = line.retry.is_some_and(|at| now >= at) || all;
            if line.udp.is_some() || !due {
                continue;
            }
            match open(&line.link, self.mark, self.gre) {
                Ok((udp, gre, payload_most)) => {
                    line.udp = Some(udp);
                    line.gre = gre;
                    line.retry = None;
                    let id = line.link.id;
                    let known = tunnel.remote(id) == Some(line.link.hub);
                    let config = config(&line.link, payload_most);
                    match known {
                        // Only our own address is another.
                        true => tunnel.set_link(id, config),
                        false => tunnel.add_link(now, id, config),
                    }
                }
                Err(error) => {
                    line.retry = Some(now + RETRY);
                    line.fail(error);
                    if let Some(event) = line.news.take() {
                        tell(event);
                    }
                }
            }
        }
    }

    /// When [`Lines::open`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let lines = self.lines.iter().flatten();
        lines.filter_map(|line| line.retry).min()
    }

    /// The descriptors to wait for, and whose they are.
    pub fn fds(&self) -> impl Iterator<Item = (usize, RawFd)> {
        let lines = self.lines.iter().enumerate();
        lines.flat_map(|(index, line)| {
            let sockets = line.iter().flat_map(|line| [&line.udp, &line.gre]);
            sockets.flatten().map(move |socket| (index, socket.fd()))
        })
    }

    /// Gives the tunnel what has come on a link. Says whether there may be more.
    pub fn receive(&mut self, now: Time, index: usize, tunnel: &mut Tunnel) -> bool {
        let Some(line) = &mut self.lines[index] else {
            return false;
        };
        let received = &mut self.shares.received[index];
        let mut more = false;
        if let Some(gre) = &line.gre {
            more |= receive(gre, &mut self.inbox, index, |origin, packet| {
                // A socket hears what is for another link by the same device as well.
                let link = gre::parse(packet).map(|(header, ..)| header.link);
                let bytes = packet.len() as u64 + gre_headers(origin.from);
                if link == Some(line.link.id)
                    && tunnel.handle_datagram(now, origin.from, packet).is_ok()
                {
                    received.add(1, bytes);
                }
            });
        }
        if let Some(udp) = &line.udp {
            more |= receive(udp, &mut self.inbox, index, |origin, datagram| {
                let bytes = datagram.len() as u64 + headers(origin.from);
                // What is refused is counted by the tunnel.
                if tunnel.handle_datagram(now, origin.from, datagram).is_ok() {
                    received.add(1, bytes);
                }
            });
        }
        more
    }

    /// Sends a datagram, at [`Lines::flush`] at the latest.
    pub fn send(&mut self, link: LinkId, to: SocketAddr, datagram: &[u8]) {
        let place = match gre::is_gre(datagram) {
            true => (link.index() + MAX_LINKS, SocketAddr::new(to.ip(), 0), None),
            false => (link.index(), to, None),
        };
        let (lines, sent) = (&mut self.lines, &mut self.shares.sent);
        let changed = &mut self.changed;
        self.outbox.push(place, datagram, &mut |run| {
            *changed |= send(run, lines, sent);
        });
    }

    /// Sends all, and takes links whose sockets failed out of the tunnel.
    pub fn flush(&mut self, now: Time, tunnel: &mut Tunnel, tell: &mut dyn FnMut(ClientEvent)) {
        let (lines, sent) = (&mut self.lines, &mut self.shares.sent);
        let mut changed = std::mem::take(&mut self.changed);
        self.outbox
            .flush(&mut |run| changed |= send(run, lines, sent));
        while changed != 0 {
            let index = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let Some(line) = &mut self.lines[index] else {
                continue;
            };
            if line.error.is_some() && line.udp.take().is_some() {
                line.gre = None;
                tunnel.remove_link(now, line.link.id);
                line.retry = Some(now + RETRY);
            }
            if let Some(event) = line.news.take() {
                tell(event);
            }
        }
    }

    /// Adds what sockets know to a status.
    pub fn fill(&self, statuses: &mut [LinkStatus]) {
        for status in statuses {
            if let Some(line) = &self.lines[status.id.index()] {
                status.send_errors = line.errors;
                status.error.clone_from(&line.error);
            }
        }
    }
}

impl Line {
    fn new(link: Link) -> Line {
        Line {
            link,
            udp: None,
            gre: None,
            errors: 0,
            error: None,
            retry: None,
            news: None,
        }
    }

    /// Told once for each change.
    fn fail(&mut self, error: LinkError) {
        let text = error.to_string();
        if self.error.as_ref() != Some(&text) {
            let (id, device) = (self.link.id, self.link.device.clone());
            self.news = Some(ClientEvent::Link { id, device, error });
            self.error = Some(text);
        }
    }

    fn recover(&mut self) {
        if self.error.take().is_some() {
            let id = self.link.id;
            self.news = Some(ClientEvent::LinkRecovered { id });
        }
    }
}

/// Puts a link where it belongs. It is another one if it leads elsewhere, and gets another socket if
/// only our own address changed.
fn place_link(now: Time, place: &mut Option<Line>, link: Link, tunnel: &mut Tunnel) {
    match place {
        Some(line) if line.link.device == link.device && line.link.hub == link.hub => {
            if line.link.source != link.source {
                line.udp = None;
                line.gre = None;
            } else if line.link != link {
                tunnel.set_link(link.id, config(&link, PAYLOAD_MOST));
            }
            line.link = link;
        }
        _ => {
            if place.is_some() {
                tunnel.remove_link(now, link.id);
            }
            *place = Some(Line::new(link));
        }
    }
}

fn config(link: &Link, payload_most: u16) -> LinkConfig {
    LinkConfig {
        remote: Some(link.hub),
        tier: link.tier,
        cap: link.cap,
        initial: link.initial,
        quota: link.quota,
        payload_most,
    }
}

/// Takes what has come to a socket. Says whether there may be more.
fn receive(
    socket: &Udp,
    inbox: &mut Inbox,
    index: usize,
    take: impl FnMut(Origin, &mut [u8]),
) -> bool {
    match socket.receive(inbox) {
        Ok(None) => false,
        Ok(Some(mut messages)) => {
            messages.each(take);
            messages.is_full()
        }
        // Errors that were waiting: what they mean for sending, sending will tell.
        Err(error) => {
            tracing::debug!(link = index, %error, "cannot receive on a link");
            false
        }
    }
}

/// A socket for a link, one for GRE if that is wanted, and the largest UDP payload that its device
/// lets out.
fn open(link: &Link, mark: Option<u32>, gre: bool) -> Result<(Udp, Option<Udp>, u16), LinkError> {
    let udp = Udp::bind(SocketAddr::new(link.source, 0), &link.device, mark)?;
    let gre = gre.then(|| Udp::bind_gre(link.source, &link.device, mark));
    let gre = gre.transpose()?;
    let mtu = match link.device.as_str() {
        "" => u32::from(PAYLOAD_MOST) + 28,
        device => {
            let mtu = Interface::open(device).and_then(|interface| interface.mtu());
            mtu.map_err(|Failure { source, .. }| {
                let step = "read the MTU of its device";
                LinkError { step, source }
            })?
        }
    };
    let room = u64::from(mtu).saturating_sub(headers(link.hub));
    Ok((udp, gre, room.min(PAYLOAD_MOST.into()) as u16))
}

/// Sends a run; returns the bit of its link if that is news.
fn send(
    run: &Run,
    lines: &mut [Option<Line>; MAX_LINKS],
    sent: &mut [super::Traffic; MAX_LINKS],
) -> u32 {
    let index = run.socket % MAX_LINKS;
    let Some(line) = &mut lines[index] else {
        return 0;
    };
    let (socket, header) = match run.socket < MAX_LINKS {
        true => (&line.udp, headers(run.to)),
        false => (&line.gre, gre_headers(run.to)),
    };
    let Some(socket) = socket else {
        return 0;
    };
    let packets = run.count as u64;
    match outcome(socket.send(run)) {
        Outcome::Sent => {
            let bytes = run.bytes.len() as u64 + packets * header;
            sent[index].add(packets, bytes);
            if line.error.is_none() {
                return 0;
            }
            line.recover();
        }
        Outcome::Dropped => {
            line.errors += packets;
            return 0;
        }
        Outcome::Failed(source) => {
            line.errors += packets;
            let step = "send";
            line.fail(LinkError { step, source });
        }
    }
    1 << index
}

fn outcome(result: io::Result<()>) -> Outcome {
    let Err(error) = result else {
        return Outcome::Sent;
    };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EMSGSIZE | libc::ENOMEM) => Outcome::Dropped,
        _ => Outcome::Failed(error),
    }
}
