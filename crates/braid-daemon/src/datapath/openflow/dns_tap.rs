//! Answers of name servers to flows of the bridge, for rules by domain.
//!
//! The controller holds an answer until the engine has judged it, so that no client connects to an address before that is
//! known. Questions are copies of the packets on braid0, which all of the inside pass, whichever way the bridge translates
//! them; so are the answers that the controller lets pass, as when the engine is late. As with the programs, only the answer
//! to a recent question counts, and once: a mapping of UDP is open to every remote, and anybody may send an answer to it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use braid_balance::Upcall;
use braid_device::{Direction, PacketTap};
use braid_packet::{Fragment, Packet, Transport};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::controller::AnswerQueue;
use super::held_answers::HeldAnswer;
use super::port_filter::PortFilter;
use super::recent_items::RecentItems;

const DNS_PORT: u16 = 53;
/// Bytes of a DNS message's header, and of UDP's.
const DNS_HEADER: usize = 12;
const UDP_HEADER: usize = 8;
/// Longest packet that is read whole; a DNS message over UDP fits one Ethernet frame.
const MAX_PACKET: usize = 4096;
/// Questions and answers.
const DNS: PortFilter = PortFilter {
    port: DNS_PORT,
    from_port: true,
    max_length: MAX_PACKET as u32,
};
/// Most packets read at once: more than the socket holds, so that only a flood leaves some for the next turn.
const MAX_BATCH: usize = 4096;
/// Time for which an answer is expected.
const QUESTION_LIFE: Duration = Duration::from_secs(8);
/// Questions of one client that await their answers; the oldest gives way.
const MAX_CLIENT_QUESTIONS: usize = 64;
/// Clients with such questions; the one that has been silent longest gives way.
const MAX_CLIENTS: usize = 1024;

/// The answers that are held, the copies of DNS packets, and the questions in them.
pub(crate) struct DnsTap {
    tap: PacketTap,
    answers: AnswerQueue,
    /// The held answer that the engine has; once it asks for the next one it is done with it.
    judging: Option<HeldAnswer>,
    questions: Questions,
    buffer: Vec<u8>,
}

/// Starts and ends the copying for [`DnsTap`].
pub(super) struct DnsSwitch {
    tap: PacketTap,
    wanted: bool,
}

impl DnsSwitch {
    /// Makes one that copies nothing.
    pub fn new() -> io::Result<Self> {
        let tap = PacketTap::open()?;
        Ok(Self { tap, wanted: false })
    }

    /// Returns the copies, beside the answers that are held.
    pub fn tap(&self, answers: AnswerQueue) -> io::Result<DnsTap> {
        Ok(DnsTap {
            tap: self.tap.try_clone()?,
            answers,
            judging: None,
            questions: Questions::default(),
            buffer: vec![0; MAX_PACKET],
        })
    }

    pub fn set_wanted(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// Copies the packets of this device, if that is wanted; it may be another one than before.
    pub fn follow(&self, ifindex: u32) -> io::Result<()> {
        match self.wanted {
            true => self.tap.follow(ifindex, &DNS.program()),
            false => self.tap.ignore(),
        }
    }
}

impl DnsTap {
    /// Returns a descriptor of its own that is readable while there are packets.
    pub fn readiness(&self) -> io::Result<OwnedFd> {
        let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for source in [self.tap.as_fd(), self.answers.held().as_fd()] {
            all.add(source, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(all.0)
    }

    /// Returns the next answer to a question that has passed. The one before may go inside then: the engine has told the
    /// names in it.
    pub fn next(&mut self) -> Option<Upcall> {
        if let Some(judged) = self.judging.take() {
            self.answers.release(&judged);
        }
        let now = Instant::now();
        // Copies first: the question to an answer that is held is among them.
        for _ in 0..MAX_BATCH {
            let Some((direction, length)) = self.tap.next(&mut self.buffer) else {
                break;
            };
            let Ok(packet) = Packet::parse(&self.buffer[..length]) else {
                continue;
            };
            if let Some(answer) = self.questions.handle(now, direction, &packet) {
                return Some(answer);
            }
        }
        while let Some(held) = self.answers.held().next() {
            let packet = Packet::parse(&held.packet).ok();
            match packet.and_then(|packet| self.questions.handle(now, Direction::In, &packet)) {
                Some(answer) => {
                    self.judging = Some(held);
                    return Some(answer);
                }
                None => self.answers.release(&held),
            }
        }
        None
    }
}

/// A question, by what its answer repeats.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    client: SocketAddr,
    server: SocketAddr,
    /// Hash of the message's id and of the name, which may come back in other letters.
    text: u64,
}

/// Questions without an answer, by client, in the order in which they were asked.
#[derive(Debug, Default)]
struct Questions(RecentItems<IpAddr, Question, MAX_CLIENTS, MAX_CLIENT_QUESTIONS>);

impl Questions {
    /// Handles a packet of braid0. Returns the answer that it is.
    fn handle(
        &mut self,
        now: Instant,
        direction: Direction,
        packet: &Packet<'_>,
    ) -> Option<Upcall> {
        let Transport::Udp { source, dest } = packet.transport else {
            return None;
        };
        let payload = packet.segment().get(UDP_HEADER..)?;
        if packet.ip.fragment != Fragment::Whole {
            return None;
        }
        let text = text_of(payload)?;
        let (from, to) = (
            SocketAddr::new(packet.ip.source, source),
            SocketAddr::new(packet.ip.dest, dest),
        );
        match direction {
            Direction::Out if dest == DNS_PORT => {
                let question = Question {
                    client: from,
                    server: to,
                    text,
                };
                self.note(now, question);
                None
            }
            Direction::In if source == DNS_PORT => {
                let question = Question {
                    client: to,
                    server: from,
                    text,
                };
                self.take(now, &question).then(|| Upcall::DnsAnswer {
                    from,
                    to: to.ip(),
                    payload: payload.to_vec(),
                })
            }
            _ => None,
        }
    }

