//! Whole tunnels over lines in virtual time.

mod clear;
mod forged;
mod headers;
mod hostile;
mod life;
mod line;
mod load;
mod policy;
mod sim;
