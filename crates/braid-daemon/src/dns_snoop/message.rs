//! Addresses of the queried name in a DNS answer. The `domain` crate parses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::{Message, ParsedName, Record};
use domain::rdata::{A, Aaaa, AllRecordData, Cname};

use super::DnsReject;

/// Most records of an answer that are read: far more than a name has addresses.
const MAX_RECORDS: usize = 128;
/// Most aliases from a name to its addresses; resolvers have a similar limit.
const MAX_ALIASES: usize = 16;

/// The queried name and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The queried name, in lower case and without the final dot.
    pub question: String,
    /// Its addresses, each with the smallest TTL of the records that lead to it.
    pub addresses: Vec<(IpAddr, Duration)>,
}

type Data<'a> = AllRecordData<&'a [u8], ParsedName<&'a [u8]>>;

/// Parses a message. `None` for a well-formed one without addresses: an error, a truncated answer (the client
/// retries over TCP) or an answer to another kind of query.
pub(super) fn read(payload: &[u8]) -> Result<Option<Answer>, DnsReject> {
    let message = Message::from_octets(payload).map_err(|_| DnsReject::Malformed)?;
    let header = message.header();
    if !header.qr() || header.opcode() != Opcode::QUERY {
        return Err(DnsReject::Malformed);
    }
    let question = message.sole_question().map_err(|_| DnsReject::Malformed)?;
    let asks = matches!(question.qtype(), Rtype::A | Rtype::AAAA) && question.qclass() == Class::IN;
    if !asks || header.rcode() != Rcode::NOERROR || header.tc() {
        return Ok(None);
    }
    let question = text(question.qname());
    let mut records = Records::default();
    let section = message.answer().map_err(|_| DnsReject::Malformed)?;
    for record in section.limit_to_in::<Data<'_>>().take(MAX_RECORDS) {
        records.note(&record.map_err(|_| DnsReject::Malformed)?);
    }
    let addresses = records.follow(&question)?;
    Ok(Some(Answer {
        question,
        addresses,
    }))
}

/// The records of an answer by owner name.
#[derive(Default)]
struct Records {
    aliases: BTreeMap<String, (String, Duration)>,
    addresses: Vec<(String, IpAddr, Duration)>,
}

impl Records {
    fn note(&mut self, record: &Record<ParsedName<&[u8]>, Data<'_>>) {
        let (owner, ttl) = (text(record.owner()), record.ttl().into_duration());
        match record.data() {
            AllRecordData::A(address) => {
                let address: &A = address;
                self.addresses.push((owner, address.addr().into(), ttl));
            }
            AllRecordData::Aaaa(address) => {
                let address: &Aaaa = address;
                self.addresses.push((owner, address.addr().into(), ttl));
            }
            AllRecordData::Cname(alias) => {
                let alias: &Cname<_> = alias;
                self.aliases.insert(owner, (text(alias.cname()), ttl));
            }
            _ => {}
        }
    }

    /// Follows the aliases of the name to the addresses of the last one.
    fn follow(&self, question: &str) -> Result<Vec<(IpAddr, Duration)>, DnsReject> {
        let mut name = question;
        let mut time = Duration::MAX;
        let mut seen = BTreeSet::from([name]);
        while let Some((next, ttl)) = self.aliases.get(name) {
            if !seen.insert(next) || seen.len() > MAX_ALIASES {
                return Err(DnsReject::AliasLoop);
            }
            (name, time) = (next, time.min(*ttl));
        }
        let own = self.addresses.iter().filter(|(owner, _, _)| owner == name);
        let found: Vec<_> = own
            .map(|(_, address, ttl)| (*address, time.min(*ttl)))
            .collect();
        match found.is_empty() && !self.addresses.is_empty() {
            true => Err(DnsReject::NotAsked),
            false => Ok(found),
        }
    }
}

/// Returns a name in the form of the patterns. Labels with a dot or a control character contain backslashes and
/// match no pattern.
fn text(name: &ParsedName<&[u8]>) -> String {
    let text = name.to_string();
    text.strip_suffix('.').unwrap_or(&text).to_ascii_lowercase()
}