    fn note(&mut self, now: Instant, question: Question) {
        self.0.note(now, client_of(question.client.ip()), question);
    }

    /// Takes a question out. Returns false if nobody has asked it a moment ago.
    fn take(&mut self, now: Instant, question: &Question) -> bool {
        let Some(asked) = self.0.by_key.get_mut(&client_of(question.client.ip())) else {
            return false;
        };
        let at = asked.iter().position(|(at, asked)| {
            asked == question && now.saturating_duration_since(*at) < QUESTION_LIFE
        });
        at.and_then(|at| asked.remove(at)).is_some()
    }
}

/// Returns the address under which a client's questions are kept. A client of IPv6 has a whole /64.
fn client_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// Returns the hash of what question and answer share; `None`: it is no DNS message.
fn text_of(message: &[u8]) -> Option<u64> {
    let name = message.get(DNS_HEADER..).filter(|name| !name.is_empty())?;
    let mut hasher = DefaultHasher::new();
    message[..2].hash(&mut hasher);
    // The root's label, which is empty, ends the name.
    for byte in name.iter().take_while(|byte| **byte != 0) {
        byte.to_ascii_lowercase().hash(&mut hasher);
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::super::recent_items::Items;
    use super::*;
    use braid_packet::build;

    const CLIENT: &str = "192.168.8.101:5000";
    const SERVER: &str = "198.51.100.53:53";

    fn end(text: &str) -> (IpAddr, u16) {
        let end: SocketAddr = text.parse().unwrap();
        (end.ip(), end.port())
    }

    fn message(id: u8, name: &str) -> Vec<u8> {
        let mut message = vec![id; DNS_HEADER];
        message.push(u8::try_from(name.len()).unwrap());
        message.extend_from_slice(name.as_bytes());
        message.extend_from_slice(&[0, 0, 1, 0, 1]);
        message
    }

    /// Passes a datagram; returns true if it counts as an answer.
    fn pass(
        questions: &mut Questions,
        now: Instant,
        direction: Direction,
        (from, to): (&str, &str),
        payload: &[u8],
    ) -> bool {
        let bytes = build::udp(end(from), end(to), payload);
        let packet = Packet::parse(&bytes).unwrap();
        questions.handle(now, direction, &packet).is_some()
    }

    #[test]
    fn an_answer_counts_once_and_only_after_its_question() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        let (out, back) = ((CLIENT, SERVER), (SERVER, CLIENT));
        let answer = message(7, "BANK");
        assert!(!pass(&mut questions, now, Direction::In, back, &answer));
        assert!(!pass(
            &mut questions,
            now,
            Direction::Out,
            out,
            &message(7, "bank")
        ));
        let forged = ("198.51.100.54:53", CLIENT);
        assert!(!pass(&mut questions, now, Direction::In, forged, &answer));
        let other = message(8, "bank");
        assert!(!pass(&mut questions, now, Direction::In, back, &other));
        assert!(pass(&mut questions, now, Direction::In, back, &answer));
        assert!(!pass(&mut questions, now, Direction::In, back, &answer));
        pass(&mut questions, now, Direction::Out, out, &answer);
        let later = now + QUESTION_LIFE;
        assert!(!pass(&mut questions, later, Direction::In, back, &answer));
    }

    #[test]
    fn a_client_that_asks_much_takes_no_place_of_others() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        let asked = message(1, "bank");
        pass(
            &mut questions,
            now,
            Direction::Out,
            (CLIENT, SERVER),
            &asked,
        );
        for port in 1000..3000 {
            let loud = format!("192.168.8.102:{port}");
            pass(&mut questions, now, Direction::Out, (&loud, SERVER), &asked);
        }
        let clients = questions.0.by_key.values();
        let kept: usize = clients.map(Items::len).sum();
        assert_eq!(kept, 1 + MAX_CLIENT_QUESTIONS);
        assert!(pass(
            &mut questions,
            now,
            Direction::In,
            (SERVER, CLIENT),
            &asked
        ));
    }
}
