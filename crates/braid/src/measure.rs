//! `braid measure`: capacity of an uplink by a transfer, or by trains of packets.

use std::io::{IsTerminal, Write, stderr};

use braid_daemon::report::{
    BondLinkReport, BondReport, CapacityBasisName, FailedMeasurement, MeasureReport,
    MeasuredDirection, MeasurementMethod, MeasurementReport, MeasurementRequest, UplinkReport,
    UplinkState, UplinksReport,
};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use braid_uplink::BOND_DEVICE;
use braid_uplink::dispersion::{EchoResult, dispersion, echo_dispersion, packet_sizes};
use braid_uplink::transfer::{
    TransferDirection, TransferEgress, TransferError, TransferProgress, TransferResult,
    TransferUrl, transfer,
};

use crate::cli::{MeasureArgs, MethodName};
use crate::client;
use crate::show::{megabytes, seconds};
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::{Progress, Tint, answer_either};
use crate::{CommandError, CommandResult, runtime};

/// Factor from which the other direction is surely faster.
const OTHER_FASTER: f64 = 1.1;

/// Measures the uplinks one after the other, so that they share neither the server nor each other's time.
pub fn measure(run_dir: &RunDir, arguments: &MeasureArgs) -> CommandResult {
    let (report, first) = runtime()?.block_on(measured(run_dir, arguments))?;
    match first {
        Some(failure) if report.measurements.is_empty() => Err(failure.into()),
        first => {
            answer_either(arguments.output.json, &report, |paint| text(&report, paint))?;
            first.map_or(Ok(()), |_| Err(CommandError::Degraded))
        }
    }
}

/// Returns all measurements, and the first failure.
async fn measured(
    run_dir: &RunDir,
    arguments: &MeasureArgs,
) -> Result<(MeasureReport, Option<UserError>), CommandError> {
    let known: UplinksReport = client::get(run_dir, "/v1/uplinks").await?;
    let wanted = wanted(&known.uplinks, arguments.uplink.as_deref())?;
    let url = arguments.url.as_deref().map(str::parse::<TransferUrl>);
    let url = url
        .transpose()
        .map_err(|error| refused(&error, MeasuredDirection::Down))?;
    if url.is_none() && arguments.method == MethodName::Transfer {
        let bond: Option<BondReport> = client::get(run_dir, "/v1/bond").await.ok();
        let names: Vec<&str> = wanted.iter().map(|uplink| uplink.name.as_str()).collect();
        return Err(no_url(&names, bond.as_ref()).into());
    }
    let (mut report, mut first) = (MeasureReport::default(), None);
    for uplink in wanted {
        for direction in arguments.direction.directions() {
            match one(run_dir, uplink, arguments, url.as_ref(), *direction).await {
                Ok(found) => report.measurements.push(found),
                Err(failure) => {
                    report.failed.push(FailedMeasurement {
                        uplink: uplink.name.clone(),
                        direction: *direction,
                        why: failure.text.clone(),
                    });
                    first.get_or_insert(failure);
                }
            }
        }
    }
    Ok((report, first))
}

/// Returns the named uplink, or all but the bond, which is made of the others.
fn wanted<'a>(
    known: &'a [UplinkReport],
    name: Option<&str>,
) -> Result<Vec<&'a UplinkReport>, UserError> {
    let Some(name) = name else {
        let real = known.iter().filter(|uplink| uplink.device != BOND_DEVICE);
        let real: Vec<_> = real.collect();
        let none = || UserError::new("no-uplink", "there is no uplink to measure");
        return match real.is_empty() {
            true => Err(none().fix("braid doctor says why")),
            false => Ok(real),
        };
    };
    let found = known.iter().find(|uplink| uplink.name == name);
    let names = || known.iter().map(|uplink| uplink.name.as_str());
    found
        .map(|uplink| vec![uplink])
        .ok_or_else(|| UserError::unknown_uplink(name, names()))
}

