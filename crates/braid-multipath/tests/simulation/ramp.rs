//! [l3b] §5.2 with `adaptive`: the excess of a full line goes to a dearer one whose delay varies.

use std::time::Duration;

use braid_multipath::schedule::{Adaptive, Class};

use crate::world::{FULL, LinkSpec, OVERHEAD, START, World, line};

/// §5.1: 64 Mbit/s are left on the fixed line.
const FIXED_MBIT: f64 = 64.0;

/// The demand changes every 200 ms, the mobile line's delay a little less often, in steps of this.
const STEP: Duration = Duration::from_millis(50);
const SPAN: Duration = Duration::from_secs(40);

/// §5.2: "starts with a sending rate of 63 Mb/s, then increases its rate exponentially every 200ms
/// for 15 seconds, until it reaches a maximum of 105Mb/s. It holds this constant sending rate for 10
/// seconds and afterwards decreases the rate logarithmically to finally get back to the initial
/// data rate of 63Mb/s after another 15 seconds." In Mbit/s.
fn demand(at: Duration) -> f64 {
    let up = |t: f64| 63.0 * (105.0f64 / 63.0).powf(t / 15.0);
    match (at.as_millis() / 200) as f64 * 0.2 {
        t if t < 15.0 => up(t),
        t if t < 25.0 => 105.0,
        t => up(40.0 - t),
    }
}

/// §5.1: round trips of "25 ms to 45 ms": one way, in steps of a quarter of a second. It rises from
/// the lowest within the first four seconds, and stays for twelve.
fn wandering(at: Duration, highest_ms: f64) -> Duration {
    let seconds = (at.as_millis() / 250) as f64 * 0.25;
    let part = (seconds / 4.0).min((20.0 - seconds) / 4.0).clamp(0.0, 1.0);
    Duration::from_secs_f64((12.5 + (highest_ms - 12.5) * part) / 1e3)
}

/// Returns the loss, and the utilisation of the fixed line while demand was above it, as fractions.
fn ramp(initial: Option<f64>, highest_ms: f64) -> (f64, f64) {
    let fixed = LinkSpec {
        delay: Duration::from_micros(6_500),
        queue_ms: 20,
        ..line(FIXED_MBIT, 0)
    };
    let mobile = LinkSpec {
        delay: wandering(Duration::ZERO, highest_ms),
        tier: 1,
        initial,
        ..line(60.0, 0)
    };
    let lines = [fixed, mobile.clone()];
    let mut world = World::new(&lines, 1, || Box::new(Adaptive::default()));
    let bits = f64::from(FULL + OVERHEAD) * 8.0;
    let every = |at| Duration::from_secs_f64(bits / (demand(at) * 1e6));
    world.add_stream(FULL, every(Duration::ZERO), Class::Ordered);
    let (mut at, mut carried, mut above) = (Duration::ZERO, 0, Duration::ZERO);
    while at < SPAN {
        world.streams[0].every = every(at);
        let delay = wandering(at, highest_ms);
        world.set_line(
            1,
            LinkSpec {
                delay,
                ..mobile.clone()
            },
        );
        let before = world.packets_sent(0, 0);
        world.run_until(START + at + STEP);
        if demand(at) >= FIXED_MBIT {
            carried += world.packets_sent(0, 0) - before;
            above += STEP;
        }
        at += STEP;
    }
    world.streams[0].until = world.now;
    world.run_until(START + SPAN + Duration::from_secs(1));
    let stream = &world.streams[0];
    let loss = (stream.sent - stream.arrived) as f64 / stream.sent as f64;
    let used = carried as f64 * bits / (above.as_secs_f64() * FIXED_MBIT * 1e6);
    let (dropped, _, overflowed) = world.sender(0).drops();
    println!(
        "mobile line taken for {initial:?} Mbit/s, delay up to {highest_ms} ms: {:.3} % lost, {dropped} and {overflowed} in the queue, {} on lines; fixed line used to {used:.3}",
        100.0 * loss,
        world.dropped_on_links
    );
    (loss, used)
}

/// The mobile line is sent the fixed line's excess, so it has proven no more when its delay rises.
/// If that is taken for a queue, it is not sent more, and the bond's own queue drops the rest.
#[test]
fn a_dear_line_whose_delay_wanders_takes_what_is_left_over() {
    for (initial, highest_ms) in [(None, 20.0), (Some(4.0), 20.0), (Some(20.0), 20.5)] {
        let (loss, used) = ramp(initial, highest_ms);
        assert!(loss <= 0.0005);
        assert!(used >= 0.97);
    }
}
