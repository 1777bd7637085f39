//! Every constant of the lookout, each with its reason. Durations unless said otherwise.

use std::time::Duration;

// Suspicion.

/// Silence after sent packets that makes an uplink suspect, at least: below, the ticks in which
/// traffic is counted (50 ms) would decide.
pub(super) const MIN_SILENCE: Duration = Duration::from_millis(100);
/// The same at most: some peers think for long before they answer.
pub(super) const MAX_SILENCE: Duration = Duration::from_millis(1500);
/// Half the time between two looks at the counters while something moves.
pub(super) const HALF_TICK: Duration = Duration::from_millis(25);
/// Packets that are no further apart than this are traffic that suffers from a silence.
pub(super) const MAX_PACKET_GAP: Duration = Duration::from_millis(300);
/// What has come in for so long without a pause is a stream, whose end is worth a question.
pub(super) const MIN_STREAM_TIME: Duration = Duration::from_millis(200);
/// So many packets from one look at the counters to the next are one at once, however short: beside
/// some 25 kB the question costs next to nothing.
pub(super) const MIN_STREAM_PACKETS: u64 = 20;
/// A burst lasts at least this long: shorter gaps are everyday on radio links.
pub(super) const MIN_BURST_TIME: Duration = Duration::from_millis(200);
/// Between two probes of a burst: losses on a link come in runs of a few tens of milliseconds.
pub(super) const BURST_PROBE_INTERVAL: Duration = Duration::from_millis(40);
/// Probes that open a burst together, each to another target.
pub(super) const INITIAL_BURST_PROBES: u32 = 3;
/// How likely a burst may go unanswered by chance on an uplink that works. With the loss that was
/// seen before, it gives the number of probes that a death needs.
pub(super) const FALSE_DEATH_PROBABILITY: f64 = 1e-7;
/// Loss that is assumed at least and at most for that number: 6 to 46 probes.
pub(super) const ASSUMED_LOSS: (f64, f64) = (0.05, 0.7);
/// It lasts this long where there is no hurry: no traffic suffers, or some targets do answer. A line
/// whose round trip jumps is then not taken for a dead one.
pub(super) const MIN_UNHURRIED_BURST_TIME: Duration = Duration::from_secs(1);
/// Connections or repeated segments without any answer that say something: one or two may have
/// been to hosts that are not there.
pub(super) const MIN_UNANSWERED: u64 = 3;
/// How long those have to be unanswered to kill an uplink that has no target to ask.
pub(super) const TRAFFIC_DEATH_TIME: Duration = Duration::from_millis(1500);
/// How long connections have to be unanswered to make an uplink suspect although it receives.
pub(super) const ONE_WAY_SUSPICION_TIME: Duration = Duration::from_secs(1);

// Round trips.

/// Before so many round trips are known, their spread is not: RFC 6298 §2.1's second is used.
pub(super) const MIN_RTT_SAMPLES: u32 = 8;
/// The time-out while the round trip is not known.
pub(super) const INITIAL_RTO: Duration = Duration::from_secs(1);
/// Bounds of the time-out: from what a busy machine may take to answer to RFC 8961's patience.
pub(super) const RTO_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(40), Duration::from_secs(3));
/// Least variance that is allowed for, RFC 6298's clock granularity.
pub(super) const MIN_RTT_SPREAD: Duration = Duration::from_millis(10);
/// A probe is lost, and not only late, after at least this long.
pub(super) const MIN_LOSS_TIME: Duration = Duration::from_secs(1);

// Pace.

/// Between probes where much is to be learnt soon: at the beginning, while sent packets go
/// unanswered, while one family is in doubt, after a death.
pub(super) const FAST_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The same where probes cost money.
pub(super) const METERED_FAST_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a dead uplink is probed keenly; afterwards at its interval.
pub(super) const FAST_PROBING_AFTER_DEATH: Duration = Duration::from_secs(30);
/// Probes that an uplink gets at the keen pace when it is new, answered or not.
pub(super) const INITIAL_FAST_PROBES: u32 = 24;
/// Without packets for so long, an uplink is idle.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Targets for HTTP are asked less often than others, where there are others.
pub(super) const HTTP_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The same while an uplink is dead or behind a captive portal.
pub(super) const FAST_HTTP_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Until a wrong answer over HTTP is asked for again.
pub(super) const HTTP_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Wrong answers in a row that make a captive portal: one may be a server's bad day.
pub(super) const MIN_PORTAL_ANSWERS: u32 = 2;
/// Every so many probes go to targets that are silent, to learn whether they still are.
pub(super) const UNRESPONSIVE_PROBE_RATIO: u32 = 4;
/// Unanswered probes in a row that make a target deaf, if others answered meanwhile.
pub(super) const UNRESPONSIVE_AFTER: u32 = 3;
/// Most probes under way on one uplink.
pub(super) const MAX_IN_FLIGHT_PROBES: usize = 128;
/// Probes in a row that could not be sent, after which the targets are no evidence.
pub(super) const MAX_SEND_FAILURES: u32 = 3;

// Quality.

/// Probes over which loss is counted, and how many there must be to judge it.
pub(super) const LOSS_WINDOW: usize = 20;
pub(super) const MIN_LOSS_SAMPLES: usize = 12;
/// A long round trip has to last so long to count.
pub(super) const MIN_SLOW_TIME: Duration = Duration::from_secs(5);
/// Parts of the degrading loss and round trip below which an uplink is no longer degraded.
pub(super) const LOSS_RECOVERY_FACTOR: f64 = 0.4;
pub(super) const RTT_RECOVERY_FACTOR: f64 = 0.7;

// Return.

/// So long after a death, an answer to what was asked before it takes the death back.
pub(super) const REVOCATION_WINDOW: Duration = Duration::from_millis(1500);
/// Good probes in a row after a device came back: it was seen to go, so less is in doubt.
pub(super) const RISE_AFTER_DEVICE_RETURN: u32 = 3;
/// How long an uplink has to answer before it returns, after its first death …
pub(super) const MIN_HOLD: Duration = Duration::from_secs(1);
/// … and the first wait for a trial where nothing can be asked …
pub(super) const MIN_TRIAL_HOLD: Duration = Duration::from_secs(5);
/// … doubling with each further death, up to this …
pub(super) const MAX_HOLD: Duration = Duration::from_secs(60);
/// … while deaths are forgotten by half in this time.
pub(super) const PENALTY_HALF_LIFE: Duration = Duration::from_secs(300);

// The lookout itself.

/// Called later than this after it asked to be, answers may be waiting: nothing dies before they
/// had time to be read.
pub(super) const LATE_WAKEUP: Duration = Duration::from_millis(100);
/// By how much such lateness may put off a death.
pub(super) const MAX_LATENESS_GRACE: Duration = Duration::from_secs(1);
/// Called later than this, the machine slept or the clock jumped: what was under way is forgotten.
pub(super) const SUSPENDED_AFTER: Duration = Duration::from_secs(2);
