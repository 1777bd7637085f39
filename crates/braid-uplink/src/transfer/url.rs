//! URLs of transfers.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

use super::TransferError;

/// An `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferUrl {
    pub(crate) tls: bool,
    /// Name or address, an IPv6 address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as the URL writes them.
    pub(crate) authority: String,
    /// Path and query.
    pub(crate) path: String,
}

impl FromStr for TransferUrl {
    type Err = TransferError;

    fn from_str(text: &str) -> Result<TransferUrl, TransferError> {
        let invalid = |why: &str| TransferError::Url {
            url: text.to_owned(),
            why: why.to_owned(),
        };
        let uri: Uri = text
            .parse()
            .map_err(|_| invalid("write it as http://HOST/PATH"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("a name and password in it are not supported"));
        }
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        Ok(TransferUrl {
            tls,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
        })
    }
}

impl fmt::Display for TransferUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (text, tls, host, port, path) in [
            ("http://example.org", false, "example.org", 80, "/"),
            (
                "https://example.org/a?b=1",
                true,
                "example.org",
                443,
                "/a?b=1",
            ),
            (
                "http://[2001:db8::1]:8080/big",
                false,
                "2001:db8::1",
                8080,
                "/big",
            ),
            ("http://198.51.100.1:81/", false, "198.51.100.1", 81, "/"),
        ] {
            let url: TransferUrl = text.parse().unwrap();
            let parts = (url.tls, url.host.as_str(), url.port, url.path.as_str());
            assert_eq!(parts, (tls, host, port, path));
        }
    }

    #[test]
    fn other_texts_are_refused_with_a_reason() {
        for (text, why) in [
            ("example.org/big", "write it"),
            ("ftp://example.org/big", "must begin with"),
            ("big", "must begin with"),
            ("http://", "write it"),
            ("http://me:secret@example.org/", "password"),
        ] {
            let refused = text.parse::<TransferUrl>().unwrap_err().to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
