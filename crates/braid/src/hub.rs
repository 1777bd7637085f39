//! `braid hub` and `braid keygen`: the far end of bonds.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_bond::proto::handshake::Identity;
use braid_daemon::doctor::preflight;
use braid_daemon::report::DownReport;
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use braid_hub::config::HubConfig;
use braid_hub::report::{
    ClientReport, ClientsReport, InviteReport, InviteRequest, KeyReport, PreviousKeyReport,
    RevokeReport, RotateKeyRequest, StatusReport,
};
use serde::Serialize;

use crate::cli::Output;
use crate::cli::hub::{HubArgs, HubCommand, InviteArgs, RotateKeyArgs};
use crate::client::{self, NoAnswer, path_segment};
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::{Tint, answer_either};
use crate::up::answer_down;
use crate::{CommandError, CommandResult, HUB_DIRECTORY, runtime, show, web};

/// Runs `braid hub …`.
pub fn hub(run_dir: &RunDir, arguments: &HubArgs) -> CommandResult {
    let run_dir = RunDir::new(run_dir.path().join(HUB_DIRECTORY));
    match &arguments.command {
        None => run(run_dir, arguments.config.as_deref()),
        Some(HubCommand::Invite(arguments)) => invite(&run_dir, arguments),
        Some(HubCommand::Clients(output)) => clients(&run_dir, *output),
        Some(HubCommand::Revoke { name, output }) => revoke(&run_dir, name, *output),
        Some(HubCommand::RotateKey(arguments)) => rotate_key(&run_dir, arguments),
        Some(HubCommand::Status(output)) => status(&run_dir, *output),
        Some(HubCommand::Web(command)) => web::web(&run_dir, command, "restart the hub", hub_away),
        Some(HubCommand::Boot { config }) => boot(config.as_deref()),
        Some(HubCommand::Down(output)) => down(&run_dir, *output),
    }
}

fn run(run_dir: RunDir, config: Option<&Path>) -> CommandResult {
    // Configuration errors are printed before anything else.
    HubConfig::find(config)?;
    preflight::check_network()?;
    let ready = |hub: &braid_hub::hub::Hub| {
        tracing::info!(key = %hub.key(), "the hub serves");
    };
    let read = || HubConfig::find(config);
    let file = config.unwrap_or(Path::new(braid_hub::config::DEFAULT_PATH));
    Ok(runtime()?.block_on(braid_hub::serve::run(run_dir, file, read, ready))?)
}

fn boot(config: Option<&Path>) -> CommandResult {
    let config = HubConfig::find(config)?;
    Ok(runtime()?.block_on(braid_hub::boot(&config))?)
}

fn invite(run_dir: &RunDir, arguments: &InviteArgs) -> CommandResult {
    let request = InviteRequest {
        name: arguments.name.clone(),
        address: arguments.address.clone(),
        inner: arguments.inner.clone(),
        rate: arguments.rate,
        valid_ms: u64::try_from(arguments.valid.as_millis()).unwrap_or(u64::MAX),
    };
    let asked = client::create(run_dir, "/v1/invitations", &request);
    let report: InviteReport = runtime()?.block_on(asked).map_err(hub_away)?;
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    if !arguments.output.json {
        eprintln!(
            "# {} will be {}; the token names {} and is good once, for {} h:",
            report.name,
            list(&report.addresses),
            report.hub.join(", "),
            arguments.valid.as_secs() / 3600
        );
    }
    if arguments.qr && !arguments.output.json {
        eprint!("{}", qr_picture(&report.qr_code));
    }
    answer_either(arguments.output.json, &report, |_| {
        format!("{}\n", report.token)
    })?;
    Ok(())
}

