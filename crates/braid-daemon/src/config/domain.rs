//! Patterns of host names.

use std::fmt;
use std::str::FromStr;

use braid_host::as_text;
use braid_host::config::HostName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

as_text!(DomainPattern);

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
