//! `braid history`: the last day of an uplink.

use braid_daemon::report::{CapacityBasisName, HistoryCapacity, HistoryPoint, HistoryReport};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cli::HistoryArgs;
use crate::recording::record;
use crate::show::{share, state, tenths};
use crate::spark::spark;
use crate::table::{NO_VALUE, Side, Table};
use crate::terminal::answer_either;
use crate::{CommandError, ask};

/// Time that is shown unless another one is asked for, in seconds.
const DAY: u32 = 24 * 3600;
/// Width of a row of bars.
const BARS: usize = 72;
/// Rows of the table, at most.
const ROWS: u32 = 24;
/// Steps of the table, in seconds: people think in these.
const STEPS: [u32; 10] = [1, 5, 10, 30, 60, 150, 300, 900, 1800, 3600];

/// Shows the history of one uplink, or records it.
pub fn history(run_dir: &RunDir, arguments: &HistoryArgs) -> Result<(), CommandError> {
    if let Some(name) = &arguments.record {
        return record(run_dir, arguments, name);
    }
    let last = arguments.last.unwrap_or(DAY);
    let question = |step: Option<u32>| path(&arguments.uplink, last, step);
    if arguments.output.json {
        let report: HistoryReport = ask(run_dir, &question(arguments.step))?;
        return Ok(crate::terminal::answer_json(&report)?);
    }
    let fine = last.div_ceil(BARS as u32).max(1);
    let bars: HistoryReport = ask(run_dir, &question(Some(fine)))?;
    let coarse = arguments.step.unwrap_or_else(|| table_step(last));
    let rows: HistoryReport = ask(run_dir, &question(Some(coarse)))?;
    let zone = TimeZone::system();
    answer_either(false, &rows, |paint| {
        text(&bars, &rows, &zone, Timestamp::now(), last, paint)
    })?;
    Ok(())
}

/// Returns the question for an uplink's last seconds, in steps of so many.
pub fn path(uplink: &str, last: u32, step: Option<u32>) -> String {
    let fields = [
        ("uplink", Some(uplink.to_owned())),
        ("last_s", Some(last.to_string())),
        ("step_s", step.map(|step| step.to_string())),
    ];
    let known: Vec<_> = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    let query = serde_urlencoded::to_string(known).expect("names and texts");
    format!("/v1/history?{query}")
}

/// Returns a step with which a time has no more than [`ROWS`] rows.
fn table_step(last: u32) -> u32 {
    let fits = |step: &u32| last / step <= ROWS;
    STEPS.into_iter().find(fits).unwrap_or(3600)
}

