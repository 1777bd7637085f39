//! DNS queries (RFC 1035 §4). Only the header and the question of an answer are checked: the probe needs an
//! answer, not its content.

use std::net::SocketAddr;

use domain::base::iana::{Opcode, Rcode, Rtype};
use domain::base::{Message, MessageBuilder, Name};
use socket2::{Protocol, Type};

use super::{Egress, ProbeError, socket};

/// Response codes of a working server: the name exists, or it does not.
const FINE: [Rcode; 2] = [Rcode::NOERROR, Rcode::NXDOMAIN];

/// Returns the query for a name's IPv4 address, or for the root's name servers if the name is empty or no
/// domain name.
#[must_use]
pub fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let root = (Name::root_vec(), Rtype::NS);
    let name = Name::vec_from_str(name).ok().filter(|name| !name.is_root());
    let mut question = message.question();
    question
        .push(name.map_or(root, |name| (name, Rtype::A)))
        .expect("a vector grows");
    question.finish()
}

/// Checks whether a datagram answers this query; `None` if it belongs to another query.
#[must_use]
pub fn judge(question: &[u8], received: &[u8]) -> Option<Result<(), String>> {
    let asked = Message::from_octets(question).ok()?;
    let received = Message::from_octets(received).ok()?;
    // Servers may answer with another letter case than that of the query: names compare without it.
    let is_answer = received.header().opcode() == Opcode::QUERY
        && received.is_answer(&asked)
        && received.sole_question().is_ok();
    let code = received.header().rcode();
    is_answer.then(|| match FINE.contains(&code) {
        true => Ok(()),
        false => Err(format!("response code {}", code.to_int())),
    })
}

pub(super) async fn ask(
    egress: &Egress,
    server: SocketAddr,
    name: &str,
    id: u16,
) -> Result<(), ProbeError> {
    let question = question(id, name);
    let socket = socket::open(egress, server, Type::DGRAM, Some(Protocol::UDP))?;
    let answer = socket::converse(socket, &question, |bytes| judge(&question, bytes)).await?;
    answer.map_err(ProbeError::Wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bit of a response in the third byte.
    const RESPONSE: u8 = 0x80;

    fn answer(question: &[u8], code: u8) -> Vec<u8> {
        let mut answer = question.to_vec();
        answer[2] |= RESPONSE;
        answer[3] = 0x80 | code;
        // One answer: a pointer to the name, type A, class, time to live, an address.
        answer[7] = 1;
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
        answer
    }

    /// RFC 1035 §4.1.2: "QNAME: a domain name represented as a sequence of labels, where each label
    /// consists of a length octet followed by that number of octets. The domain name terminates
    /// with the zero length octet for the null label of the root."
    #[test]
    fn a_question_is_that_of_rfc_1035() {
        let bytes = question(0x1234, "example.org");
        let header = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes[..12], header);
        assert_eq!(&bytes[12..], b"\x07example\x03org\x00\x00\x01\x00\x01");
        assert_eq!(&question(1, "")[12..], b"\x00\x00\x02\x00\x01");
    }

    #[test]
    fn only_an_answer_to_this_question_counts() {
        let asked = question(7, "example.org");
        assert_eq!(judge(&asked, &answer(&asked, 0)), Some(Ok(())));
        assert_eq!(judge(&asked, &answer(&asked, 3)), Some(Ok(())));
        let refused = judge(&asked, &answer(&asked, 5));
        assert_eq!(refused, Some(Err("response code 5".to_owned())));
        assert_eq!(judge(&asked, &asked), None, "our own question");
        for other in [
            question(8, "example.org"),
            question(7, "example.com"),
            question(7, ""),
        ] {
            assert_eq!(judge(&asked, &answer(&other, 0)), None);
        }
        let shouted = question(7, "EXAMPLE.org");
        assert_eq!(judge(&asked, &answer(&shouted, 0)), Some(Ok(())));
        let whole = answer(&asked, 0);
        for end in 0..asked.len() {
            assert_eq!(judge(&asked, &whole[..end]), None);
        }
    }
}
