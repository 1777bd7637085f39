//! What went wrong, on what, and what the kernel said.

/// A failed step of a load. None of them is worth a retry: the lab reports it and tears down.
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

    /// The kernel's last word on the calling thread.
    pub(crate) fn last_os(what: impl Into<String>) -> Error {
        Error::new(what, std::io::Error::last_os_error())
    }
}