fn text(
    bars: &HistoryReport,
    rows: &HistoryReport,
    zone: &TimeZone,
    now: Timestamp,
    last: u32,
    paint: Paint,
) -> String {
    let mut text = charts(bars, now, last);
    let mut table = Table::new(&[
        ("FROM", Side::Left),
        ("STATE", Side::Left),
        ("DOWN Mbit/s", Side::Right),
        ("CAPACITY", Side::Right),
        ("UP Mbit/s", Side::Right),
        ("CAPACITY", Side::Right),
        ("RTT ms", Side::Right),
        ("JITTER ms", Side::Right),
        ("LOSS %", Side::Right),
    ]);
    let format = if rows.step_s < 60 {
        "%H:%M:%S"
    } else {
        "%H:%M"
    };
    for point in &rows.points {
        let time = i64::try_from(point.unix_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let time = time.map(|time| time.to_zoned(zone.clone()).strftime(format).to_string());
        table.row(vec![
            time.unwrap_or_default().into(),
            state(point.state),
            megabits(point.rx_bit_s).into(),
            capacity(point.rx_capacity).into(),
            megabits(point.tx_bit_s).into(),
            capacity(point.tx_capacity).into(),
            tenths(point.rtt_ms).into(),
            tenths(point.jitter_ms).into(),
            share(point.loss).into(),
        ]);
    }
    text.push_str(&table.render(paint));
    text
}

/// Renders rows of bars over the whole time: each with its highest value.
fn charts(report: &HistoryReport, now: Timestamp, last: u32) -> String {
    let step = u64::from(report.step_s.max(1));
    let places = usize::try_from(u64::from(last).div_ceil(step)).unwrap_or(BARS);
    let now = u64::try_from(now.as_second()).unwrap_or_default() / step;
    type Value = fn(&HistoryPoint) -> Option<f64>;
    let kinds: [(&str, &str, Value); 4] = [
        ("down", "Mbit/s", |point| Some(point.rx_bit_s as f64 / 1e6)),
        ("up", "Mbit/s", |point| Some(point.tx_bit_s as f64 / 1e6)),
        ("rtt", "ms", |point| point.rtt_ms),
        ("loss", "%", |point| point.loss.map(|loss| loss * 100.0)),
    ];
    let mut text = String::new();
    for (name, unit, value) in kinds {
        let mut values = vec![0.0; places];
        for point in &report.points {
            let ago = now.saturating_sub(point.unix_ms / 1000 / step);
            let place = usize::try_from(ago)
                .ok()
                .and_then(|ago| places.checked_sub(ago + 1));
            if let Some(place) = place {
                values[place] = value(point).unwrap_or_default();
            }
        }
        let highest = values.iter().copied().fold(0.0, f64::max);
        let bars = spark(values.iter().copied(), places);
        text.push_str(&format!("{name:<5}│{bars}│ at most {highest:.1} {unit}\n"));
    }
    text
}

fn megabits(rate_bit_s: u64) -> String {
    tenths(Some(rate_bit_s as f64 / 1e6))
}

fn capacity(known: Option<HistoryCapacity>) -> String {
    let Some(known) = known else {
        return NO_VALUE.to_owned();
    };
    let rate = megabits(known.rate_bit_s);
    match known.basis {
        CapacityBasisName::AtLeast => format!("> {rate}"),
        CapacityBasisName::Saturated => format!("{rate} traffic"),
        CapacityBasisName::Transfer => format!("{rate} transfer"),
        CapacityBasisName::Dispersion => format!("{rate} dispersion"),
    }
}

#[cfg(test)]
mod tests {
    use braid_daemon::report::UplinkState;

    use super::*;

    fn point(unix_s: u64, mbit: u64, state: UplinkState) -> HistoryPoint {
        HistoryPoint {
            unix_ms: unix_s * 1000,
            tx_bit_s: mbit * 100_000,
            rx_bit_s: mbit * 1_000_000,
            tx_capacity: None,
            rx_capacity: Some(HistoryCapacity {
                rate_bit_s: 20_000_000,
                basis: CapacityBasisName::Saturated,
                measured: true,
            }),
            rtt_ms: (state == UplinkState::Up).then_some(21.4),
            rtt_basis: None,
            jitter_ms: (state == UplinkState::Up).then_some(1.3),
            loss: Some(0.025),
            loss_basis: None,
            state,
            stalled: false,
        }
    }

    #[test]
    fn a_day_is_bars_and_a_table() {
        let now = 1_800_000_060;
        let report = HistoryReport {
            uplink: "dsl".into(),
            step_s: 60,
            points: vec![
                point(now - 300, 4, UplinkState::Up),
                point(now - 120, 0, UplinkState::Dead),
                point(now - 60, 16, UplinkState::Up),
                point(now, 8, UplinkState::Up),
            ],
        };
        let now = Timestamp::from_second(now as i64).unwrap();
        let expected = "\
down │  ▂   █▄│ at most 16.0 Mbit/s
up   │  ▂   █▄│ at most 1.6 Mbit/s
rtt  │  █   ██│ at most 21.4 ms
loss │  █  ███│ at most 2.5 %
FROM   STATE  DOWN Mbit/s      CAPACITY  UP Mbit/s  CAPACITY  RTT ms  JITTER ms  LOSS %
07:56  up             4.0  20.0 traffic        0.4         –    21.4        1.3     2.5
07:59  dead           0.0  20.0 traffic        0.0         –       –          –     2.5
08:00  up            16.0  20.0 traffic        1.6         –    21.4        1.3     2.5
08:01  up             8.0  20.0 traffic        0.8         –    21.4        1.3     2.5
";
        let said = text(&report, &report, &TimeZone::UTC, now, 480, Paint::Plain);
        assert_eq!(said, expected);
    }

    #[test]
    fn tables_have_few_rows() {
        for last in [1, 60, 600, 3600, 7200, 86_400] {
            assert!(last / table_step(last) <= ROWS);
        }
        assert_eq!(table_step(86_400), 3600);
    }
}
