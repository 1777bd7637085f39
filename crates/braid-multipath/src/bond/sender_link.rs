//! One link of a sender.

use std::time::Duration;

use braid_core::pace::Pacer;
use braid_core::{Bytes, Rate, Time};

use crate::estimate::{Demand, LinkEstimator, LinkReport};
use crate::liveness::{Liveness, Verdict};
use crate::retransmit::RetransmitBuffer;
use crate::schedule::{Interval, LinkView};
use crate::{LinkId, PacketNumber, RelativeDelay};

/// A link without a queue for this long is not full.
const FULL_SPAN: Duration = Duration::from_secs(1);

/// A link without data for this long is ignored when deciding if the bond is full.
const USED_SPAN: Duration = Duration::from_secs(1);

/// A link that carried data sends a CLOSE after this pause, or after twice its usual packet
/// interval if that is longer.
const MIN_CLOSE_DELAY: Duration = Duration::from_millis(5);
const MAX_CLOSE_DELAY: Duration = Duration::from_millis(50);

/// Part of a link's longest recent stall that is added to its expected delay beside a link that does
/// not stall. All of it leaves a tenth of the link unused.
const STALL_DELAY_SHARE: f64 = 0.3;

/// Settings of a link. The defaults work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkSettings {
    /// Cost tier: dearer links carry what cheaper ones cannot.
    pub tier: u8,
    /// Highest send rate; none for no limit.
    pub cap: Option<Rate>,
    /// Initial rate in place of 4 Mbit/s; it is corrected at once. A bond sets none, since a train
    /// finds the rate within a round trip.
    pub initial: Option<Rate>,
    /// Overhead of each packet on the wire beside the inner packet.
    pub overhead: Bytes,
    /// Full packets to send at once at the start, for a first guess of the rate; zero for none.
    /// Without them an inner TCP flow spends its first second on a link's 4 Mbit/s, leaves slow
    /// start early and needs 5 to 10 s to fill the bond. [`TRAIN_PACKETS`] is enough.
    pub train: u32,
}

/// A train of this many full packets is 10 ms at 40 Mbit/s.
pub const TRAIN_PACKETS: u32 = 32;

/// A link and the state of its sender.
#[derive(Debug)]
pub(super) struct SenderLink<T> {
    pub id: LinkId,
    pub settings: LinkSettings,
    pub estimator: LinkEstimator,
    pub pacer: Pacer,
    pub liveness: Liveness,
    pub retransmit_buffer: RetransmitBuffer<T>,
    /// Bytes that may still be sent; none for no limit.
    pub quota: Option<Bytes>,
    /// Packets of the train that are still to be sent.
    pub train: u32,
    full_at: Option<Time>,
    data_at: Option<Time>,
    /// Usual interval of data packets.
    data_interval: Duration,
    /// True if data was the last thing sent.
    open_ended: bool,
    interval_sent: u64,
    interval_lost: u64,
    /// The last total; none before the first report, since the far end goes on counting when a link is removed and
    /// added again.
    lost: Option<u64>,
}

impl<T> SenderLink<T> {
    pub fn new(
        now: Time,
        id: LinkId,
        settings: LinkSettings,
        retransmit_buffer: RetransmitBuffer<T>,
    ) -> SenderLink<T> {
        SenderLink {
            id,
            settings,
            estimator: LinkEstimator::new(settings.initial),
            pacer: Pacer::default(),
            liveness: Liveness::new(now),
            retransmit_buffer,
            quota: None,
            train: settings.train,
            full_at: None,
            data_at: None,
            data_interval: MAX_CLOSE_DELAY,
            open_ended: false,
            interval_sent: 0,
            interval_lost: 0,
            lost: None,
        }
    }

    /// Returns the send rate: the estimate, within the cap, times the share granted by liveness.
    pub fn rate(&self) -> Rate {
        let share = self.liveness.share();
        Rate::from_bits_per_sec((self.capped().bits_per_sec() as f64 * share) as u64)
    }

    /// Returns the rate at which packets are spaced. A link that may carry no data is still probed, and is the last resort
    /// of a bond without others.
    fn pace(&self) -> Rate {
        let pace = self.estimator.pace();
        let capped = self.settings.cap.map_or(pace, |cap| pace.min(cap));
        let share = self.liveness.share();
        match (capped.bits_per_sec() as f64 * share) as u64 {
            0 => self.estimator.capacity().proven(),
            paced => Rate::from_bits_per_sec(paced),
        }
    }

    pub fn is_usable(&self) -> bool {
        self.liveness.share() > 0.0 && self.has_quota()
    }

    /// Returns true once a report has told the link's delay.
    pub fn has_delay(&self) -> bool {
        self.estimator.delay().is_some()
    }

    /// Returns true if nothing that asks for a report is on its way.
    pub fn is_empty(&self) -> bool {
        self.estimator.in_flight().get() == 0
    }

    fn has_quota(&self) -> bool {
        self.quota.is_none_or(|left| left.get() > 0)
    }

    /// Returns the link's place among the last resorts of a bond in which no link may carry data: 0 for one that works,
    /// but has no quota left, then one that loses much, which carries something at least, then a silent one.
    pub fn resort(&self) -> u8 {
        let place = match self.liveness.verdict() {
            Verdict::Active | Verdict::Returning(_) => 0,
            Verdict::Quarantined => 1,
            Verdict::Suspect => 2,
        };
        match place {
            1.. if !self.has_quota() => place + 2,
            _ => place,
        }
    }

