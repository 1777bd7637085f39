//! Tokens of a hub, behind their check: as a user pastes what somebody else has made up.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_bond::proto::handshake::mac::hash;
use braid_bond::token::{Host, MAX_ADDRESSES, PREFIX, Token};

/// Bytes with a right check are refused or are one token, which has one text. A token names one to
/// eight addresses; one with a changed character is refused.
pub fn token(data: &[u8]) {
    if let Some(text) = crate::text(data)
        && let Ok(token) = text.parse::<Token>()
    {
        let plain: String = text.split_whitespace().collect();
        assert_eq!(token.to_string(), plain);
    }
    let mut bytes = data.to_vec();
    bytes.extend_from_slice(&hash(data)[..4]);
    let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&bytes));
    let Ok(token) = text.parse::<Token>() else {
        return;
    };
    assert_eq!(token.to_string(), text);
    assert!((1..=MAX_ADDRESSES).contains(&token.addresses.len()));
    for address in &token.addresses {
        assert_ne!(address.port, 0);
        // A name is looked up and shown: it is one word, and no address.
        if let Host::Name(name) = &address.host {
            assert!(name.parse::<std::net::IpAddr>().is_err() && name.len() <= 253);
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
            );
        }
    }
    let at = PREFIX.len() + usize::from(data[0]) % (text.len() - PREFIX.len());
    let other = if text.as_bytes()[at] == b'A' {
        "B"
    } else {
        "A"
    };
    let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    assert!(changed.parse::<Token>().is_err(), "{changed}");
}