/// Without a URL there is nothing for a transfer to measure against, in a bond either: it tells what is known instead.
fn no_url(uplinks: &[&str], bond: Option<&BondReport>) -> UserError {
    let failure = UserError::new("usage", "there is no URL to measure against");
    let url = "--method dispersion needs none; --url names a file of some 100 MB near the internet's core, such as \
               that of a speed test";
    let links = bond.iter().flat_map(|bond| &bond.links);
    let is_known =
        |link: &&BondLinkReport| link.rate_bit_s > 0 && uplinks.contains(&link.uplink.as_str());
    let links = links.filter(is_known);
    let rates = links.map(|link| {
        let (uplink, rate) = (&link.uplink, megabytes(link.rate_bit_s));
        format!("{uplink} {rate} Mbit/s")
    });
    let rates: Vec<String> = rates.collect();
    failure.fix(match rates.is_empty() {
        true => url.to_owned(),
        false => format!(
            "{url}; the hub offers none. The bond sends {} at most (braid bond), which is not taken for the uplink's \
             capacity",
            rates.join(", ")
        ),
    })
}

async fn one(
    run_dir: &RunDir,
    uplink: &UplinkReport,
    arguments: &MeasureArgs,
    url: Option<&TransferUrl>,
    direction: MeasuredDirection,
) -> Result<MeasurementReport, UserError> {
    let name = &uplink.name;
    if uplink.state == UplinkState::Down {
        let text = format!("{name} is down: {}", uplink.why);
        return Err(UserError::new("uplink-down", text).fix("braid uplinks shows when it is back"));
    }
    let egress = TransferEgress {
        device: uplink.device.clone(),
        v4: uplink.ipv4.as_ref().map(|next_hop| next_hop.address),
        v6: uplink.ipv6.as_ref().map(|next_hop| next_hop.address),
    };
    let other_bytes = async || {
        let now: UplinksReport = client::get(run_dir, "/v1/uplinks").await.ok()?;
        let now = now.uplinks.iter().find(|other| other.name == *name)?;
        Some(match direction {
            MeasuredDirection::Down => now.rx_bytes,
            MeasuredDirection::Up => now.tx_bytes,
        })
    };
    let way = match direction {
        MeasuredDirection::Down => TransferDirection::Down,
        MeasuredDirection::Up => TransferDirection::Up,
    };
    let mut display = Display::new(format!("{name} {}", direction.as_str()));
    let show = |progress: &TransferProgress| display.show(progress);
    let found = match (arguments.method, url) {
        (MethodName::Transfer, Some(url)) => transfer(&egress, url, way, other_bytes, show).await,
        (MethodName::Dispersion, Some(url)) => dispersion(&egress, url, way, show).await,
        (MethodName::VariablePacketSize, _) => {
            packet_sizes(&egress, arguments.target, uplink.mtu, show).await
        }
        (_, None) => echo_dispersion(&egress, arguments.target, uplink.mtu, show)
            .await
            .map(|found| one_way(found, uplink, direction)),
    };
    drop(display);
    let found = found.map_err(|error| {
        let failure = refused(&error, direction);
        UserError {
            text: format!("{name}: {}", failure.text),
            ..failure
        }
    })?;
    let measurement = MeasurementReport {
        uplink: name.clone(),
        direction,
        rate_bit_s: found.estimate.rate.bits_per_sec(),
        error: found.estimate.error,
        saturated: found.estimate.saturated,
        spent_bytes: found.spent.get(),
        took_ms: u64::try_from(found.took.as_millis()).unwrap_or(u64::MAX),
        connections: found.connections,
        method: arguments.method.reported(),
    };
    if arguments.method == MethodName::VariablePacketSize {
        return Ok(measurement);
    }
    let request = MeasurementRequest {
        uplink: name.clone(),
        direction,
        rate_bit_s: measurement.rate_bit_s,
        error: measurement.error,
        saturated: measurement.saturated,
        method: measurement.method,
    };
    let noted = client::create::<UplinkReport>(run_dir, "/v1/measurements", &request).await;
    noted.map_err(|no_answer| match no_answer {
        client::NoAnswer::Refused(failure) | client::NoAnswer::Unreachable(failure) => UserError {
            text: format!("measured, but the daemon did not take it: {}", failure.text),
            ..failure
        },
    })?;
    Ok(measurement)
}

/// Returns what echo requests say of one direction. They show the slower one: it is this one if replies were small, or
/// if the other one is known to carry more. Otherwise it is a lower bound of both.
fn one_way(
    found: EchoResult,
    uplink: &UplinkReport,
    direction: MeasuredDirection,
) -> TransferResult {
    let other = match direction {
        MeasuredDirection::Down => &uplink.tx_capacity,
        MeasuredDirection::Up => &uplink.rx_capacity,
    };
    let mut result = found.result;
    let estimate = &mut result.estimate;
    let least = estimate.rate.bits_per_sec() as f64 * (1.0 + estimate.error) * OTHER_FASTER;
    let other_is_faster = other.as_ref().is_some_and(|other| {
        let error = match other.basis {
            CapacityBasisName::AtLeast => 0.0,
            _ => other.error,
        };
        other.rate_bit_s as f64 * (1.0 - error) > least
    });
    let is_this = match (found.is_up, direction) {
        (true, MeasuredDirection::Up) => true,
        (true, MeasuredDirection::Down) => false,
        (false, _) => other_is_faster,
    };
    estimate.saturated &= is_this;
    result
}

