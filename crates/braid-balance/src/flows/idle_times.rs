//! Idle times: the time without a packet after which a flow's entry is removed, by protocol and state.

use std::time::Duration;

use crate::FlowState;
use crate::generated::{
    QUIC_PORT, STATE_ANSWERED, STATE_CLOSING, STATE_ESTABLISHED, STATE_FIN_WAIT, STATE_NEW,
};
use crate::maps::layout::FlowValue;

/// Established TCP: RFC 5382 REQ-5, "established connection idle-timeout … MUST NOT be less than
/// 2 hours 4 minutes".
pub const TCP_ESTABLISHED_IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);
/// TCP that one end has closed or the remote has reset: RFC 5382 REQ-5, "transitory … MUST NOT be
/// less than 4 minutes"; RFC 7857 §2.2 says the same for resets, as they may be forged blindly.
pub const TCP_TRANSITORY_IDLE: Duration = Duration::from_secs(4 * 60);
/// TCP that is over: both ends have sent FIN, or the inside has reset it. A deliberate deviation
/// from the four minutes of RFC 5382 REQ-5 and RFC 7857 §2.1: as long as Linux' own TIME_WAIT, after which neither
/// end knows the connection. At 1,000 connections/s, four minutes of them fill the default table.
pub const TCP_CLOSED_IDLE: Duration = Duration::from_secs(60);
/// The same once the table is nearly full: closed connections are what it can best do without,
/// and a late segment of one is answered by the sender's own host all the same.
pub const TCP_CLOSED_IDLE_UNDER_PRESSURE: Duration = Duration::from_secs(10);
/// TCP that is not established yet: above the longest pause between Linux' SYN retransmissions
/// (64 s), and no more, as nobody waits longer.
pub const TCP_EMBRYO_IDLE: Duration = Duration::from_secs(75);
/// Answered UDP: RFC 4787 REQ-5c, "five minutes or more … is RECOMMENDED".
pub const UDP_IDLE: Duration = Duration::from_secs(5 * 60);
/// Unanswered UDP: RFC 4787 REQ-5 has two minutes as its least.
pub const UDP_EMBRYO_IDLE: Duration = Duration::from_secs(2 * 60);
/// Answered DNS: one question, one answer. RFC 4787 REQ-5a allows less than two minutes for
/// well-known ports.
pub const DNS_IDLE: Duration = Duration::from_secs(20);
/// ICMP echo: RFC 5508 REQ-2, "MUST NOT expire in less than 60 seconds".
pub const ICMP_IDLE: Duration = Duration::from_secs(60);
/// Protocols without ports, which no RFC speaks of: as UDP.
pub const PORTLESS_IDLE: Duration = UDP_IDLE;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// DNS' port.
const DNS: u16 = 53;

/// Returns the time that a flow may be idle. A nearly full table (`pressed`) keeps flows that a
/// client can reopen without loss no longer than it must; QUIC connections are not among these.
pub(super) fn idle_time(protocol: u8, value: &FlowValue, pressed: bool) -> Duration {
    let remote_port = u16::from_be_bytes(value.remote_port);
    match (protocol, state_of(value.state)) {
        (TCP, FlowState::Established) => TCP_ESTABLISHED_IDLE,
        (TCP, FlowState::New | FlowState::Answered) => TCP_EMBRYO_IDLE,
        (TCP, FlowState::Closing) if pressed => TCP_CLOSED_IDLE_UNDER_PRESSURE,
        (TCP, FlowState::Closing) => TCP_CLOSED_IDLE,
        (TCP, FlowState::FinWait | FlowState::Reset) => TCP_TRANSITORY_IDLE,
        (UDP, FlowState::New) => UDP_EMBRYO_IDLE,
        (UDP, _) if remote_port == DNS => DNS_IDLE,
        (UDP, _) if pressed && u32::from(remote_port) != QUIC_PORT => UDP_EMBRYO_IDLE,
        (UDP, _) => UDP_IDLE,
        (ICMP | ICMPV6, _) => ICMP_IDLE,
        _ => PORTLESS_IDLE,
    }
}

pub(super) fn state_of(value: u8) -> FlowState {
    match u32::from(value) {
        STATE_NEW => FlowState::New,
        STATE_ANSWERED => FlowState::Answered,
        STATE_ESTABLISHED => FlowState::Established,
        STATE_FIN_WAIT => FlowState::FinWait,
        STATE_CLOSING => FlowState::Closing,
        _ => FlowState::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::STATE_RESET;

    fn idle(protocol: u8, state: u32, remote_port: u16, pressed: bool) -> u64 {
        let value = FlowValue {
            state: u8::try_from(state).expect("a state"),
            remote_port: remote_port.to_be_bytes(),
            ..FlowValue::default()
        };
        idle_time(protocol, &value, pressed).as_secs()
    }

    #[test]
    fn idle_times_by_state_port_and_pressure() {
        // Protocol, state, remote port, seconds, seconds under pressure.
        for (protocol, state, port, easy, pressed) in [
            (TCP, STATE_NEW, 80, 75, 75),
            (TCP, STATE_ANSWERED, 80, 75, 75),
            (TCP, STATE_ESTABLISHED, 80, 7440, 7440),
            (TCP, STATE_FIN_WAIT, 80, 240, 240),
            (TCP, STATE_CLOSING, 80, 60, 10),
            (TCP, STATE_RESET, 80, 240, 240),
            (UDP, STATE_NEW, 53, 120, 120),
            (UDP, STATE_ESTABLISHED, 53, 20, 20),
            (UDP, STATE_ESTABLISHED, 443, 300, 300),
            (UDP, STATE_ESTABLISHED, 3478, 300, 120),
            (ICMP, STATE_ESTABLISHED, 0, 60, 60),
            (47, STATE_ESTABLISHED, 0, 300, 300),
        ] {
            let case = format!("protocol {protocol}, state {state}, port {port}");
            assert_eq!(idle(protocol, state, port, false), easy, "{case}");
            assert_eq!(
                idle(protocol, state, port, true),
                pressed,
                "{case}, pressed"
            );
        }
    }
}
