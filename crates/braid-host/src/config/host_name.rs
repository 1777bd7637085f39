//! Host names as a configuration writes them.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::as_text;

/// Maximum length of a name in text, without the final dot (RFC 1035 §2.3.4).
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a label (RFC 1035 §2.3.4).
const MAX_LABEL_BYTES: usize = 63;

/// A host name in lower case, without the final dot; names beyond ASCII as their `xn--` form.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct HostName(String);

impl HostName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err("an empty name".to_owned());
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(format!(
                "longer than the {MAX_NAME_BYTES} characters a name has"
            ));
        }
        if !name.is_ascii() {
            return Err("not ASCII: write its xn-- form".to_owned());
        }
        name.split('.').try_for_each(check_label)?;
        Ok(HostName(name.to_ascii_lowercase()))
    }
}

fn check_label(label: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match label {
        "" => Err("two dots, or one in front".to_owned()),
        _ if label.len() > MAX_LABEL_BYTES => Err(format!(
            "{label:?} is longer than the {MAX_LABEL_BYTES} characters between two dots"
        )),
        _ if !label.chars().all(fits) => Err(format!("no host name has {label:?} in it")),
        _ => Ok(()),
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(HostName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_in_lower_case_without_its_last_dot() {
        let name: HostName = "Gate.Example.".parse().unwrap();
        assert_eq!(name.as_str(), "gate.example");
        for bad in ["", "a..b", "a b", "m\u{fc}ll.example", &"x".repeat(64)] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }
}
