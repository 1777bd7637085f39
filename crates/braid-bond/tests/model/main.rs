//! Models of what the bond adds to Noise IKpsk2. Each visits every state that its actors and an
//! attacker can reach within a few steps, and looks for one that breaks a promise
//! (docs/security.md). Rules of earlier drafts, and rules that were never tried, are modelled too:
//! the attacks on them must be found, which shows that the model can find them.
//!
//! - `handshakes`: growing times, corrections of the clock, resets, restarts of the hub.
//! - `enrolment`: tokens, revocation, and a hub that is killed at any moment.
//! - `roaming`: addresses of links.
//! - `key_rotation`: a hub that replaces its key by a clock that may be wrong, ends that are killed at any moment, and a
//!   thief of keys that were replaced.
//!
//! Ciphers are perfect: the attacker can neither read nor make sealed messages.

mod enrolment;
mod explore;
mod handshakes;
mod key_rotation;
mod roaming;
