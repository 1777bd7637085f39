//! Trace files: accepted ones, and rejected ones with file and line.

use std::sync::Arc;
use std::time::Duration;

use braid_core::Rate;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::trace::Trace;
use braid_emulate::{Config, Link, Time};
use proptest::prelude::*;

fn parse(text: &str) -> Result<Trace, String> {
    Trace::parse("drive.csv".as_ref(), text).map_err(|error| error.to_string())
}

/// Returns when frames of these lengths leave that are all queued at the start, in ms.
fn departures(text: &str, lens: &[u32]) -> Vec<f64> {
    let trace = Arc::new(parse(text).expect("a trace"));
    let mut link = Link::new(
        Config {
            speed: Speed::Trace(trace),
            queue: Limit::Packets(1000),
            ..Config::default()
        },
        1,
    );
    lens.iter()
        .for_each(|len| link.handle_packet(Time::ZERO, *len, ()));
    let end = Time::ZERO + Duration::from_secs(3600);
    std::iter::from_fn(|| link.poll_output(end))
        .map(|o| o.due.as_nanos() as f64 / 1e6)
        .collect()
}

#[test]
fn mahimahi_lets_a_full_frame_go_at_each_time_and_repeats() {
    // Two at 5 ms, one at 10 ms; the period is 10 ms.
    assert_eq!(
        departures("5\n5\n10\n", &[1514; 7]),
        [5.0, 5.0, 10.0, 15.0, 15.0, 20.0, 25.0]
    );
}

#[test]
fn small_frames_share_an_opportunity() {
    assert_eq!(
        departures("5\n10\n", &[700, 700, 700, 700]),
        [5.0, 5.0, 10.0, 10.0]
    );
}

#[test]
fn csv_rates_hold_until_the_next_line_and_repeat() {
    // 1250 bytes take 1 ms at 10 Mbit/s. One second at 10, one at 0 (both lines last 1 s).
    let text = "seconds,Mbit/s\n# a tunnel\n0,10\n\n1,0\n";
    let times = departures(text, &[12_500; 101]);
    assert_eq!(times[0], 10.0);
    assert_eq!(times[99], 1000.0);
    assert_eq!(times[100], 2010.0);
}

#[test]
fn a_frame_spans_a_change_of_rate() {
    // 1 ms at 4 Mbit/s are 4000 bits; the other 8000 take 4 ms at 2 Mbit/s.
    assert_eq!(departures("0,4\n0.001,2\n1,2\n", &[1500]), [5.0]);
}

#[test]
fn means_are_those_of_the_whole_trace() {
    let mean = |text| parse(text).expect("a trace").mean();
    assert_eq!(mean("0,10\n1,0\n"), Rate::from_bits_per_sec(5_000_000));
    assert_eq!(mean("0,7\n"), Rate::from_bits_per_sec(7_000_000));
    assert_eq!(mean("1\n2\n"), Rate::from_bits_per_sec(12_112_000));
}

#[test]
fn bad_lines_are_named() {
    for (text, message) in [
        ("", "trace drive.csv: no lines"),
        ("seconds,Mbit/s\n", "trace drive.csv: no lines"),
        (
            "0\n0\n",
            "trace drive.csv: its last line, which ends it, is at 0 ms",
        ),
        ("0,0\n1,0\n", "trace drive.csv: every rate in it is 0"),
        (
            "hello\n",
            "drive.csv:1: \"hello\" is neither a time in ms (mahimahi) nor \"seconds,Mbit/s\"",
        ),
        (
            "5\n\nfive\n",
            "drive.csv:3: \"five\" is not a whole number of ms",
        ),
        (
            "5\n4\n",
            "drive.csv:2: 4 ms is not after 5 ms of the line before",
        ),
        (
            "0,1\n1;2\n",
            "drive.csv:2: \"1;2\" is not \"seconds,Mbit/s\" with two numbers, zero or more",
        ),
        (
            "0,1\n1,-2\n",
            "drive.csv:2: \"1,-2\" is not \"seconds,Mbit/s\" with two numbers, zero or more",
        ),
        (
            "0,1\n2,1\n2,3\n",
            "drive.csv:3: 2 s is not after 2 s of the line before",
        ),
    ] {
        assert_eq!(parse(text).expect_err(text), message);
    }
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace");
    let error = Trace::read(&file).unwrap_err().to_string();
    let expected = format!("trace {}: No such file", file.display());
    assert!(error.starts_with(&expected), "{error}");
}

proptest! {
    #[test]
    fn no_text_panics(text in "([0-9,.#\\n-]{0,12}|seconds,Mbit/s|\\PC{0,8}|\\n){0,12}", len in 1u32..70_000) {
        if let Ok(trace) = parse(&text) {
            let speed = Speed::Trace(Arc::new(trace));
            let mut link = Link::new(Config { speed, ..Config::default() }, 1);
            for ms in [0, 1, 1, 999_999] {
                link.handle_packet(Time::from_nanos(ms * 1_000_000), len, ());
            }
        }
    }
}

#[test]
fn a_trace_begins_when_it_is_set_and_goes_on_when_something_else_is() {
    // A frame of 1250 bytes takes 1 ms in the first second of the trace, and waits in the second
    // one.
    let config = || Config {
        speed: Speed::Trace(Arc::new(parse("0,10\n1,0\n").expect("a trace"))),
        ..Config::default()
    };
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut link = Link::new(config(), 1);
    let mut due = |change: Option<Config>, ms| {
        if let Some(change) = change {
            link.configure(at(ms), change);
        }
        link.handle_packet(at(ms), 1250, ());
        let output = link.poll_output(at(10_000)).expect("a frame");
        (output.due.since(at(ms)).as_millis(), link.config().clone())
    };
    assert_eq!(due(None, 1500).0, 501);
    let (span, config) = due(Some(config()), 2700);
    assert_eq!(span, 1, "its first second ends at 3.7 s");
    assert_eq!(due(None, 3600).0, 1);
    let jittery = Config {
        queue: Limit::Packets(7),
        ..config
    };
    assert_eq!(due(Some(jittery), 3800).0, 901, "not begun anew");
}
