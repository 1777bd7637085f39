//! CoDel at the head of the emulated queue: the controller is `braid-core`'s, the times are RFC
//! 8289's.

use std::time::Duration;

use braid_core::aqm::{Codel, CodelQueue};

use crate::Time;
use crate::queue::{Fifo, QueuedPacket};

/// Acceptable standing queue (RFC 8289 §4.4).
pub const TARGET: Duration = Duration::from_millis(5);

/// About a worst-case round trip (RFC 8289 §4.3).
pub const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn controller() -> Codel {
    Codel::new(TARGET, INTERVAL)
}

impl<P> CodelQueue for Fifo<P> {
    type Packet = QueuedPacket<P>;

    fn pop(&mut self) -> Option<QueuedPacket<P>> {
        Fifo::pop(self)
    }

    fn arrived(held: &QueuedPacket<P>) -> Time {
        held.arrived
    }

    fn bytes(&self) -> u64 {
        Fifo::bytes(self)
    }
}
