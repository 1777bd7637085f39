//! Link emulator: rate, delay, loss and queue between two TAP devices.