/// Adds the next step.
fn refused(error: &TransferError, direction: MeasuredDirection) -> UserError {
    let failure = |code| UserError::new(code, error.to_string());
    match error {
        TransferError::Url { .. } => {
            failure("usage").fix("for example http://example.org/100MB.bin")
        }
        TransferError::NoAddress { .. } => {
            failure("address").fix("name a host that has an address of the uplink's families")
        }
        TransferError::Lookup { .. } => {
            failure("lookup").fix("check the name, and whether this machine can look names up")
        }
        TransferError::Bind { source, .. } => UserError {
            text: error.to_string(),
            ..UserError::io("", source)
        },
        TransferError::Connect { .. } => failure("unreachable")
            .fix("braid uplinks shows whether the uplink works; try the same URL over another one"),
        TransferError::Status {
            location: Some(location),
            ..
        } => failure("status").fix(format!("name that URL itself: --url {location}")),
        TransferError::Status { .. } if direction == MeasuredDirection::Up => {
            failure("status").fix("name a URL that takes uploads of 25 MB by POST")
        }
        TransferError::Status { .. } => failure("status").fix("check the URL with curl"),
        TransferError::Tls { .. } => failure("tls").fix(
            "name a URL whose certificate this machine trusts (SSL_CERT_FILE adds one), or an http one",
        ),
        TransferError::NoTrains => failure("no-trains").fix(
            "name another --target that answers echo requests of full size, or a --url",
        ),
        TransferError::Small { .. } => {
            failure("small").fix("name a larger file: 100 MB are enough for any line")
        }
        _ => failure("transfer").fix("try again, or name another URL"),
    }
}

/// Progress of one transfer on standard error: one line that changes on a terminal, a line per transfer otherwise.
struct Display {
    what: String,
    live: bool,
    _steps: Option<Progress>,
}

impl Display {
    fn new(what: String) -> Display {
        let live = stderr().is_terminal();
        let steps = (!live).then(|| {
            let steps = Progress::of("braid measure");
            steps.step(&what);
            steps
        });
        Display {
            what,
            live,
            _steps: steps,
        }
    }

    fn show(&mut self, progress: &TransferProgress) {
        if self.live {
            eprint!("\r\x1b[K{}", line(&self.what, progress));
            // A terminal that is gone is noticed elsewhere.
            let _ = stderr().flush();
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if self.live {
            eprint!("\r\x1b[K");
        }
    }
}

fn line(what: &str, progress: &TransferProgress) -> String {
    let rate = progress.estimate.map_or_else(
        || "connected".to_owned(),
        |found| match found.error {
            1.0.. => format!("{} Mbit/s", megabytes(found.rate.bits_per_sec())),
            error => format!(
                "{} Mbit/s ±{:.0} %",
                megabytes(found.rate.bits_per_sec()),
                error * 100.0
            ),
        },
    );
    let (seconds, spent) = (progress.took.as_secs_f64(), progress.spent.get());
    format!(
        "{what}: {rate}, {seconds:.1} s, {} MB, {} connections",
        megabytes(spent),
        progress.connections
    )
}

fn method_reason(method: MeasurementMethod) -> &'static str {
    match method {
        MeasurementMethod::Transfer => "the line was full",
        MeasurementMethod::Dispersion => "trains of packets agree",
        MeasurementMethod::VariablePacketSize => "if it is as fast up as down",
    }
}

fn bound_reason(method: MeasurementMethod) -> &'static str {
    match method {
        MeasurementMethod::Transfer => "the line may not have been full",
        _ => "the trains do not tell more",
    }
}

