//! Host names and patterns of host names.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// `"bank.example"`, that name alone, or `"*.bank.example"`, every name below it at any depth.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct DomainPattern {
    below: bool,
    name: HostName,
}

impl DomainPattern {
    /// Returns true if a name, in lower case and without a final dot, matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let own = self.name.as_str();
        if !self.below {
            return name == own;
        }
        let above = name.strip_suffix(own);
        above.is_some_and(|above| above.len() > 1 && above.ends_with('.'))
    }

    /// Returns true if every name that `other` matches is matched here too.
    #[must_use]
    pub fn covers(&self, other: &DomainPattern) -> bool {
        match other.below {
            true => self.below && (self.name == other.name || self.matches(other.name.as_str())),
            false => self.matches(other.name.as_str()),
        }
    }

    /// Returns true if some name matches both.
    #[must_use]
    pub fn meets(&self, other: &DomainPattern) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl FromStr for DomainPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None if text == "*" => {
                return Err("every name: leave `domain` out to mean everything".to_owned());
            }
            None => (false, text),
        };
        if name.contains('*') {
            return Err("a star stands only in front, before a dot".to_owned());
        }
        let name = name.parse()?;
        Ok(DomainPattern { below, name })
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)
    }
}

impl From<DomainPattern> for String {
    fn from(pattern: DomainPattern) -> Self {
        pattern.to_string()
    }
}

impl TryFrom<String> for DomainPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> DomainPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_star_means_every_depth_and_not_the_name_itself() {
        let star = pattern("*.Bank.example.");
        assert_eq!(star.to_string(), "*.bank.example");
        assert!(star.matches("www.bank.example") && star.matches("a.b.bank.example"));
        assert!(!star.matches("bank.example") && !star.matches("mybank.example"));
        assert!(!star.matches(".bank.example"));
        let bare = pattern("bank.example");
        assert!(bare.matches("bank.example") && !bare.matches("www.bank.example"));
    }

    #[test]
    fn what_covers_and_meets_what() {
        let (all, some, one) = (
            pattern("*.example"),
            pattern("*.a.example"),
            pattern("a.example"),
        );
        assert!(all.covers(&some) && all.covers(&one) && all.covers(&all));
        assert!(!some.covers(&all) && !some.covers(&one) && !one.covers(&some));
        assert!(some.meets(&all) && !some.meets(&one));
    }
}