/// Draws a QR code, two rows in a line of text, as light squares so that a dark terminal shows it in its colours. A
/// camera reads it inverted too.
fn qr_picture(rows: &[String]) -> String {
    /// Light squares around it (ISO/IEC 18004 §5.3.8).
    const MARGIN: usize = 4;
    let side = rows.len();
    let is_light = |x: usize, y: usize| {
        let inside = (MARGIN..side + MARGIN).contains(&x) && (MARGIN..side + MARGIN).contains(&y);
        !inside || rows[y - MARGIN].as_bytes().get(x - MARGIN) != Some(&b'1')
    };
    let all = side + 2 * MARGIN;
    let mut picture = String::new();
    for y in (0..all).step_by(2) {
        let line = (0..all).map(
            |x| match (is_light(x, y), y + 1 < all && is_light(x, y + 1)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            },
        );
        picture.extend(line);
        picture.push('\n');
    }
    picture
}

fn clients(run_dir: &RunDir, output: Output) -> CommandResult {
    let asked = client::get(run_dir, "/v1/clients");
    let report: ClientsReport = runtime()?.block_on(asked).map_err(hub_away)?;
    answer_either(output.json, &report, |paint| table(&report, now(), paint))?;
    Ok(())
}

fn revoke(run_dir: &RunDir, name: &str, output: Output) -> CommandResult {
    let path = format!("/v1/clients/{}", path_segment(name));
    let asked = client::delete(run_dir, &path);
    let report: RevokeReport = runtime()?.block_on(asked).map_err(hub_away)?;
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    answer_either(output.json, &report, |_| {
        let what = match (report.was_revoked, report.had_joined) {
            (true, _) => "nothing to do: it was revoked before",
            (_, true) => "revoked; its machine is told, and heard no more",
            (_, false) => "revoked; nobody had used its token, and nobody can any more",
        };
        format!("{}: {what}\n", report.name)
    })?;
    Ok(())
}

fn rotate_key(run_dir: &RunDir, arguments: &RotateKeyArgs) -> CommandResult {
    let request = RotateKeyRequest {
        overlap_ms: u64::try_from(arguments.overlap.as_millis()).unwrap_or(u64::MAX),
    };
    let asked = async {
        match arguments.end_overlap {
            true => client::delete(run_dir, "/v1/key/previous").await,
            false => client::create(run_dir, "/v1/key", &request).await,
        }
    };
    let report: KeyReport = runtime()?.block_on(asked).map_err(hub_away)?;
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    answer_either(arguments.output.json, &report, |_| {
        let previous = match &report.previous_key {
            None => "previous    not valid any more\n".to_owned(),
            Some(previous) => previous_key(previous, now()),
        };
        format!("key         {}\n{previous}", report.key)
    })?;
    Ok(())
}

/// A line about the previous key.
fn previous_key(previous: &PreviousKeyReport, now: u64) -> String {
    let left = (previous.until_unix_ms / 1000).saturating_sub(now);
    let left = match left {
        left @ ..7_200 => format!("{} min", left.div_ceil(60)),
        left @ ..172_800 => format!("{} h", left / 3_600),
        left => format!("{} days", left / 86_400),
    };
    let clients = match previous.clients.as_slice() {
        [] => "every client has the new one".to_owned(),
        clients => format!("not followed yet: {}", clients.join(", ")),
    };
    format!(
        "previous    {} is valid for {left} more; {clients}\n",
        previous.key
    )
}

fn status(run_dir: &RunDir, output: Output) -> CommandResult {
    let asked = client::get(run_dir, "/v1/status");
    let report: StatusReport = runtime()?.block_on(asked).map_err(hub_away)?;
    answer_either(output.json, &report, |paint| summary(&report, now(), paint))?;
    match report.health.is_empty() {
        true => Ok(()),
        false => Err(CommandError::Degraded),
    }
}

fn down(run_dir: &RunDir, output: Output) -> CommandResult {
    preflight::check_network()?;
    let undone = runtime()?.block_on(braid_hub::serve::down(run_dir))?;
    answer_down(&DownReport { undone }, output, "the hub")
}

/// Rewords an unreachable daemon's error for the hub.
fn hub_away(no_answer: NoAnswer) -> CommandError {
    match no_answer {
        NoAnswer::Unreachable(failure) => CommandError::Unreachable(match failure.code.as_str() {
            "not-up" => UserError::new(
                "not-up",
                failure.text.replacen("no daemon at", "no hub at", 1),
            )
            .fix("systemctl start braid-hub, or run braid hub"),
            "daemon-dead" => UserError::new("daemon-dead", "no hub is running (it was killed)")
                .fix("systemctl start braid-hub, or run braid hub: it goes on where that stopped"),
            _ => failure,
        }),
        refused => refused.into(),
    }
}