fn text(report: &MeasureReport, paint: Paint) -> String {
    let mut table = Table::new(&[
        ("UPLINK", Side::Left),
        ("DIRECTION", Side::Left),
        ("CAPACITY Mbit/s", Side::Right),
        ("ERROR %", Side::Right),
        ("TIME s", Side::Right),
        ("SPENT MB", Side::Right),
        ("CONNECTIONS", Side::Right),
        ("WHY", Side::Left),
    ]);
    for found in &report.measurements {
        let megabits = megabytes(found.rate_bit_s);
        table.row(vec![
            found.uplink.as_str().into(),
            found.direction.as_str().into(),
            match found.saturated {
                true => megabits.into(),
                false => format!("> {megabits}").into(),
            },
            match found.saturated {
                true => format!("{:.0}", found.error * 100.0).into(),
                false => NO_VALUE.into(),
            },
            seconds(found.took_ms).into(),
            megabytes(found.spent_bytes).into(),
            found.connections.to_string().into(),
            match found.saturated {
                true => method_reason(found.method).into(),
                false => Cell::tinted(bound_reason(found.method), Tint::Warn),
            },
        ]);
    }
    for failed in &report.failed {
        let mut cells: Vec<Cell> = vec![
            failed.uplink.as_str().into(),
            failed.direction.as_str().into(),
        ];
        cells.extend((0..5).map(|_| Cell::from(NO_VALUE)));
        cells.push(Cell::tinted(failed.why.as_str(), Tint::Bad));
        table.row(cells);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_core::capacity::ActiveEstimate;
    use braid_core::{Bytes, Rate};

    use super::*;

    #[test]
    fn results_are_a_table() {
        let measured = |direction, rate_bit_s, saturated| MeasurementReport {
            uplink: "dsl".into(),
            direction,
            rate_bit_s,
            error: 0.021,
            saturated,
            spent_bytes: 5_340_000,
            took_ms: 1_120,
            connections: 8,
            method: MeasurementMethod::Transfer,
        };
        let report = MeasureReport {
            measurements: vec![
                measured(MeasuredDirection::Down, 48_310_000, true),
                measured(MeasuredDirection::Up, 9_720_000, false),
            ],
            failed: vec![FailedMeasurement {
                uplink: "lte".into(),
                direction: MeasuredDirection::Down,
                why: "lte is down: no carrier".into(),
            }],
        };
        let expected = "\
UPLINK  DIRECTION  CAPACITY Mbit/s  ERROR %  TIME s  SPENT MB  CONNECTIONS  WHY
dsl     down                  48.3        2     1.1       5.3            8  the line was full
dsl     up                   > 9.7        –     1.1       5.3            8  the line may not have been full
lte     down                     –        –       –         –            –  lte is down: no carrier
";
        assert_eq!(text(&report, Paint::Plain), expected);
    }

    #[test]
    fn progress_says_how_sure_it_is() {
        let mut progress = TransferProgress {
            estimate: None,
            spent: Bytes::new(5_340_000),
            took: Duration::from_millis(840),
            connections: 4,
        };
        assert_eq!(
            line("dsl down", &progress),
            "dsl down: connected, 0.8 s, 5.3 MB, 4 connections"
        );
        progress.estimate = Some(ActiveEstimate {
            rate: Rate::from_bits_per_sec(48_310_000),
            error: 0.03,
            saturated: false,
        });
        assert_eq!(
            line("dsl down", &progress),
            "dsl down: 48.3 Mbit/s ±3 %, 0.8 s, 5.3 MB, 4 connections"
        );
    }

    #[test]
    fn in_a_bond_its_own_rates_are_told() {
        let bond = crate::bond::tests::report();
        let fix = |uplinks: &[&str], bond| no_url(uplinks, bond).fix.unwrap();
        let told = fix(&["dsl", "lte"], Some(&bond));
        assert!(
            told.starts_with("--method dispersion needs none; --url names a file"),
            "{told}"
        );
        assert!(
            told.contains("The bond sends dsl 48.2 Mbit/s at most"),
            "{told}"
        );
        for fix in [fix(&["lte"], Some(&bond)), fix(&["dsl"], None)] {
            assert!(!fix.contains("bond"), "{fix}");
        }
    }

    #[test]
    fn a_redirect_is_named() {
        let error = TransferError::Status {
            status: 302,
            location: Some("http://portal.example/".into()),
        };
        let failure = refused(&error, MeasuredDirection::Down);
        assert_eq!(
            failure.text,
            "the server answers with status 302, a redirect to http://portal.example/"
        );
        assert_eq!(
            failure.fix.unwrap(),
            "name that URL itself: --url http://portal.example/"
        );
    }
}
