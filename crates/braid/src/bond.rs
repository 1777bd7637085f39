//! `braid join`, `braid leave` and `braid bond`: the bond through a hub.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use braid_daemon::bond::{Membership, parse_token};
use braid_daemon::config::{BondFlows, Fallback};
use braid_daemon::report::{BondLinkReport, BondLinkState, BondReport, BondState, JoinRequest};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use tokio::time::sleep;

use crate::cli::Output;
use crate::client::{self, NoAnswer};
use crate::show::{megabytes, percent, tenths};
use crate::table::{Cell, Side, Table};
use crate::terminal::{Progress, Tint, answer, answer_either, tinted};
use crate::{CommandError, CommandResult, ask, runtime, sealing};

/// Longest wait for the hub's answer: a few attempts, the last of which are seconds apart.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Time between two queries of the bond's state.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Shows the state of the bond.
pub fn bond(run_dir: &RunDir, output: Output) -> CommandResult {
    let report: BondReport = ask(run_dir, "/v1/bond")?;
    answer_either(output.json, &report, |paint| text(&report, paint))?;
    match report.state {
        BondState::Up | BondState::None => Ok(()),
        _ => Err(CommandError::Degraded),
    }
}

/// Joins a hub, and waits until it has answered.
pub fn join(run_dir: &RunDir, state_dir: &Path, token: &str, output: Output) -> CommandResult {
    let token = match token {
        "-" => io::read_to_string(io::stdin())
            .map_err(|error| UserError::io("read the token from standard input", &error))?,
        token => token.to_owned(),
    };
    let read = parse_token(&token)?;
    let progress = Progress::of("braid join");
    progress.step("calling the hub");
    let request = JoinRequest {
        token: read.to_string(),
    };
    let outcome = runtime()?.block_on(async {
        let before: BondReport = client::get(run_dir, "/v1/bond").await?;
        let _: BondReport = client::create(run_dir, "/v1/bond", &request).await?;
        let report = settled(run_dir).await?;
        if report.state == BondState::Refused && before.state == BondState::None {
            // A refused membership must not be kept.
            let _: BondReport = client::delete(run_dir, "/v1/bond").await?;
        }
        Ok::<BondReport, NoAnswer>(report)
    });
    drop(progress);
    let report = match outcome {
        Err(NoAnswer::Unreachable(failure)) if failure.code == "not-up" => {
            Membership::begin(&sealing(state_dir)?, read)?;
            return Ok(answer("joined: braid up will call the hub\n")?);
        }
        outcome => outcome?,
    };
    if report.state == BondState::Refused {
        let failure = UserError::new("refused", report.why.clone());
        return Err(failure
            .fix("braid hub invite NAME, on the hub, prints a new token")
            .into());
    }
    answer_either(output.json, &report, |paint| text(&report, paint))?;
    match report.state {
        BondState::Up => Ok(()),
        _ => Err(CommandError::Degraded),
    }
}

