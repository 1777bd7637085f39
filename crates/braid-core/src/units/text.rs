//! Serde of quantities as strings, with errors that show the correct form.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Visitor};

use super::UnitError;

/// Parses a string; refuses anything else with `expecting`.
pub(super) fn deserialize<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expecting: &'static str,
    parse: fn(&str) -> Result<T, UnitError>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text {
        expecting,
        parse,
        of: PhantomData,
    })
}

struct Text<T> {
    expecting: &'static str,
    parse: fn(&str) -> Result<T, UnitError>,
    of: PhantomData<T>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}
