//! A page for browsers on a TCP port: who may see it and who may act, by login tokens and sessions.
//!
//! In goes a router with a daemon's own pages and API; out comes the same router behind a guard. Without a
//! session it answers with the login form or an error, and nothing else.
//!
//! Rules, and why:
//! - GET changes nothing. Everything else needs the session's CSRF token, so that another site's page that the
//!   same browser shows cannot act in its name.
//! - A request names this machine by its address, `localhost` or a configured name. A foreign name that resolves
//!   here (DNS rebinding) would make another site's scripts count as ours.
//! - A token crosses a network only within TLS.
//! - Sessions are signed by their role's login token and kept nowhere: they outlive the daemon's restart, and a
//!   new token ends them all.

mod access;
mod auth;
mod connections;
mod files;
mod guard;
mod listener;
mod login_attempts;
mod tls;

pub use access::{TokenReport, TokenRequest, WebAccess};
pub use auth::{LoginToken, LoginTokens, Role, Session, WebAuth};
pub use connections::serve;
pub use files::{HTML, JS, PageFile, page_files};
pub use guard::{Arrival, Guard, LiveSession, SessionReport, guarded};
pub use listener::{BoundPage, WebThread};
