//! DNS queries (RFC 1035 §4). Only the header and the question of an answer are checked: the probe needs an
//! answer, not its content.

use std::net::SocketAddr;

use socket2::{Protocol, Type};

use super::{Egress, ProbeError, socket};

const HEADER: usize = 12;
/// Record types and the class.
const A: u16 = 1;
const NS: u16 = 2;
const CLASS_IN: u16 = 1;
/// Flags of the first two bytes: this is a response; recursion desired.
const RESPONSE: u8 = 0x80;
const RECURSE: u8 = 0x01;
/// Bits of the operation in the first byte of flags, and of the response code in the second.
const OPERATION: u8 = 0x78;
const CODE: u8 = 0x0f;
/// Response codes of a working server: the name exists, or it does not.
const FINE: [u8; 2] = [0, 3];

/// Returns the query for a name's IPv4 address, or for the root's name servers if the name is empty. The name
/// must be one that [`crate::liveness::Target`] accepts: labels of at most 63 bytes.
#[must_use]
pub fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message[..2].copy_from_slice(&id.to_be_bytes());
    message[2] = RECURSE;
    // Number of questions: one.
    message[5] = 1;
    for label in name.split('.').filter(|label| !label.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(63)];
        message.push(label.len() as u8);
        message.extend_from_slice(label);
    }
    message.push(0);
    let kind = if name.is_empty() { NS } else { A };
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&CLASS_IN.to_be_bytes());
    message
}

/// Checks whether a datagram answers this query; `None` if it belongs to another query.
#[must_use]
pub fn judge(question: &[u8], received: &[u8]) -> Option<Result<(), String>> {
    let asked = question.get(HEADER..)?;
    let header = received.get(..HEADER)?;
    let repeated = received.get(HEADER..question.len())?;
    let is_answer = header[..2] == question[..2]
        && header[2] & RESPONSE != 0
        && header[2] & OPERATION == 0
        && header[4..6] == [0, 1]
        // Servers may answer with another letter case than that of the query.
        && repeated.eq_ignore_ascii_case(asked);
    let code = header[3] & CODE;
    is_answer.then(|| {
        if FINE.contains(&code) {
            Ok(())
        } else {
            Err(format!("response code {code}"))
        }
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
