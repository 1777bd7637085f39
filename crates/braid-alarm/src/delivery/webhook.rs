//! Webhooks.

use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::ATTEMPT_TIMEOUT;
use crate::message::Message;

/// Posts the message as JSON. The machine's own certificate authorities are trusted, as with e-mail. A redirect is an
/// error, since it would lose the body.
pub(super) fn post(url: &str, message: &Message) -> Result<(), String> {
    let authorities = rustls_native_certs::load_native_certs().certs;
    let authorities = authorities
        .iter()
        .map(|der| Certificate::from_der(der).to_owned());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::from(authorities))
        .build();
    let agent = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(ATTEMPT_TIMEOUT))
        .max_redirects(0)
        .max_redirects_will_error(true)
        .user_agent(concat!("braid/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent();
    let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    agent
        .post(url)
        .content_type("application/json")
        .send(&json)
        .map(drop)
        // The URL may hold a secret, and this text is shown.
        .map_err(|error| error.to_string().replace(url, "the URL"))
}
