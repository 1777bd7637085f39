//! A page's login tokens and certificate, in the state directory, and the reports about them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::auth::{LoginToken, LoginTokens, Role, WebAuth};
use super::tls::{SelfMade, TlsIdentity};
use crate::config::{HostName, WebConfig};
use crate::state_dir::StateDir;
use crate::user_error::UserError;

/// Body of `POST /v1/web/token`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Rights of the sessions that the token opens.
    pub role: Role,
    /// True to replace the token, which ends its sessions.
    #[serde(default)]
    pub new: bool,
}

/// Answer to `POST /v1/web/token`, and output of `braid web token --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenReport {
    /// Rights of the sessions that the token opens.
    pub role: Role,
    /// The token.
    pub token: String,
    /// Addresses of the page; empty if `[web]` has no `listen`.
    pub urls: Vec<String>,
    /// SHA-256 of the certificate that is served, to compare with the browser's; none without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_sha256: Option<String>,
}

/// Login tokens of a page, and its certificate.
#[derive(Clone)]
pub struct WebAccess {
    pub(super) auth: Arc<WebAuth>,
    /// The command that prints a token.
    pub(super) command: &'static str,
    state_dir: StateDir,
    tokens: PathBuf,
    certificate: PathBuf,
    /// Fingerprint of the certificate that is served.
    fingerprint: Arc<Mutex<Option<String>>>,
}

impl WebAccess {
    /// Reads the tokens that were given out. The names of its files begin with `prefix`; `command` prints a token.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn open(
        state_dir: StateDir,
        prefix: &str,
        command: &'static str,
    ) -> Result<WebAccess, UserError> {
        let tokens = state_dir.path().join(format!("{prefix}-tokens.json"));
        let certificate = state_dir.path().join(format!("{prefix}-certificate.json"));
        let known = state_dir
            .read_secret::<LoginTokens>(&tokens, &format!("{command} --new makes another one"));
        let known = known.unwrap_or_else(|failure| {
            tracing::warn!(%failure, "nobody can log in to the page with an earlier token");
            None
        });
        Ok(WebAccess {
            auth: Arc::new(WebAuth::new(known.unwrap_or_default())?),
            command,
            state_dir,
            tokens,
            certificate,
            fingerprint: Arc::default(),
        })
    }

    /// Returns the token of a role; makes one if there is none, or another one if wanted.
    fn token(&self, request: TokenRequest) -> Result<LoginToken, UserError> {
        let tokens = self.auth.tokens();
        if let Some(token) = tokens.get(request.role).filter(|_| !request.new) {
            return Ok(token.clone());
        }
        let token = LoginToken::generate()?;
        let tokens = tokens.with(request.role, token.clone());
        self.state_dir.write_secret(&self.tokens, &tokens)?;
        self.auth.set_tokens(tokens);
        Ok(token)
    }

    /// Answers a request for a token.
    ///
    /// # Errors
    /// The token cannot be made or stored.
    pub fn report(
        &self,
        request: TokenRequest,
        config: &WebConfig,
    ) -> Result<TokenReport, UserError> {
        let token = self.token(request)?;
        let shown = self.fingerprint.lock();
        let fingerprint = shown.unwrap_or_else(PoisonError::into_inner).clone();
        Ok(TokenReport {
            role: request.role,
            token: token.as_str().to_owned(),
            urls: urls(config),
            certificate_sha256: fingerprint,
        })
    }

    /// Returns the certificate to serve; none where HTTP is enough.
    pub(super) fn identity(
        &self,
        config: &WebConfig,
        listen: SocketAddr,
    ) -> Result<Option<TlsIdentity>, UserError> {
        if let (Some(certificate), Some(key)) = (&config.certificate, &config.key) {
            return TlsIdentity::load(certificate, key).map(Some);
        }
        if !needs_tls(config, listen) {
            return Ok(None);
        }
        let clock = SystemTime::now();
        let names = SelfMade::names_of(listen.ip(), config.names.iter().map(HostName::as_str));
        let kept = self
            .state_dir
            .read_secret::<SelfMade>(&self.certificate, "remove it");
        if let Ok(Some(kept)) = kept
            && kept.serves(&names, clock)
        {
            return kept.identity().map(Some);
        }
        let made = SelfMade::make(names, clock)?;
        self.state_dir.write_secret(&self.certificate, &made)?;
        made.identity().map(Some)
    }

    pub(super) fn set_fingerprint(&self, fingerprint: Option<String>) {
        let mut shown = self
            .fingerprint
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = fingerprint;
    }
}

