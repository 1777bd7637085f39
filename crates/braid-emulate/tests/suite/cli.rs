//! The command line: its consistency, and its errors.

use std::path::PathBuf;

use braid_emulate::cli::{EmulateArgs, EmulateCtlArgs};
use braid_emulate::{Config, Settings};
use clap::{Args, Command, FromArgMatches};
use serde_json::{Value, json};

const ENDS: &str = "emulate --a here:x --b there:y";

fn refused(command: Command, line: &str) -> String {
    command
        .try_get_matches_from(line.split(' '))
        .expect_err(line)
        .to_string()
}

#[test]
fn options_fit_together() {
    EmulateArgs::augment_args(Command::new("emulate")).debug_assert();
    EmulateCtlArgs::augment_args(Command::new("emulate-ctl")).debug_assert();
}

#[test]
fn an_end_in_the_callers_namespace_is_written_as_the_help_says() {
    let command = EmulateArgs::augment_args(Command::new("emulate"));
    let line = "emulate --a -:x --b -:y --rate 1Mbit/s";
    let found = command.try_get_matches_from(line.split(' '));
    let ends = EmulateArgs::from_arg_matches(&found.expect(line)).expect(line);
    assert_eq!((ends.a.netns, ends.b.netns), (None, None));
}

#[test]
fn wrong_values_are_named_with_what_would_be_right() {
    for (options, part) in [
        (
            "--rate 20Mbps",
            "\"20Mbps\" has the unknown unit \"Mbps\": a rate is in bit/s",
        ),
        ("--rate-down 20", "\"20\" has no unit"),
        (
            "--delay 15",
            "\"15\" has no unit: a time is in ns, us, ms, s, min or h",
        ),
        ("--delay=-1ms", "\"-1ms\" is negative"),
        (
            "--loss 120%",
            "\"120%\" is too large: the largest share is 100 %",
        ),
        (
            "--loss-burst 1%",
            "\"1%\" is not bursty loss: write \"p,r\"",
        ),
        (
            "--queue 0p",
            "\"0p\" is not a queue limit: write packets (\"1000p\")",
        ),
        ("--queue fast", "\"fast\" is not a queue limit"),
        ("--aqm red", "possible values: drop-tail, codel"),
        (
            "--mac-a 01:02:03:04:05:06",
            "is not a MAC address for a device",
        ),
        ("--for ever", "\"ever\" is not a time"),
        (
            "--a here",
            "\"here\" is not an end of a link: write NETNS:DEVICE",
        ),
        ("--ratte 1Mbit/s", "unexpected argument '--ratte'"),
    ] {
        let ends = if options.starts_with("--a ") {
            "emulate --b there:y"
        } else {
            ENDS
        };
        let command = EmulateArgs::augment_args(Command::new("emulate").term_width(0));
        let text = refused(command, &format!("{ends} {options}"));
        assert!(text.contains(part), "{options}: {text}");
    }
}

#[test]
fn commands_to_a_running_emulator_are_checked_before_they_are_sent() {
    for (options, part) in [
        ("sock set --rate 5", "\"5\" has no unit"),
        (
            "sock set --direction left",
            "possible values: up, down, both",
        ),
        ("sock blackhole maybe", "possible values: on, off"),
        ("sock", "requires a subcommand"),
    ] {
        let command = EmulateCtlArgs::augment_args(Command::new("emulate-ctl").term_width(0));
        let text = refused(command, &format!("emulate-ctl {options}"));
        assert!(text.contains(part), "{options}: {text}");
    }
}

fn settings(value: Value) -> Settings {
    serde_json::from_value(value).expect("settings")
}

#[test]
fn a_direction_goes_before_both() {
    let both = settings(json!({ "rate": "20 Mbit/s", "delay": "15 ms", "loss": "1 %" }));
    let up = settings(json!({ "rate": "2 Mbit/s", "loss": "0" }));
    let expected = settings(json!({ "rate": "2 Mbit/s", "delay": "15 ms", "loss": "0 %" }));
    assert_eq!(up.or(both.clone()), expected);

    let traced = settings(json!({ "trace": "lte.down" })).or(both);
    assert_eq!(
        (traced.rate, traced.trace),
        (None, Some(PathBuf::from("lte.down")))
    );
}

#[test]
fn a_rate_and_a_trace_exclude_each_other() {
    let both = settings(json!({ "rate": "20 Mbit/s", "trace": "lte.down" }));
    let error = both
        .applied_to(&Config::default())
        .expect_err("refused")
        .to_string();
    assert_eq!(
        error,
        "rate and trace both say how fast the link is: give one of them"
    );
}
