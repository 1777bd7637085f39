//! Reads the kernel's state over netlink. No decisions here.

use crate::{Error, Snapshot};

/// Reads links, addresses and default routes of the calling thread's network namespace. Needs a
/// tokio runtime with I/O.
///
/// # Errors
/// [`Error::Socket`] or [`Error::Netlink`].
pub async fn read() -> Result<Snapshot, Error> {
    todo!()
}
