//! Destinations of messages.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A destination of an alarm's messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Destination {
    /// A program with its arguments, started without a shell. It gets the message as JSON on its standard input.
    Command(Vec<String>),
    /// A URL, to which the message is posted as JSON.
    Webhook(String),
    /// An address of e-mail.
    Mail(String),
}

impl Destination {
    /// Returns the destination for people; of a URL only as much as tells no secret.
    #[must_use]
    pub fn display(&self) -> String {
        match self {
            Destination::Command(words) => {
                format!("command {}", words.first().map_or("", String::as_str))
            }
            Destination::Webhook(url) => {
                let host = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
                let (scheme, rest) = host.split_once("//").unwrap_or(("", &host));
                let place = rest.rsplit('@').next().unwrap_or_default();
                format!("webhook {scheme}//{place}")
            }
            Destination::Mail(address) => format!("mail {address}"),
        }
    }
}

/// The server that takes e-mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MailServer {
    /// Host name or address.
    pub server: String,
    /// Port.
    pub port: u16,
    /// Encryption: `tls` from the first byte, `starttls`, or `none` for a server on this machine.
    pub encryption: MailEncryption,
    /// Sender.
    pub from: String,
    /// Login name; none for a server that asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with the password on its first line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

/// Encryption of the connection to a mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MailEncryption {
    /// TLS from the first byte (RFC 8314), usually on port 465.
    Tls,
    /// TLS after a greeting in the clear, usually on port 587. A server that does not offer it is refused.
    Starttls,
    /// None: only for a server on this machine.
    None,
}

impl MailEncryption {
    /// Every word, for error messages.
    pub const NAMES: [&str; 3] = ["tls", "starttls", "none"];

    /// Returns the usual port.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            MailEncryption::Tls => 465,
            MailEncryption::Starttls => 587,
            MailEncryption::None => 25,
        }
    }
}

impl std::str::FromStr for MailEncryption {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "tls" => Ok(MailEncryption::Tls),
            "starttls" => Ok(MailEncryption::Starttls),
            "none" => Ok(MailEncryption::None),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_webhook_tells_no_secret() {
        for (url, shown) in [
            (
                "https://user:pass@hooks.example.org/T0/secret?token=1",
                "webhook https://hooks.example.org",
            ),
            ("http://192.0.2.1:8080", "webhook http://192.0.2.1:8080"),
        ] {
            assert_eq!(Destination::Webhook(url.into()).display(), shown);
        }
    }
}
