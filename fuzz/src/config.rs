//! The configuration.

use std::collections::BTreeSet;

use braid_core::UplinkId;
use braid_core::slots::{SlotTable, Weights};
use braid_daemon::config::{Config, Hook, Overrides, Policy, Ports, Settings};
use braid_host::config::{ConfigError, Paint, Problem};
use miette::Diagnostic;

const NAME: &str = "fuzz.toml";

/// An accepted text yields working settings and is written as a file with the same meaning. A
/// refused one is shown with a place inside the text for each problem.
pub fn config(data: &[u8]) {
    let Some(text) = crate::text(data) else {
        return;
    };
    words(text);
    match Config::parse(NAME, text) {
        Ok(config) => accepted(config),
        Err(ConfigError::Invalid { problems, .. }) if problems.is_empty() => {
            panic!("refused without a reason")
        }
        Err(error) => refused(text, &error),
    }
}

fn accepted(config: Config) {
    let written = config.to_toml();
    match Config::parse(NAME, &written) {
        Ok(again) => assert_eq!(again, config, "{written}"),
        Err(error) => panic!("{}", error.render(Paint::Plain)),
    }
    for uplink in &config.uplinks {
        assert_device(&uplink.device);
    }
    let lan = config.lan.iter().flat_map(|lan| &lan.devices);
    lan.for_each(|device| assert_device(device));

    let settings = Settings::new(config, &Overrides::default()).expect("nothing contradicts it");
    settings.selection().expect("uplinks do not clash");
    let uplinks = settings.config.uplinks.iter().zip(0..);
    let weights: Vec<_> = uplinks
        .map(|(uplink, index)| (UplinkId(index), settings.weight(&uplink.name).get()))
        .collect();
    if weights.is_empty() {
        return;
    }
    let weights = Weights::new(weights).expect("every uplink has a weight");
    let table = SlotTable::spread(&weights);
    let served: BTreeSet<_> = table.as_slice().iter().collect();
    assert_eq!(served.len(), weights.as_slice().len(), "{weights:?}");
}

/// A name that the kernel accepts for devices (`dev_valid_name`): it becomes part of paths below
/// `/proc/sys`.
fn assert_device(name: &str) {
    let strange = |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace();
    let good =
        (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.contains(strange);
    assert!(good, "{name:?} was taken for a device");
}

fn refused(text: &str, error: &ConfigError) {
    let ConfigError::Invalid { problems, .. } = error else {
        panic!("{error}")
    };
    problems.iter().for_each(|problem| inside(text, problem));
    let shown = error.render(Paint::Plain);
    let places = shown.matches(&format!("[{NAME}:")).count();
    assert!(places >= problems.len(), "{problems:?} shown as\n{shown}");
}

fn inside(text: &str, problem: &Problem) {
    let mut labels = problem.labels().into_iter().flatten().peekable();
    assert!(labels.peek().is_some(), "{problem} is nowhere");
    for label in labels {
        let end = label.offset() + label.len();
        let cuts = text.is_char_boundary(label.offset()) && text.is_char_boundary(end);
        assert!(end <= text.len() && cuts, "{problem} at {label:?}");
    }
}

/// Single words, which the command line parses as well.
fn words(text: &str) {
    if let Ok(ports) = text.parse::<Ports>() {
        assert_eq!(ports.to_string().parse().as_ref(), Ok(&ports));
        assert!(*ports.range().start() >= Ports::MIN_PORT && !ports.range().is_empty());
    }
    if let Ok(policy) = text.parse::<Policy>() {
        assert_eq!(policy.to_string(), text);
    }
    let _: Result<Hook, _> = text.parse();
}
