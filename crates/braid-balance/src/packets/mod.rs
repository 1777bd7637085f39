//! Packets that leave the kernel for a moment: upcalls, fragments held for their first one, and injection.

pub(crate) mod fragments;
pub(crate) mod inject;
pub(crate) mod upcalls;
