//! The link emulator's control socket.

use braid_emulate::Config;
use braid_emulate::io::control::{Change, Request};

use crate::drive::drive;

/// An accepted request is written as a line that parses to the same request, and a link with its
/// settings carries packets.
pub fn control(data: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Request>(data) else {
        return;
    };
    let line = serde_json::to_string(&request).expect("a request is plain data");
    let again: Request = serde_json::from_str(&line).expect("what is written is read");
    assert_eq!(again, request, "{line}");
    // Traces are files; they have a target of their own.
    if let Request::Set(Change { settings, .. }) = request
        && settings.trace.is_none()
    {
        let config = settings.applied_to(&Config::default());
        drive(config.expect("only a trace can be unusable"), data);
    }
}
