//! Constants of health monitoring, each with its reason. Durations unless said otherwise.

use std::time::Duration;

// Suspicion.

/// Shortest silence after sent packets that makes an uplink suspect. Below it the ticks of the traffic counters
/// (50 ms) would decide.
pub(super) const MIN_SILENCE: Duration = Duration::from_millis(100);
/// Longest such silence: some peers take long to answer.
pub(super) const MAX_SILENCE: Duration = Duration::from_millis(1500);
/// Half the interval between two samples of the counters while packets flow.
pub(super) const HALF_TICK: Duration = Duration::from_millis(25);
/// Longest gap between packets of traffic that suffers from a silence.
pub(super) const MAX_PACKET_GAP: Duration = Duration::from_millis(300);
/// Shortest time of receiving without a pause that makes a stream, whose end starts a burst of probes.
pub(super) const MIN_STREAM_TIME: Duration = Duration::from_millis(200);
/// Packets from one sample to the next that make a stream at once, however short: beside some 25 kB the probes
/// cost next to nothing.
pub(super) const MIN_STREAM_PACKETS: u64 = 20;
/// Shortest burst: shorter gaps are common on radio links.
pub(super) const MIN_BURST_TIME: Duration = Duration::from_millis(200);
/// Interval between probes of a burst: losses on a link come in runs of a few tens of milliseconds.
pub(super) const BURST_PROBE_INTERVAL: Duration = Duration::from_millis(40);
/// Probes that open a burst together, each to another target.
pub(super) const INITIAL_BURST_PROBES: u32 = 3;
/// Probability of an unanswered burst on a working uplink. With the loss seen before, it gives the number of
/// unanswered probes that make a death.
pub(super) const FALSE_DEATH_PROBABILITY: f64 = 1e-7;
/// Bounds of the loss assumed for that number, which is 6 to 46 probes.
pub(super) const ASSUMED_LOSS: (f64, f64) = (0.05, 0.7);
/// Shortest burst if no traffic suffers, or if some targets answer. It keeps a line whose round trip jumps from
/// being declared dead.
pub(super) const MIN_UNHURRIED_BURST_TIME: Duration = Duration::from_secs(1);
/// Unanswered connections or retransmitted segments that count as evidence: one or two may have been to hosts
/// that are not there.
pub(super) const MIN_UNANSWERED: u64 = 3;
/// Time for which these have to stay unanswered to kill an uplink without a target to probe.
pub(super) const TRAFFIC_DEATH_TIME: Duration = Duration::from_millis(1500);
/// Time for which connections have to stay unanswered to make an uplink suspect although it receives.
pub(super) const ONE_WAY_SUSPICION_TIME: Duration = Duration::from_secs(1);

// Round trips.

/// Samples before the variation counts as known. Until then the timeout is RFC 6298 §2.1's second.
pub(super) const MIN_RTT_SAMPLES: u32 = 8;
/// Timeout while the round trip is unknown.
pub(super) const INITIAL_RTO: Duration = Duration::from_secs(1);
/// Bounds of the timeout: from what a busy machine may take to answer, to the upper bound of RFC 8961.
pub(super) const RTO_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(40), Duration::from_secs(3));
/// Least variation allowed for: the clock granularity of RFC 6298.
pub(super) const MIN_RTT_SPREAD: Duration = Duration::from_millis(10);
/// Least time until a missing answer counts as lost and not as late.
pub(super) const MIN_LOSS_TIME: Duration = Duration::from_secs(1);

// Probe intervals.

/// Probe interval while much is unknown: at the beginning, while sent packets go unanswered, while one family
/// is suspect, after a death.
pub(super) const FAST_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The same where probes cost money.
pub(super) const METERED_FAST_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a death for which an uplink is probed at the fast interval.
pub(super) const FAST_PROBING_AFTER_DEATH: Duration = Duration::from_secs(30);
/// Probes that a new uplink gets at the fast interval, answered or not.
pub(super) const INITIAL_FAST_PROBES: u32 = 24;
/// Time without packets after which an uplink is idle.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Probe interval of HTTP targets, where there are others.
pub(super) const HTTP_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The same while an uplink is dead or behind a captive portal.
pub(super) const FAST_HTTP_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Delay until a wrong HTTP answer is checked again.
pub(super) const HTTP_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Wrong answers in a row that make a captive portal: a single one may be a fault of the server.
pub(super) const MIN_PORTAL_ANSWERS: u32 = 2;
/// One in this many probes goes to an unresponsive target, to learn if it answers again.
pub(super) const UNRESPONSIVE_PROBE_RATIO: u32 = 4;
/// Unanswered probes in a row that make a target unresponsive, if others answered meanwhile.
pub(super) const UNRESPONSIVE_AFTER: u32 = 3;
/// Most probes in flight on one uplink.
pub(super) const MAX_IN_FLIGHT_PROBES: usize = 128;
/// Probes in a row that could not be sent, after which the targets are no evidence.
pub(super) const MAX_SEND_FAILURES: u32 = 3;

// Quality.

/// Number of probes over which loss is counted, and the fewest that give a verdict.
pub(super) const LOSS_WINDOW: usize = 20;
pub(super) const MIN_LOSS_SAMPLES: usize = 12;
/// Time for which a long round trip has to last to count.
pub(super) const MIN_SLOW_TIME: Duration = Duration::from_secs(5);
/// Fractions of the degrading loss and round trip below which an uplink is no longer degraded.
pub(super) const LOSS_RECOVERY_FACTOR: f64 = 0.4;
pub(super) const RTT_RECOVERY_FACTOR: f64 = 0.7;

// Recovery.

/// Time after a death in which an answer to an earlier probe revokes it.
pub(super) const REVOCATION_WINDOW: Duration = Duration::from_millis(1500);
/// Good probes in a row after a device came back: its absence was seen, so less is in doubt.
pub(super) const RISE_AFTER_DEVICE_RETURN: u32 = 3;
/// Time for which an uplink has to answer before it returns, after its first death …
pub(super) const MIN_HOLD: Duration = Duration::from_secs(1);
/// … and first wait for a trial where there is no target to probe …
pub(super) const MIN_TRIAL_HOLD: Duration = Duration::from_secs(5);
/// … doubled with each further death, up to this …
pub(super) const MAX_HOLD: Duration = Duration::from_secs(60);
/// … while the penalty is halved in this time.
pub(super) const PENALTY_HALF_LIFE: Duration = Duration::from_secs(300);

// The monitor itself.

/// Lateness of a call from which on answers may be waiting unread: nothing dies before they could be read.
pub(super) const LATE_WAKEUP: Duration = Duration::from_millis(100);
/// Longest delay of a death by such lateness.
pub(super) const MAX_LATENESS_GRACE: Duration = Duration::from_secs(1);
/// Lateness of a call that means that the machine was suspended or the clock jumped: probes in flight are
/// forgotten.
pub(super) const SUSPENDED_AFTER: Duration = Duration::from_secs(2);
