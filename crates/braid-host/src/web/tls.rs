//! Certificates of the page: given ones, or one that the daemon makes for itself.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ring::digest;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::user_error::UserError;

/// Lifetime of a certificate of our own: browsers of Apple's take none of more than 825 days.
const SELF_MADE_LIFETIME: Duration = Duration::from_secs(820 * 24 * 3600);
/// Remaining lifetime at which it is replaced.
const RENEWAL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Clocks of browsers are behind ours by no more than this.
const CLOCK_ERROR: Duration = Duration::from_secs(24 * 3600);

/// A certificate chain and its key, ready to serve.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    /// Settings of the server.
    pub(super) config: Arc<ServerConfig>,
    /// SHA-256 of the certificate, as browsers show it: `AB:CD:…`.
    pub fingerprint: String,
}

impl TlsIdentity {
    /// Reads a chain and its key from PEM files.
    ///
    /// # Errors
    /// A file cannot be read, or they do not go together.
    pub fn load(certificate: &Path, key: &Path) -> Result<TlsIdentity, UserError> {
        let read = |path: &Path| {
            std::fs::read(path)
                .map_err(|error| UserError::io(format!("read {}", path.display()), &error))
        };
        TlsIdentity::parse(&read(certificate)?, &read(key)?).map_err(|why| {
            let text = format!(
                "certificate {} with key {}: {why}",
                certificate.display(),
                key.display()
            );
            let fix = "[web] certificate and key name PEM files that belong together";
            UserError::new("certificate", text).fix(fix)
        })
    }

    fn parse(certificate: &[u8], key: &[u8]) -> Result<TlsIdentity, String> {
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|error| error.to_string())?;
        let first = chain.first().ok_or("no certificate in it")?;
        let hash = digest::digest(&digest::SHA256, first);
        let fingerprint: Vec<String> = hash.as_ref().iter().map(|b| format!("{b:02X}")).collect();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("key: {error}"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsIdentity {
            config: Arc::new(config),
            fingerprint: fingerprint.join(":"),
        })
    }
}

/// A certificate of our own with its key, as it is stored.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelfMade {
    certificate: String,
    key: String,
    names: Vec<String>,
    expires: u64,
}

impl SelfMade {
    /// Makes one for these addresses and names.
    ///
    /// # Errors
    /// A name cannot be in a certificate, or the system has no random numbers.
    pub fn make(names: Vec<String>, clock: SystemTime) -> Result<SelfMade, UserError> {
        let failed = |error: rcgen::Error| {
            UserError::new("certificate", format!("make a certificate: {error}"))
        };
        let expires = clock + SELF_MADE_LIFETIME;
        let mut params = CertificateParams::new(names.clone()).map_err(failed)?;
        params.not_before = (clock - CLOCK_ERROR).into();
        params.not_after = expires.into();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "Braid gateway");
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(SelfMade {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            names,
            expires: expires
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
        })
    }

    /// Returns the names in a certificate of a server at `listen`.
    #[must_use]
    pub fn names_of<'a>(listen: IpAddr, more: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut names = vec!["localhost".to_owned()];
        if !listen.is_unspecified() {
            names.push(listen.to_string());
        }
        names.extend(more.map(str::to_owned));
        names
    }

    /// Returns true if it is for these names and lives long enough.
    #[must_use]
    pub fn serves(&self, names: &[String], clock: SystemTime) -> bool {
        let soon = (clock + RENEWAL)
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.names == names && self.expires > soon.as_secs()
    }

    /// Makes it ready to serve.
    ///
    /// # Errors
    /// The stored text was changed.
    pub fn identity(&self) -> Result<TlsIdentity, UserError> {
        TlsIdentity::parse(self.certificate.as_bytes(), self.key.as_bytes()).map_err(|why| {
            UserError::new(
                "certificate",
                format!("the certificate made earlier: {why}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_our_own_is_renewed_in_time_and_for_new_names() {
        let clock = SystemTime::now();
        let names =
            SelfMade::names_of("192.168.1.1".parse().unwrap(), ["gate.example"].into_iter());
        assert_eq!(names, ["localhost", "192.168.1.1", "gate.example"]);
        let made = SelfMade::make(names.clone(), clock).unwrap();
        assert_eq!(made.identity().unwrap().fingerprint.len(), 95);
        assert!(made.serves(&names, clock));
        assert!(!made.serves(&names[1..], clock));
        assert!(!made.serves(&names, clock + SELF_MADE_LIFETIME - RENEWAL));
    }

    #[test]
    fn files_that_do_not_go_together_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (
            folder.path().join("one.pem"),
            folder.path().join("other.pem"),
        );
        let make = || SelfMade::make(vec!["a.example".into()], SystemTime::now()).unwrap();
        let (made, stranger) = (make(), make());
        std::fs::write(&one, &made.certificate).unwrap();
        std::fs::write(&other, &made.key).unwrap();
        let loaded = TlsIdentity::load(&one, &other).unwrap();
        assert_eq!(loaded.fingerprint, made.identity().unwrap().fingerprint);
        std::fs::write(&other, &stranger.key).unwrap();
        let refused = TlsIdentity::load(&one, &other).unwrap_err();
        assert!(refused.text.contains("other.pem"), "{refused}");
        std::fs::write(&one, "nothing").unwrap();
        let refused = TlsIdentity::load(&one, &other).unwrap_err();
        assert!(refused.text.contains("no certificate in it"), "{refused}");
    }
}