/// Returns whether the page is served by TLS: beyond the machine itself, and wherever a certificate is configured.
fn needs_tls(config: &WebConfig, listen: SocketAddr) -> bool {
    let configured = config.certificate.is_some() && config.key.is_some();
    configured || !listen.ip().to_canonical().is_loopback()
}

/// Returns the addresses of the page for a browser's address bar; none if it is not served.
fn urls(config: &WebConfig) -> Vec<String> {
    let Some(listen) = config.listen else {
        return Vec::new();
    };
    let scheme = if needs_tls(config, listen) {
        "https"
    } else {
        "http"
    };
    let mut hosts: Vec<String> = config
        .names
        .iter()
        .map(|name| name.as_str().to_owned())
        .collect();
    hosts.push(match listen.ip() {
        ip if ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    let port = listen.port();
    let url = |host| format!("{scheme}://{host}:{port}/");
    hosts.into_iter().map(url).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;

    use super::*;

    fn access(folder: &Path) -> WebAccess {
        WebAccess::open(StateDir::new(folder), "web", "braid web token").unwrap()
    }

    #[test]
    fn a_token_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let request = |role, new| TokenRequest { role, new };
        let web = access(folder.path());
        let operator = web.token(request(Role::Operator, false)).unwrap();
        let viewer = web.token(request(Role::Viewer, false)).unwrap();
        assert_ne!(operator.as_str(), viewer.as_str());
        // The next daemon knows it.
        let web = access(folder.path());
        let again = web.token(request(Role::Operator, false)).unwrap();
        assert_eq!(again.as_str(), operator.as_str());
        let fresh = web.token(request(Role::Operator, true)).unwrap();
        assert_ne!(fresh.as_str(), operator.as_str());
        let same = web.token(request(Role::Viewer, false)).unwrap();
        assert_eq!(same.as_str(), viewer.as_str(), "the other role's stays");
        // A file that cannot be read is no reason not to start.
        std::fs::write(&web.tokens, "{").unwrap();
        let made = access(folder.path()).token(request(Role::Operator, false));
        assert_ne!(made.unwrap().as_str(), fresh.as_str());
    }

    #[test]
    fn a_network_gets_tls_and_the_machine_itself_needs_none() {
        let folder = tempfile::tempdir().unwrap();
        let web = access(folder.path());
        let config = WebConfig::default();
        let at = |address: &str| web.identity(&config, address.parse().unwrap()).unwrap();
        assert!(at("127.0.0.1:8080").is_none() && at("[::1]:8080").is_none());
        let made = at("192.168.1.1:8443").unwrap().fingerprint;
        assert_eq!(
            at("192.168.1.1:8443").unwrap().fingerprint,
            made,
            "it is kept"
        );
        assert_ne!(at("192.168.2.1:8443").unwrap().fingerprint, made);
        assert!(at("0.0.0.0:8443").is_some() && at("[::]:8443").is_some());
    }

    #[test]
    fn addresses_for_the_address_bar() {
        let mut config = WebConfig {
            listen: Some((Ipv4Addr::UNSPECIFIED, 8443).into()),
            names: vec!["gate.example".parse().unwrap()],
            ..WebConfig::default()
        };
        let both = ["https://gate.example:8443/", "https://localhost:8443/"];
        assert_eq!(urls(&config), both);
        config.names.clear();
        config.listen = Some("[fd00::1]:443".parse().unwrap());
        assert_eq!(urls(&config), ["https://[fd00::1]:443/"]);
        config.listen = Some("[::1]:80".parse().unwrap());
        assert_eq!(urls(&config), ["http://[::1]:80/"]);
        config.certificate = Some("chain.pem".into());
        config.key = Some("key.pem".into());
        assert_eq!(urls(&config), ["https://[::1]:80/"]);
        config.listen = None;
        assert!(urls(&config).is_empty());
    }
}
