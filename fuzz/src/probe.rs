//! Probe targets as text, and replies to probes.

use braid_uplink::liveness::Target;
use braid_uplink::probe::dns;
use braid_uplink::probe::echo::{self, Request};

/// The first byte selects the kind of the rest: a target as text, or a datagram that a probe
/// received.
pub fn probe(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => target(rest),
        1 => answer(rest),
        kind => reply(kind == 3, rest),
    }
}

/// An accepted target is written as it was parsed, and its name fits into a question.
fn target(data: &[u8]) {
    let Some(text) = crate::text(data) else {
        return;
    };
    match text.parse::<Target>() {
        Ok(target) => {
            assert_eq!(target.to_string().parse(), Ok(target.clone()), "{text:?}");
            if let Target::Dns { name, .. } = target {
                // RFC 1035 §2.3.4: a name has at most 255 octets on the wire.
                let question = dns::question(1, &name);
                assert!(question.len() <= 12 + 255 + 4, "{name:?}");
            }
        }
        Err(error) => assert!(error.to_string().contains(&format!("{text:?}")), "{error}"),
    }
}

/// An answer repeats the question and its id.
fn answer(data: &[u8]) {
    let question = dns::question(0x6272, "example.org");
    if dns::judge(&question, data).is_some() {
        assert!(data.len() >= question.len() && data[..2] == question[..2]);
        assert!(data[12..question.len()].eq_ignore_ascii_case(&question[12..]));
    }
}

/// A reply ends with bytes that only its request knew.
fn reply(v6: bool, data: &[u8]) {
    let secret = 0x0123_4567_89ab_cdef;
    if echo::is_reply(&Request { v6, secret }, data) {
        assert!(data.ends_with(&secret.to_be_bytes()));
    }
}
