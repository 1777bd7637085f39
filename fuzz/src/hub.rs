//! Inputs of a hub and its clients: configuration, tokens, addresses, names, the options of a
//! handshake.

use braid_bond::proto::handshake::Options;
use braid_bond::proto::handshake::terms::{self, MAX_NAME_LENGTH, Refusal, Terms};
use braid_bond::token::{HubAddress, Token};
use braid_host::config::{ConfigError, Paint};
use braid_hub::client::Name;
use braid_hub::config::HubConfig;
use braid_hub::pool::AddressPool;

const NAME: &str = "fuzz.toml";

/// An accepted configuration has an address pool; a refused one is shown with a place for each
/// problem. Displayed values parse to the same values. Options yield addresses with valid prefixes,
/// and names fit for a terminal.
pub fn hub(data: &[u8]) {
    if let Some(options) = Options::parse(data) {
        said(&options);
    }
    let Some(text) = crate::text(data) else {
        return;
    };
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string().parse().as_ref(), Ok(&token));
    }
    if let Ok(address) = text.parse::<HubAddress>() {
        assert_eq!(address.to_string().parse().as_ref(), Ok(&address));
        assert_ne!(address.port, 0);
    }
    if let Ok(name) = text.parse::<Name>() {
        assert!(
            name.to_string() == text && text.len() <= MAX_NAME_LENGTH && !text.starts_with('-')
        );
    }
    match HubConfig::parse(NAME, text) {
        Ok(config) => accepted(&config),
        Err(ConfigError::Invalid { problems, .. }) if problems.is_empty() => {
            panic!("refused without a reason")
        }
        Err(error) => {
            let shown = error.render(Paint::Plain);
            assert!(shown.contains(&format!("[{NAME}:")), "{shown}");
        }
    }
}

fn accepted(config: &HubConfig) {
    AddressPool::new(config.networks([0; 5])).expect("there is something to give");
    assert!(config.store.is_absolute());
    let device = &config.device;
    assert!((1..=15).contains(&device.len()) && !device.contains(['/', '"']));
    assert!(config.listen.iter().all(|address| address.port() != 0));
    assert!(!config.listen.is_empty());
}

fn said(options: &Options) {
    let terms = Terms::read(options);
    for (address, length) in &terms.addresses {
        assert!(*length <= if address.is_ipv4() { 32 } else { 128 });
    }
    if let Some(name) = &terms.name {
        assert!(name.len() <= MAX_NAME_LENGTH && !name.contains(char::is_control));
    }
    if let Some(refusal) = Refusal::read(options) {
        assert_eq!(Refusal::read(&refusal.to_options()), Some(refusal));
    }
    if let Some(invitation) = terms::invitation(options) {
        assert_eq!(
            terms::invitation(&terms::enrol(invitation)),
            Some(invitation)
        );
    }
}
