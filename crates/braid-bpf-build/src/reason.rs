
/// A named exit of a program, or an event on the way to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize)]
pub struct Reason {
    /// The counter's label.
    pub name: &'static str,
    /// What became of the packet.
    pub kind: ReasonKind,
    /// One line for people.
    pub text: &'static str,
}

/// What a reason says about a packet.
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