/// Waits until the hub has accepted or refused the client, or until [`JOIN_TIMEOUT`] has passed.
async fn settled(run_dir: &RunDir) -> Result<BondReport, NoAnswer> {
    let begun = Instant::now();
    loop {
        let report: BondReport = client::get(run_dir, "/v1/bond").await?;
        let undecided = matches!(report.state, BondState::Connecting | BondState::Lost);
        if !undecided || begun.elapsed() >= JOIN_TIMEOUT {
            return Ok(report);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Leaves the hub.
pub fn leave(run_dir: &RunDir, state_dir: &Path) -> CommandResult {
    let outcome = runtime()?.block_on(client::delete::<BondReport>(run_dir, "/v1/bond"));
    let left = match outcome {
        Err(NoAnswer::Unreachable(failure))
            if matches!(failure.code.as_str(), "not-up" | "daemon-dead") =>
        {
            Membership::forget(&StateDir::new(state_dir))?
        }
        Err(NoAnswer::Refused(failure)) if failure.code == "not-joined" => false,
        outcome => {
            outcome?;
            true
        }
    };
    Ok(answer(match left {
        true => "left: flows are shared out over the uplinks\n",
        false => "nothing to leave: this machine has joined no hub\n",
    })?)
}

/// Renders the bond for people.
pub fn text(report: &BondReport, paint: Paint) -> String {
    let (tint, means) = match report.state {
        BondState::Up => (Tint::Good, meaning(report)),
        BondState::None => {
            return "# no bond: braid hub invite NAME, on a hub of yours, prints a token; braid join \
                    TOKEN joins it\n"
                .to_owned();
        }
        _ => (Tint::Warn, meanwhile(report)),
    };
    let mut text = table(&report.links).render(paint);
    let state = tinted(report.state.as_str(), tint, paint);
    text.push_str(&format!("# bond: {state}: {}; {means}\n", report.why));
    let name = report
        .name
        .as_ref()
        .map_or(String::new(), |name| format!(" as {name}"));
    text.push_str(&format!(
        "# hub: {}{name}; inner addresses {}\n",
        report.hub.join(", "),
        match report.addresses.is_empty() {
            true => "not given yet".to_owned(),
            false => report.addresses.join(", "),
        }
    ));
    if let Some(packets) = &report.packets {
        text.push_str(&format!(
            "# order: {:.1} ms median wait, {:.1} ms at most for 99 of 100; gaps: {} lost, {} waited \
             out, {} for want of memory; {} packets sent again\n",
            packets.reorder_delay_p50_ms,
            packets.reorder_delay_p99_ms,
            packets.gaps_lost,
            packets.gaps_expired,
            packets.gaps_forced,
            packets.retransmitted,
        ));
    }
    for problem in &report.problems {
        text.push_str(&format!("# {}\n", tinted(problem, Tint::Warn, paint)));
    }
    text
}

fn meaning(report: &BondReport) -> &'static str {
    match report.config.flows {
        BondFlows::All => "new flows take it",
        BondFlows::Ruled => "flows take it that a rule sends there",
    }
}

fn meanwhile(report: &BondReport) -> &'static str {
    match report.config.fallback {
        Fallback::Balance => "new flows are shared out over the uplinks meanwhile",
        Fallback::Block => "its flows are blocked meanwhile",
    }
}

/// Renders one line per link.
pub fn table(links: &[BondLinkReport]) -> Table {
    let mut table = Table::new(&[
        ("LINK", Side::Left),
        ("STATE", Side::Left),
        ("RATE Mbit/s", Side::Right),
        ("RTT ms", Side::Right),
        ("SKEW ms", Side::Right),
        ("LOSS %", Side::Right),
        ("RANDOM", Side::Right),
        ("CONGESTED", Side::Right),
        ("SHARE %", Side::Right),
        ("TX MB", Side::Right),
        ("RX MB", Side::Right),
        ("WHY", Side::Left),
    ]);
    for link in links {
        table.row(vec![
            link.uplink.as_str().into(),
            state(link.state),
            format!("{:.1}", link.rate_bit_s as f64 / 1e6).into(),
            tenths(link.rtt_ms).into(),
            tenths(link.owd_skew_ms).into(),
            format!("{:.1}", link.loss * 100.0).into(),
            link.lost_random.to_string().into(),
            link.lost_congestive.to_string().into(),
            percent(link.share).into(),
            megabytes(link.tx_bytes).into(),
            megabytes(link.rx_bytes).into(),
            link.why.as_str().into(),
        ]);
    }
    table
}

fn state(state: BondLinkState) -> Cell {
    let tint = match state {
        BondLinkState::Active => Tint::Good,
        BondLinkState::Trying | BondLinkState::Returning => Tint::None,
        BondLinkState::Suspect | BondLinkState::Quarantined => Tint::Warn,
        BondLinkState::Failed => Tint::Bad,
    };
    Cell::tinted(state.as_str(), tint)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use braid_daemon::config::{BondConfig, BondScheduler};
    use braid_daemon::report::BondPacketsReport;

    fn link(uplink: &str, state: BondLinkState, share: f64, why: &str) -> BondLinkReport {
        let carries = share > 0.0;
        BondLinkReport {
            uplink: uplink.into(),
            id: 0,
            hub: "203.0.113.9:27243".into(),
            state,
            share,
            why: why.into(),
            cleartext: false,
            rate_bit_s: if carries { 48_210_000 } else { 0 },
            delivered_bit_s: None,
            rtt_ms: carries.then_some(31.25),
            rtt_min_ms: carries.then_some(30.0),
            owd_skew_ms: carries.then_some(0.0),
            queue_ms: 2.0,
            jitter_ms: 0.5,
            loss: if carries { 0.012 } else { 0.0 },
            lost_random: 3,
            lost_congestive: 40,
            max_payload_bytes: 1472,
            tx_bytes: 12_000_000,
            rx_bytes: 98_000_000,
            late: 0,
            duplicates: 0,
            gaps_expired: 0,
            send_errors: 0,
        }
    }

    /// A bond with a link that works and one that has fallen silent.
    pub fn report() -> BondReport {
        let carries = "carries 48.2 of 48.2 Mbit/s";
        BondReport {
            state: BondState::Up,
            why: "the hub answers".into(),
            hub: vec!["hub.example.org:27243".into()],
            name: Some("home".into()),
            addresses: vec!["10.73.0.2".into(), "fd00::2".into()],
            config: BondConfig::default(),
            links: vec![
                link("dsl", BondLinkState::Active, 1.0, carries),
                link("lte", BondLinkState::Suspect, 0.0, "silent"),
            ],
            packets: Some(BondPacketsReport {
                scheduler: BondScheduler::Adaptive,
                reorder_delay_p50_ms: 0.04,
                reorder_delay_p99_ms: 12.3,
                in_order: 900,
                held: 90,
                unordered: 10,
                gaps_lost: 6,
                gaps_expired: 7,
                gaps_forced: 0,
                backlog_packets: 0,
                backlog_bytes: 0,
                dropped: 0,
                marked: 0,
                overflowed: 0,
                lowered_windows: 0,
                spurious_retransmissions: 0,
                retransmitted: 13,
                header_bytes_saved: 4_700,
                rejected: 0,
            }),
            problems: vec!["lte: bond: bind to device: no such device".into()],
        }
    }

    #[test]
    fn the_bond_is_a_table_and_what_it_means() {
        let expected = "\
LINK  STATE    RATE Mbit/s  RTT ms  SKEW ms  LOSS %  RANDOM  CONGESTED  SHARE %  TX MB  RX MB  WHY
dsl   active          48.2    31.2      0.0     1.2       3         40    100.0   12.0   98.0  carries 48.2 of 48.2 Mbit/s
lte   suspect          0.0       –        –     0.0       3         40      0.0   12.0   98.0  silent
# bond: up: the hub answers; new flows take it
# hub: hub.example.org:27243 as home; inner addresses 10.73.0.2, fd00::2
# order: 0.0 ms median wait, 12.3 ms at most for 99 of 100; gaps: 6 lost, 7 waited out, 0 for want of memory; 13 packets sent again
# lte: bond: bind to device: no such device
";
        assert_eq!(text(&report(), Paint::Plain), expected);
    }

    #[test]
    fn without_a_hub_the_flows_way_is_told() {
        let lost = BondReport {
            state: BondState::Lost,
            why: "no link to the hub carries anything".into(),
            links: vec![],
            packets: None,
            problems: vec![],
            ..report()
        };
        let said = text(&lost, Paint::Plain);
        let line = "# bond: lost: no link to the hub carries anything; new flows are shared out over the \
                    uplinks meanwhile\n";
        assert!(said.contains(line), "{said}");
        let none = BondReport {
            state: BondState::None,
            ..lost
        };
        assert!(text(&none, Paint::Plain).starts_with("# no bond: "));
    }
}