    /// Returns the link's view for such a bond, of which the first last resort is at this place. Links are used within
    /// their windows then, as they would be without a bond.
    pub fn last_resort(&self, now: Time, len: Bytes, paced: bool, first: u8) -> LinkView {
        LinkView {
            usable: self.resort() == first,
            rate: self.capped(),
            ..self.view(now, len, paced, false)
        }
    }

    fn capped(&self) -> Rate {
        let measured = self.estimator.rate();
        self.settings.cap.map_or(measured, |cap| measured.min(cap))
    }

    /// Returns the scheduler's view of the link; `beside_steady` is true if some usable link does
    /// not stall.
    pub fn view(&self, now: Time, len: Bytes, paced: bool, beside_steady: bool) -> LinkView {
        let ready = match paced {
            true => self.estimator.fits_window(len).then(|| self.pacer.ready()),
            false => Some(now),
        };
        LinkView {
            id: self.id,
            tier: self.settings.tier,
            usable: self.is_usable(),
            ready,
            rate: self.rate(),
            delay: self.expected_delay(now, beside_steady),
            base: self.estimator.base(now).unwrap_or_default(),
        }
    }

    /// Returns the delay after which most packets sent now can be delivered at the far end.
    /// A lost packet arrives by retransmission, one round trip later. Delivery in order waits for
    /// packets delayed by jitter or by a stall, while reports give the earliest arrivals. Traffic
    /// that fits on a link without loss, jitter and stalls therefore uses that link. Among links
    /// that all stall, the longest recent stall of each says little about the next.
    pub fn expected_delay(&self, now: Time, beside_steady: bool) -> RelativeDelay {
        let stall = match beside_steady {
            true => self.estimator.stall(now).mul_f64(STALL_DELAY_SHARE),
            false => Duration::ZERO,
        };
        let rtt = self.estimator.rtt().smoothed();
        let lost = rtt.mul_f64(self.estimator.loss().slow());
        // Without a report nothing is known: neither better nor worse than any.
        let delay = self.estimator.delay().unwrap_or_default();
        delay.plus(lost + stall + self.estimator.jitter() * 3 / 2)
    }

    /// Returns the link's delay in microseconds plus a penalty for its loss, to compare links by.
    pub fn cost(&self) -> i64 {
        let delay = self.estimator.delay().map_or(0, |delay| delay.0);
        let retransmission = self.estimator.rtt().smoothed().as_micros() as f64;
        delay + (self.estimator.loss().slow() * 4.0 * retransmission) as i64
    }

    /// Counts a packet of any kind and charges the pacer for it.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, elicits: bool) -> PacketNumber {
        self.pacer.handle_sent(now, len, self.pace());
        if elicits {
            self.liveness.handle_sent(now);
        }
        self.open_ended = false;
        self.interval_sent += 1;
        if let Some(quota) = &mut self.quota {
            *quota = Bytes::new(quota.get().saturating_sub(len.get()));
        }
        self.estimator.handle_sent(now, len, elicits)
    }

    /// Adds `len` bytes to the packet just sent.
    pub fn handle_more(&mut self, now: Time, len: Bytes) {
        self.pacer.handle_sent(now, len, self.pace());
        if let Some(quota) = &mut self.quota {
            *quota = Bytes::new(quota.get().saturating_sub(len.get()));
        }
        self.estimator.handle_more(len);
    }

    /// Notes that the packet just sent carried data.
    pub fn handle_data(&mut self, now: Time) {
        if let Some(last) = self.data_at {
            let data_interval = now.since(last).min(MAX_CLOSE_DELAY);
            self.data_interval = (self.data_interval * 7 + data_interval) / 8;
        }
        self.data_at = Some(now);
        self.open_ended = true;
    }

    /// Takes a report. Returns true if it covers new packets.
    pub fn handle_report(&mut self, now: Time, report: &LinkReport, demand: Demand) -> bool {
        if !self.estimator.handle_report(now, report, demand) {
            return false;
        }
        let before = self.lost.unwrap_or(report.lost);
        self.interval_lost += report.lost.saturating_sub(before);
        self.lost = Some(before.max(report.lost));
        let lossy = self.estimator.loss().fast() > 0.05 && demand == Demand::Backlog;
        if self.estimator.capacity().is_full() || lossy {
            self.full_at = Some(now);
        }
        let (packets, lost) = (report.packets, report.lost);
        self.liveness
            .handle_progress(now, &self.estimator, packets, lost);
        true
    }

    /// Returns true if the link is full, or is unusable or without recent data and so does not
    /// count.
    pub fn is_full_or_unused(&self, now: Time) -> bool {
        !self.is_usable() || self.is_full(now) || !self.is_used(now)
    }

    /// Returns true if the link was full of late.
    pub fn is_full(&self, now: Time) -> bool {
        self.full_at.is_some_and(|at| now.since(at) < FULL_SPAN)
    }

    /// Returns true if the link has carried data of late.
    pub fn is_used(&self, now: Time) -> bool {
        (self.data_at).is_some_and(|at| now.since(at) < USED_SPAN)
    }

    /// Returns when the link should send a CLOSE; none if something else was sent after the data.
    pub fn close_at(&self) -> Option<Time> {
        let pause = (self.data_interval * 2).clamp(MIN_CLOSE_DELAY, MAX_CLOSE_DELAY);
        self.data_at
            .filter(|_| self.open_ended)
            .map(|at| at + pause)
    }

    /// Returns the packets sent and lost since the last call.
    pub fn take_interval(&mut self) -> Interval {
        Interval {
            link: self.id,
            sent: std::mem::take(&mut self.interval_sent),
            lost: std::mem::take(&mut self.interval_lost),
        }
    }
}