fn summary(report: &StatusReport, now: u64, paint: Paint) -> String {
    let counts = report.clients;
    let previous = report.previous_key.as_ref();
    let previous = previous.map_or(String::new(), |previous| previous_key(previous, now));
    let sealed = if report.is_sealed { ", sealed" } else { "" };
    let mut text = format!(
        "key         {}{sealed}\n{previous}listen      {}\ninner       {} on {}\nforward     {}\nclients     {} joined, {} of \
         them connected; {} invited, {} revoked\n",
        report.key,
        report.listen.join(" "),
        report.networks.join(" "),
        report.device,
        report.forward,
        counts.joined,
        counts.connected,
        counts.invited,
        counts.revoked,
    );
    for (what, counts) in [
        ("handshakes", &report.handshakes),
        ("refused", &report.rejected),
    ] {
        let some = counts.iter().filter(|(_, count)| **count > 0);
        let words: Vec<String> = some
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let words = if words.is_empty() {
            "none".to_owned()
        } else {
            words.join(", ")
        };
        text.push_str(&format!("{what:<12}{words}\n"));
    }
    text.push_str(&show::health(&report.health, paint));
    text
}

fn table(report: &ClientsReport, now: u64, paint: Paint) -> String {
    let mut table = Table::new(&[
        ("CLIENT", Side::Left),
        ("STATE", Side::Left),
        ("INNER", Side::Left),
        ("LINKS", Side::Right),
        ("RTT ms", Side::Right),
        ("RX MB", Side::Right),
        ("TX MB", Side::Right),
        ("RATE", Side::Right),
        ("QUOTA", Side::Left),
        ("SPOOFED packets", Side::Right),
        ("HEARD", Side::Left),
    ]);
    for client in &report.clients {
        let links = client.links.iter().filter(|link| link.in_use);
        let rtt = links
            .clone()
            .filter_map(|link| link.rtt_ms)
            .min_by(f64::total_cmp);
        table.row(vec![
            client.name.as_str().into(),
            state(client),
            list(&client.addresses).into(),
            links.count().to_string().into(),
            show::tenths(rtt).into(),
            show::megabytes(client.rx_bytes).into(),
            show::megabytes(client.tx_bytes).into(),
            client
                .rate
                .map_or(NO_VALUE.to_owned(), |rate| rate.to_string())
                .into(),
            quota(client),
            client.spoofed_packets.to_string().into(),
            heard(client, now).into(),
        ]);
    }
    table.render(paint)
}

fn state(client: &ClientReport) -> Cell {
    match (client.connected, client.state.as_str()) {
        (true, _) => Cell::tinted("connected", Tint::Good),
        (false, "joined") => Cell::tinted("away", Tint::Warn),
        (false, "revoked") => Cell::tinted("revoked", Tint::Bad),
        (false, state) => state.into(),
    }
}

/// Returns how much of which quota a client has used.
fn quota(client: &ClientReport) -> Cell {
    let Some((quota, used)) = client.quota.zip(client.quota_used_bytes) else {
        return NO_VALUE.into();
    };
    let percent = u128::from(used) * 100 / u128::from(quota.volume.get());
    match percent {
        ..100 => format!("{percent} % of {quota}").into(),
        _ => Cell::tinted(format!("used up: {quota}"), Tint::Bad),
    }
}

