//! One link of a sender.

use std::time::Duration;

use crate::estimate::{Demand, LinkEstimator, LinkReport};
use crate::liveness::{Liveness, Verdict};
use crate::pace::Pacer;
use crate::retransmit::RetransmitBuffer;
use crate::schedule::{Interval, LinkView};
use crate::{Bytes, LinkId, PacketNumber, Rate, RelativeDelay, Time};

/// A link that showed no queue for so long is not full.
const FULL_SPAN: Duration = Duration::from_secs(1);

/// A link that carried no data for so long does not count for whether the bond is full.
const USED_SPAN: Duration = Duration::from_secs(1);

/// After a pause of this, or of twice the usual distance of packets if that is longer, a link
/// that carried data says that nothing follows.
const MIN_CLOSE_DELAY: Duration = Duration::from_millis(5);
const MAX_CLOSE_DELAY: Duration = Duration::from_millis(50);

/// What is configured of a link. Nothing has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkSettings {
    /// Its cost: dearer links carry what cheaper ones cannot.
    pub tier: u8,
    /// Never send faster than this; no limit if none.
    pub cap: Option<Rate>,
    /// A rate to begin with, known from an earlier session; it is corrected at once.
    pub initial: Option<Rate>,
    /// What each packet takes on the wire beside the inner packet.
    pub overhead: Bytes,
    /// How many full packets to send at once in the beginning, to have a first guess of the rate:
    /// without one an inner TCP's first second is spent on a link's 4 Mbit/s, its slow start ends
    /// early, and it needs 5 to 10 s to fill the bond. [`TRAIN_PACKETS`] is enough; zero for none.
    pub train: u32,
}

/// A train of so many full packets is 10 ms of 40 Mbit/s.
pub const TRAIN_PACKETS: u32 = 32;

/// A link as its sender drives it.
#[derive(Debug)]
pub(super) struct SenderLink<T> {
    pub id: LinkId,
    pub settings: LinkSettings,
    pub estimator: LinkEstimator,
    pub pacer: Pacer,
    pub liveness: Liveness,
    pub retransmit_buffer: RetransmitBuffer<T>,
    /// Bytes that may still be sent; no limit if none.
    pub quota: Option<Bytes>,
    /// Packets of the train that are still to be sent.
    pub train: u32,
    full_at: Option<Time>,
    data_at: Option<Time>,
    /// Usual distance of data packets.
    data_interval: Duration,
    /// Data went out and nothing after it.
    open_ended: bool,
    interval_sent: u64,
    interval_lost: u64,
    lost: u64,
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
            lost: 0,
        }
    }

    /// What to send at: what was measured, within the cap, as far as the link may be used.
    pub fn rate(&self) -> Rate {
        let share = self.liveness.share();
        Rate::from_bits_per_sec((self.capped().bits_per_sec() as f64 * share) as u64)
    }

    /// What packets are spaced at.
    fn pace(&self) -> Rate {
        let pace = self.estimator.pace();
        let capped = self.settings.cap.map_or(pace, |cap| pace.min(cap));
        let share = self.liveness.share();
        Rate::from_bits_per_sec((capped.bits_per_sec() as f64 * share) as u64)
    }

    pub fn is_usable(&self) -> bool {
        self.liveness.share() > 0.0 && self.has_quota()
    }

    fn has_quota(&self) -> bool {
        self.quota.is_none_or(|left| left.get() > 0)
    }

    /// As where no link is known to work: one that is merely silent is used as if it did, within its window. A line
    /// by itself would be.
    pub fn last_resort(&self, now: Time, len: Bytes, paced: bool) -> LinkView {
        let silent = self.liveness.verdict() == Verdict::Suspect;
        LinkView {
            usable: silent && self.has_quota(),
            rate: self.capped(),
            ..self.view(now, len, paced)
        }
    }

    fn capped(&self) -> Rate {
        let measured = self.estimator.rate();
        self.settings.cap.map_or(measured, |cap| measured.min(cap))
    }

    pub fn view(&self, now: Time, len: Bytes, paced: bool) -> LinkView {
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
            delay: self.expected_delay(),
            base: self.estimator.base(now).unwrap_or_default(),
        }
    }

    /// When a packet that is sent now can go on at the far end, for the most part. A lost one can,
    /// by its copy, a round trip later; and order waits for those that jitter makes late, while what
    /// is reported is how soon the first ones came. So what can go over a link without loss and
    /// jitter does.
    fn expected_delay(&self) -> RelativeDelay {
        let rtt = self.estimator.rtt().smoothed();
        let lost = rtt.mul_f64(self.estimator.loss().slow());
        // Nothing is known before the first report: not worse than the others, not better.
        let delay = self.estimator.delay().unwrap_or_default();
        delay.plus(lost + self.estimator.jitter() * 3 / 2)
    }

    /// Counts a packet of any kind; the pacer is charged for all of them.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, elicits: bool) -> PacketNumber {
        // A link that may carry no data is still probed; that is not paced.
        let rate = match self.pace() {
            none if none.bits_per_sec() == 0 => self.estimator.capacity().proven(),
            rate => rate,
        };
        self.pacer.handle_sent(now, len, rate);
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

    /// The packet just sent takes so many bytes more.
    pub fn handle_more(&mut self, now: Time, len: Bytes) {
        self.pacer.handle_sent(now, len, self.pace());
        if let Some(quota) = &mut self.quota {
            *quota = Bytes::new(quota.get().saturating_sub(len.get()));
        }
        self.estimator.handle_more(len);
    }

    /// The packet just sent carried data.
    pub fn handle_data(&mut self, now: Time) {
        if let Some(last) = self.data_at {
            let data_interval = now.since(last).min(MAX_CLOSE_DELAY);
            self.data_interval = (self.data_interval * 7 + data_interval) / 8;
        }
        self.data_at = Some(now);
        self.open_ended = true;
    }

    /// Returns whether the report told of new packets.
    pub fn handle_report(&mut self, now: Time, report: &LinkReport, demand: Demand) -> bool {
        if !self.estimator.handle_report(now, report, demand) {
            return false;
        }
        self.interval_lost += report.lost.saturating_sub(self.lost);
        self.lost = self.lost.max(report.lost);
        let lossy = self.estimator.loss().fast() > 0.05 && demand == Demand::Backlog;
        if self.estimator.capacity().is_full() || lossy {
            self.full_at = Some(now);
        }
        let (packets, lost) = (report.packets, report.lost);
        self.liveness
            .handle_progress(now, &self.estimator, packets, lost);
        true
    }

    /// Whether the link is full, as far as it counts for the bond at all.
    pub fn is_full_or_unused(&self, now: Time) -> bool {
        let recent = |at: Option<Time>, span| at.is_some_and(|at| now.since(at) < span);
        !self.is_usable() || recent(self.full_at, FULL_SPAN) || !recent(self.data_at, USED_SPAN)
    }

    /// When the link should say that nothing follows; none if something else has said so.
    pub fn close_at(&self) -> Option<Time> {
        let pause = (self.data_interval * 2).clamp(MIN_CLOSE_DELAY, MAX_CLOSE_DELAY);
        self.data_at
            .filter(|_| self.open_ended)
            .map(|at| at + pause)
    }

    /// Sent and lost since the last call.
    pub fn take_interval(&mut self) -> Interval {
        Interval {
            link: self.id,
            sent: std::mem::take(&mut self.interval_sent),
            lost: std::mem::take(&mut self.interval_lost),
        }
    }
}
