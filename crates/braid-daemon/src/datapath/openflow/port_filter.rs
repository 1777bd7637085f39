//! Filters of classic BPF for whole UDP datagrams of one port, which begin with their IP header.

use braid_device::Instruction;
use braid_packet::protocol;

/// Datagrams that pass.
pub(super) struct PortFilter {
    /// The port.
    pub port: u16,
    /// Also those from the port; otherwise only those to it.
    pub from_port: bool,
    /// Longest packet, bytes.
    pub max_length: u32,
}

impl PortFilter {
    /// Returns the program.
    pub fn program(&self) -> [Instruction; 22] {
        // Opcodes: loads of the length, of a byte, of a half word, and of one behind IPv4's header; comparisons.
        const LENGTH: u16 = 0x80;
        const BYTE: u16 = 0x30;
        const HALF: u16 = 0x28;
        const AFTER: u16 = 0x48;
        const HEADER: u16 = 0xb1;
        const EQUAL: u16 = 0x15;
        const GREATER: u16 = 0x25;
        const ANY: u16 = 0x45;
        const SHIFT: u16 = 0x74;
        const RETURN: u16 = 0x06;
        let [udp, port] = [u32::from(protocol::UDP), u32::from(self.port)];
        let passes = |steps: u8| if self.from_port { steps } else { 0 };
        let step = |code, k, jt, jf| Instruction { code, jt, jf, k };
        [
            step(LENGTH, 0, 0, 0),
            step(GREATER, self.max_length, 19, 0),
            step(BYTE, 0, 0, 0),
            step(SHIFT, 4, 0, 0),
            step(EQUAL, 4, 0, 9),
            // IPv4: UDP, no fragment.
            step(BYTE, 9, 0, 0),
            step(EQUAL, udp, 0, 14),
            step(HALF, 6, 0, 0),
            step(ANY, 0x3fff, 12, 0),
            step(HEADER, 0, 0, 0),
            step(AFTER, 0, 0, 0),
            step(EQUAL, port, passes(8), 0),
            step(AFTER, 2, 0, 0),
            step(EQUAL, port, 6, 7),
            // IPv6 without further headers.
            step(BYTE, 6, 0, 0),
            step(EQUAL, udp, 0, 5),
            step(HALF, 40, 0, 0),
            step(EQUAL, port, passes(2), 0),
            step(HALF, 42, 0, 0),
            step(EQUAL, port, 0, 1),
            step(RETURN, u32::MAX, 0, 0),
            step(RETURN, 0, 0, 0),
        ]
    }
}
