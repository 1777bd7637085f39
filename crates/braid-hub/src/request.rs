//! Checks of the API's requests, apart from the hub's state. Pure.

use braid_bond::token::{HubAddress, MAX_ADDRESSES};
use braid_host::user_error::UserError;

use crate::client::{Name, Seconds};
use crate::report::{InviteRequest, RotateKeyRequest};

/// Shortest validity of a token, seconds.
const VALID_MIN_S: Seconds = 60;

/// Longest validity of a token, seconds.
const VALID_MAX_S: Seconds = 366 * 86_400;

/// Shortest overlap of two keys, seconds: the bond of a connected client that is idle has a handshake
/// every half an hour.
const OVERLAP_MIN_S: Seconds = 3_600;

/// Longest overlap of two keys, seconds.
const OVERLAP_MAX_S: Seconds = 366 * 86_400;

/// An invitation that may be carried out, if the registry permits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedInvite {
    /// Name of the client.
    pub name: Name,
    /// Addresses for the token; none for those of the configuration.
    pub addresses: Vec<HubAddress>,
    /// Validity of the token, seconds.
    pub valid_s: Seconds,
}

impl InviteRequest {
    /// Checks the request; `port` is that of addresses without one.
    ///
    /// # Errors
    /// The reason for refusal.
    pub fn check(&self, port: u16) -> Result<CheckedInvite, UserError> {
        let name: Name = self.name.parse()?;
        let valid_s = self.valid_ms / 1000;
        if !(VALID_MIN_S..=VALID_MAX_S).contains(&valid_s) {
            let text = format!("a token cannot be valid for {valid_s} s");
            return Err(UserError::new("usage", text).fix("write a time from 1 min to 366 days"));
        }
        if self.rate.is_some_and(|rate| rate.bits_per_sec() < 1000) {
            let text = "a client cannot have less than 1 kbit/s";
            return Err(UserError::new("usage", text).fix("leave the rate out for no limit"));
        }
        let addresses = self
            .address
            .iter()
            .map(|text| HubAddress::read(text, port))
            .collect::<Result<Vec<_>, _>>();
        let addresses =
            addresses.map_err(|error| UserError::new("usage", format!("--address: {error}")))?;
        if addresses.len() > MAX_ADDRESSES {
            let text = format!("a token has room for {MAX_ADDRESSES} addresses of the hub");
            return Err(UserError::new("usage", text));
        }
        Ok(CheckedInvite {
            name,
            addresses,
            valid_s,
        })
    }
}

impl RotateKeyRequest {
    /// Checks the request; returns the overlap.
    ///
    /// # Errors
    /// The reason for refusal.
    pub fn check(&self) -> Result<Seconds, UserError> {
        let overlap = self.overlap_ms / 1000;
        if !(OVERLAP_MIN_S..=OVERLAP_MAX_S).contains(&overlap) {
            let text = format!("two keys cannot be valid for {overlap} s");
            return Err(UserError::new("usage", text).fix("write a time from 1 h to 366 days"));
        }
        Ok(overlap)
    }
}