fn heard(client: &ClientReport, now: u64) -> String {
    match client.last_seen_unix_ms {
        None => NO_VALUE.to_owned(),
        Some(_) if client.connected => "now".to_owned(),
        Some(seen) => match now.saturating_sub(seen / 1000) {
            past @ ..120 => format!("{past} s ago"),
            past @ ..7_200 => format!("{} min ago", past / 60),
            past @ ..172_800 => format!("{} h ago", past / 3_600),
            past => format!("{} days ago", past / 86_400),
        },
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs()
}

fn list(addresses: &[std::net::IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(" ")
}

/// A key pair, base64.
#[derive(Debug, Serialize)]
struct KeyPair {
    private: String,
    public: String,
}

/// Runs `braid keygen`.
pub fn keygen(output: Output) -> CommandResult {
    let identity = Identity::new(braid_hub::hub::random_key()?);
    let pair = KeyPair {
        private: identity.private_text().to_string(),
        public: identity.public().to_string(),
    };
    answer_either(output.json, &pair, |_| {
        format!("private  {}\npublic   {}\n", pair.private, pair.public)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_hub::report::{ClientCounts, LinkReport};

    fn client(name: &str, state: &str, connected: bool) -> ClientReport {
        ClientReport {
            name: name.into(),
            state: state.into(),
            connected,
            addresses: vec!["10.73.0.2".parse().unwrap()],
            key: None,
            rate: connected.then(|| "50 Mbit/s".parse().unwrap()),
            quota: None,
            quota_used_bytes: None,
            created_unix_ms: 1,
            expires_unix_ms: None,
            last_seen_unix_ms: Some(1_000_000),
            rx_bytes: 1_500_000,
            tx_bytes: 98_000_000,
            spoofed_packets: 3,
            capped_packets: 0,
            token_misuses: 0,
            links: vec![LinkReport {
                id: 0,
                remote: None,
                in_use: connected,
                rtt_ms: Some(21.4),
                loss: 0.0,
                rate_bit_s: 1,
                share: 1.0,
                rx_bytes: 1,
                tx_bytes: 1,
            }],
            queue: None,
        }
    }

    #[test]
    fn clients_are_a_table() {
        let with_quota = |client, quota: &str, used| ClientReport {
            quota: Some(quota.parse().unwrap()),
            quota_used_bytes: Some(used),
            ..client
        };
        let attic = client("attic", "joined", true);
        let cellar = client("cellar", "joined", false);
        let report = ClientsReport {
            clients: vec![
                with_quota(attic, "50 GB/month", 49_999_999_999),
                with_quota(cellar, "2 GB/day", 2_000_000_000),
                client("shed", "joined", false),
            ],
        };
        let expected = "\
CLIENT  STATE      INNER      LINKS  RTT ms  RX MB  TX MB       RATE  QUOTA                SPOOFED packets  HEARD
attic   connected  10.73.0.2      1    21.4    1.5   98.0  50 Mbit/s  99 % of 50 GB/month                3  now
cellar  away       10.73.0.2      0       –    1.5   98.0          –  used up: 2 GB/day                  3  10 min ago
shed    away       10.73.0.2      0       –    1.5   98.0          –  –                                  3  10 min ago
";
        assert_eq!(table(&report, 1_600, Paint::Plain), expected);
    }

    #[test]
    fn status_says_what_is_not_as_it_should_be() {
        let report = StatusReport {
            version: "0.1.0".into(),
            pid: 1,
            is_sealed: true,
            key: "KEY=".into(),
            previous_key: Some(PreviousKeyReport {
                key: "OLD=".into(),
                until_unix_ms: 1_600_000 + 10 * 86_400_000,
                clients: vec!["attic".into()],
            }),
            listen: vec!["0.0.0.0:27243".into(), "[::]:27243".into()],
            device: "braid-hub".into(),
            networks: vec!["10.73.0.0/16".into()],
            forward: "nat".into(),
            clients: ClientCounts {
                joined: 2,
                connected: 1,
                invited: 1,
                revoked: 0,
            },
            handshakes: [("accepted".to_owned(), 4), ("stale".to_owned(), 0)].into(),
            rejected: [("forged".to_owned(), 0)].into(),
            unrouted_packets: 0,
            health: Vec::new(),
        };
        let expected = "\
key         KEY=, sealed
previous    OLD= is valid for 10 days more; not followed yet: attic
listen      0.0.0.0:27243 [::]:27243
inner       10.73.0.0/16 on braid-hub
forward     nat
clients     2 joined, 1 of them connected; 1 invited, 0 revoked
handshakes  4 accepted
refused     none
# health: good
";
        assert_eq!(summary(&report, 1_600, Paint::Plain), expected);
    }
}
