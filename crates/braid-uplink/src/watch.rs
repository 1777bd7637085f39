//! Tells when to look again.

use crate::{Error, Snapshot};

/// A subscription to changes of links, addresses, routes and rules. Dropping it ends it.
pub struct Watch {}

/// Subscribes. A change after this call is never missed, so: watch first, then read.
///
/// # Errors
/// [`Error::Socket`].
pub fn watch() -> Result<Watch, Error> {
    todo!()
}

impl Watch {
    /// Waits for the next change (or burst of changes) and reads everything anew. May yield a
    /// snapshot equal to the last one: routing rules are watched too, so that whoever owns some can
    /// put them back. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Netlink`] when the kernel cannot be read; calling again retries.
    pub async fn next(&mut self) -> Result<Snapshot, Error> {
        todo!()
    }
}
