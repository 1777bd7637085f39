//! `[liveness]`.

use std::time::Duration;

use braid_core::Share;
use braid_host::config::{Located, Problem, Table};
use toml::de::DeTable;

use super::super::liveness::LivenessConfig;
use super::{LIVENESS, SECTIONS, uplinks};

/// Bounds of probe intervals. Shorter ones would add load, longer ones would detect nothing in time.
const PROBE_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(3600));
/// Bounds of `degraded_rtt`. A satellite's round trip is 600 ms; a minute is useless.
const ROUND_TRIPS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));
/// Maximum of `rise`.
const MAX_RISE: u32 = 100;
/// Maximum of `quorum`: the number of targets that one uplink can have.
const MAX_QUORUM: u32 = 16;
/// Maximum length of `portal_expect`.
const MAX_PAGE_BYTES: usize = 4096;

pub(super) fn liveness(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> LivenessConfig {
    let mut table = Table::new(LIVENESS.0, LIVENESS.1, inner);
    let usual = LivenessConfig::default();
    let enabled = table.boolean("enabled", problems);
    let targets = uplinks::targets(&mut table, problems);
    let quorum = table.count("quorum", 1..=MAX_QUORUM, problems);
    let interval = table.time("interval", PROBE_INTERVALS, problems);
    let metered_interval = table.time("metered_interval", PROBE_INTERVALS, problems);
    let rise = table.count("rise", 1..=MAX_RISE, problems);
    let tcp_reset = table.boolean("tcp_reset", problems);
    let portal_fix = "write a page like \"http://192.0.2.1/generate_204\"";
    let portal = table.parsed("portal", portal_fix, problems);
    let portal_expect = table.text("portal_expect", problems);
    let degraded_loss = loss(&mut table, problems);
    let degraded_rtt = table.time("degraded_rtt", ROUND_TRIPS, problems);
    table.finish(SECTIONS, problems);

    if let Some(quorum) = quorum
        .as_ref()
        .filter(|quorum| !targets.is_empty() && quorum.value as usize > targets.len())
    {
        let what = format!("`quorum` is {} of {} targets", quorum.value, targets.len());
        let fix = "name more targets, or lower the quorum";
        problems.push(Problem::new(what, quorum.at.clone(), "can never be met").fix(fix));
    }
    if let (Some(expect), None) = (&portal_expect, &portal) {
        let what = "`portal_expect` without `portal`";
        problems
            .push(Problem::new(what, expect.at.clone(), "the text of which page?").fix(portal_fix));
    }
    if let Some(page) = portal_expect
        .as_ref()
        .filter(|page| page.value.len() > MAX_PAGE_BYTES)
    {
        let what = format!("`portal_expect` is longer than {MAX_PAGE_BYTES} bytes");
        let fix = "choose a page that says less: each probe fetches it";
        problems.push(Problem::new(what, page.at.clone(), "too long").fix(fix));
    }
    LivenessConfig {
        enabled: enabled.unwrap_or(usual.enabled),
        targets,
        quorum: quorum.map_or(usual.quorum, |quorum| quorum.value),
        interval: interval.map_or(usual.interval, |time| time.value),
        metered_interval: metered_interval.map_or(usual.metered_interval, |time| time.value),
        rise: rise.map_or(usual.rise, |rise| rise.value),
        tcp_reset: tcp_reset.unwrap_or(usual.tcp_reset),
        portal: portal.map(|page| page.value),
        portal_expect: portal_expect.map(|text| text.value),
        degraded_loss: degraded_loss.map_or(usual.degraded_loss, |share| share.value),
        degraded_rtt: degraded_rtt.map_or(usual.degraded_rtt, |time| time.value),
    }
}

fn loss(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Option<Located<Share>> {
    let fix = "write a share like \"25 %\"";
    let loss: Located<Share> = table.parsed("degraded_loss", fix, problems)?;
    if loss.value == Share::NONE {
        let what = "`degraded_loss` cannot be nothing";
        problems.push(Problem::new(what, loss.at.clone(), "every uplink loses some").fix(fix));
        return None;
    }
    Some(loss)
}
