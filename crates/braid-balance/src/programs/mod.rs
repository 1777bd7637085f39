//! The programs: loading, attaching to devices, and detaching.

mod detach;
pub(crate) mod egress_queue;
pub(crate) mod filters;
pub(crate) mod hooks;
pub(crate) mod loading;
pub(crate) mod netlink;
