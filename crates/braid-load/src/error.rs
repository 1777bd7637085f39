//! Errors: the failed step, its object, and the kernel's error.

/// A failed step of a load. Nothing is retried: the lab reports the error and tears down.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub(crate) struct Error {
    what: String,
    source: std::io::Error,
}

impl Error {
    /// `what` completes the sentence "cannot …".
    pub(crate) fn new(what: impl Into<String>, source: std::io::Error) -> Error {
        Error {
            what: what.into(),
            source,
        }
    }

    /// Returns the calling thread's last kernel error.
    pub(crate) fn last_os(what: impl Into<String>) -> Error {
        Error::new(what, std::io::Error::last_os_error())
    }
}
