//! Braid's decisions, pure: no sockets, clocks, randomness or unordered iteration.
