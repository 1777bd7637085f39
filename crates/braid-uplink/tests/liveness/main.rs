//! The lookout in virtual time: what it must find, how fast, and what must never fool it.

mod back;
mod death;
mod life;
mod sim;
