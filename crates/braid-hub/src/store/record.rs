//! Keys in records: reading and writing one leaves no copies in memory that was given back.

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
