//! Mutual authentication of an edge and its controller over TCP, by a shared key.
//!
//! A request bears `Authorization: Braid NAME COUNTER MAC`, the HMAC-SHA-256 over `COUNTER\nREQUEST
//! LINE`, or over `COUNTER\nREQUEST LINE\nBODY` if it has a body. The counter only grows, so that packet counters cannot be replayed; a restarted controller
//! accepts none until a request names a table of its own. The response bears
//! `Braid-Authentication: MAC` over `COUNTER\nSTATUS\nBODY`. Nothing is encrypted.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;

use crate::Error;

/// Shortest key, in bytes.
const MIN_KEY_BYTES: usize = 16;

/// The header with a response's MAC.
pub(crate) const RESPONSE_HEADER: &str = "braid-authentication";

/// The key that one edge shares with the controller.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Reads a key file and strips white space around the key.
    ///
    /// # Errors
    /// The file cannot be read, or holds less than 16 bytes.
    pub fn read(file: &Path) -> Result<Key, Error> {
        let failed =
            |source| Error::system(format!("reading the key file {}", file.display()), source);
        let bytes = std::fs::read(file).map_err(failed)?;
        let key = bytes.trim_ascii();
        if key.len() < MIN_KEY_BYTES {
            let text = format!(
                "it holds {} bytes; at least {MIN_KEY_BYTES} are needed",
                key.len()
            );
            return Err(failed(io::Error::other(text)));
        }
        Ok(Key(key.to_owned()))
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    fn mac(&self, message: &[u8]) -> String {
        hmac::sign(&self.hmac(), message)
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Returns the value of the `Authorization` of a request with this first line.
    pub(crate) fn authorization(&self, name: &str, counter: u64, line: &str, body: &str) -> String {
        let message = match body {
            "" => format!("{counter}\n{line}"),
            body => format!("{counter}\n{line}\n{body}"),
        };
        let mac = self.mac(message.as_bytes());
        format!("Braid {name} {counter} {mac}")
    }

    /// Returns true if the MAC that a response shows in [`RESPONSE_HEADER`] is right.
    pub(crate) fn verifies(
        &self,
        counter: u64,
        status: &str,
        shown: Option<&str>,
        body: &[u8],
    ) -> bool {
        let message = [format!("{counter}\n{status}\n").as_bytes(), body].concat();
        let tag = shown.and_then(from_hex);
        tag.is_some_and(|tag| hmac::verify(&self.hmac(), &message, &tag).is_ok())
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    text.as_bytes()
        .chunks(2)
        .map(|pair| match *pair {
            [high, low] => u8::try_from(nibble(high)? * 16 + nibble(low)?).ok(),
            _ => None,
        })
        .collect()
}

/// Returns a number greater than all before, also those of earlier processes: the clock's microseconds.
pub(crate) fn counter() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        });
    let next = |last: u64| Some(now.max(last + 1));
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    now.max(last.unwrap_or(0) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf '7\nGET / HTTP/1.1' | openssl dgst -sha256 -hmac 'the key of one edge'`
    const SHOWN: &str = "01c712fae4030912505e1fa9f47d6b8686dc3f4d63d43f2fbf3bd8a776b0c4b2";

    /// `printf '7\nPOST / HTTP/1.1\nrx=7:1' | openssl dgst -sha256 -hmac 'the key of one edge'`
    const SHOWN_WITH_BODY: &str =
        "8704f0d358e72dab13a02b6fc7272af9ad51e8c6a41677a45c7a6aaa04e6cc20";

    fn key() -> Key {
        Key(b"the key of one edge".to_vec())
    }

    #[test]
    fn a_question_shows_the_key_as_others_work_it_out() {
        let line = key().authorization("ha", 7, "GET / HTTP/1.1", "");
        assert_eq!(line, format!("Braid ha 7 {SHOWN}"));
        let line = key().authorization("ha", 7, "POST / HTTP/1.1", "rx=7:1");
        assert_eq!(line, format!("Braid ha 7 {SHOWN_WITH_BODY}"));
    }

    #[test]
    fn an_answer_that_others_made_or_that_was_changed_is_none() {
        let made = key().mac(b"7\n200\n{}");
        let shown = Some(made.as_str());
        assert!(key().verifies(7, "200", shown, b"{}"));
        assert!(!key().verifies(8, "200", shown, b"{}"));
        assert!(!key().verifies(7, "304", shown, b"{}"));
        assert!(!key().verifies(7, "200", shown, b"{ }"));
        assert!(!key().verifies(7, "200", None, b"{}"));
        let other = Key(b"the key of another".to_vec());
        assert!(!other.verifies(7, "200", shown, b"{}"));
    }

    #[test]
    fn counters_only_grow() {
        let counters: Vec<u64> = (0..100).map(|_| counter()).collect();
        assert!(counters.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_key_file_is_read_without_its_line_end_and_refused_if_short() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        std::fs::write(&file, b"the key of one edge\n").expect("a file");
        assert_eq!(Key::read(&file).expect("a key"), key());
        std::fs::write(&file, b"short\n").expect("a file");
        let error = Key::read(&file).unwrap_err().to_string();
        assert!(error.contains("at least 16"), "{error}");
    }
}
