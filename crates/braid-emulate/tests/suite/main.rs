//! The emulated link, in virtual time and between real namespaces.

mod cli;
mod codel;
mod end_to_end;
mod link;
mod loss;
mod trace;
