
/// A named exit of a program, or an event on the way to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize)]
pub struct Reason {
    /// Label of the counter.
    pub name: &'static str,
    /// Fate of the packet.
    pub kind: ReasonKind,
    /// Description in one line.
    pub text: &'static str,
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasonKind {
    /// Sent on through another device.
    Sent,
    /// Handed to the next program or the stack.
    Passed,
    /// Dropped.
    Dropped,
    /// Not an exit: something that happened to a packet or flow on the way.
    Event,
}

