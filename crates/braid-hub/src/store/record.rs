//! Records with secrets, as JSON: neither writing nor reading one leaves copies in memory that was given back.

use std::io;

use serde::Serialize;
use zeroize::Zeroizing;

/// A record's JSON, zeroed on drop. Its length is known before it is written, since a buffer that grows leaves copies.
pub(super) fn to_json(record: &impl Serialize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    let mut length = Length(0);
    serde_json::to_writer(&mut length, record)?;
    let mut json = Zeroizing::new(Vec::with_capacity(length.0));
    serde_json::to_writer(&mut *json, record)?;
    Ok(json)
}

/// Counts what is written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A key as an array of 32 numbers, which are read to the place where they stay.
pub(super) mod key_bytes {
    use std::fmt;

    use braid_bond::proto::handshake::KeyBytes;
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(key: &KeyBytes, serializer: S) -> Result<S::Ok, S::Error> {
        (**key).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KeyBytes, D::Error> {
        deserializer.deserialize_tuple(32, Numbers)
    }

    struct Numbers;

    impl<'de> Visitor<'de> for Numbers {
        type Value = KeyBytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("32 numbers from 0 to 255")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<KeyBytes, A::Error> {
            KeyBytes::try_fill(|bytes| {
                for (at, byte) in bytes.iter_mut().enumerate() {
                    let number = numbers.next_element()?;
                    *byte = number.ok_or_else(|| Error::invalid_length(at, &Numbers))?;
                }
                Ok(())
            })
        }
    }
}
