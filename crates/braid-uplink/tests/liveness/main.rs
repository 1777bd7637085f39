//! The lookout in virtual time: what it must find, how fast, and what must never fool it.

mod any;
mod back;
mod death;
mod life;
mod sim;
