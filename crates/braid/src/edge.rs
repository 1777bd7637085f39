//! `braid edge`: the fabric's edge.

use braid_edge::cli::{EdgeCommand, StatusArgs};
use braid_edge::status::{EgressPathStatus, Segments, Status};
use braid_edge::{Error, cli};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;

use crate::table::{NO_VALUE, Side, Table};
use crate::terminal::answer_either;
use crate::{CommandError, CommandResult};

/// Runs an edge, or shows its status.
pub fn edge(run_dir: &RunDir, command: EdgeCommand) -> CommandResult {
    match command {
        EdgeCommand::Run(arguments) => Ok(cli::run(run_dir.path(), arguments).map_err(failure)?),
        EdgeCommand::Status(arguments) => status(run_dir, &arguments),
    }
}

fn failure(error: Error) -> UserError {
    let code = match &error {
        Error::Endpoint(_)
        | Error::KeyForSocket
        | Error::NoKey
        | Error::SameController(_)
        | Error::SameDevice(_)
        | Error::SeveralOutside(_) => "usage",
        Error::NoEdge { .. } => "not-up",
        _ => "edge",
    };
    UserError::new(code, error.to_string())
}

fn status(run_dir: &RunDir, arguments: &StatusArgs) -> CommandResult {
    let status = match cli::status(run_dir.path(), &arguments.name) {
        Ok(status) => status,
        Err(error @ Error::NoEdge { .. }) => return Err(CommandError::Unreachable(failure(error))),
        Err(error) => return Err(CommandError::UserError(failure(error))),
    };
    answer_either(arguments.json, &status, |paint| text(&status, paint))?;
    match status.health.is_empty() {
        true => Ok(()),
        false => Err(CommandError::Degraded),
    }
}

fn text(status: &Status, paint: Paint) -> String {
    let plan = status
        .generation
        .map_or_else(|| "no table yet".to_owned(), |n| format!("plan {n}"));
    let mut text = format!(
        "edge {}: {} inside, {} outside, {plan} of {}\n",
        status.name, status.inside, status.outside, status.controller
    );
    let mut paths = Table::new(&[
        ("EDGE", Side::Left),
        ("WAY", Side::Left),
        ("PATH", Side::Right),
        ("SHARE %", Side::Right),
        ("LATENCY ms", Side::Right),
        ("PACKETS", Side::Right),
        ("MB", Side::Right),
    ]);
    for egress in &status.egress {
        for path in &egress.paths {
            paths.row(vec![
                egress.target.as_str().into(),
                "to".into(),
                named(path.tag, path.addresses.as_deref()).into(),
                match path.silent {
                    true => "silent".into(),
                    false => format!("{:.1}", 100.0 * path.share).into(),
                },
                NO_VALUE.into(),
                path.tx_packets.to_string().into(),
                megabytes(path.tx_bytes).into(),
            ]);
        }
    }
    for ingress in &status.ingress {
        for path in &ingress.paths {
            let latency = path.latency_ms.map(|ms| format!("{ms:.1}"));
            paths.row(vec![
                ingress.source.as_str().into(),
                "from".into(),
                named(path.tag, path.addresses.as_deref()).into(),
                NO_VALUE.into(),
                latency.unwrap_or_else(|| NO_VALUE.to_owned()).into(),
                path.rx_packets.to_string().into(),
                megabytes(path.rx_bytes).into(),
            ]);
        }
    }
    text.push_str(&paths.render(paint));
    for egress in &status.egress {
        let paths = egress.paths.iter();
        for path in paths.filter(|path| path.copied || path.repeated_packets > 0) {
            text.push_str(&repair(&egress.target, path));
        }
        for path in egress.paths.iter().filter(|path| path.avoided) {
            text.push_str(&format!(
                "to {} by {}: it loses packets, so flows that keep to one path take others\n",
                egress.target, path.tag
            ));
        }
    }
    for ingress in status.ingress.iter().filter(|ingress| ingress.in_order) {
        text.push_str(&order(&ingress.source, &ingress.segments));
    }
    for problem in &status.health {
        text.push_str(&format!("# health: {}: {}\n", problem.code, problem.text));
    }
    text
}

/// Returns a path's name: its tag, or the addresses of a layer-3 path.
fn named(tag: u16, ends: Option<&str>) -> String {
    ends.map_or_else(|| tag.to_string(), str::to_owned)
}

fn order(source: &str, segments: &Segments) -> String {
    let Segments {
        in_order,
        held,
        held_mean_ms,
        held_max_ms,
        retransmitted,
        late,
        known_lost,
        expired,
        forced,
        waiting,
        asked,
        repaired,
        ..
    } = segments;
    let repair = match asked {
        0 => String::new(),
        _ => format!("; copies asked for {asked} times, {repaired} came"),
    };
    format!(
        "order of {source}: {in_order} at once, {held} waited {held_mean_ms:.1} ms on average and \
         {held_max_ms:.1} ms at most, {waiting} wait, {retransmitted} sent again, {late} late; gaps given \
         up: {known_lost} known lost, {expired} at their deadline, {forced} for room{repair}\n"
    )
}

fn repair(target: &str, path: &EgressPathStatus) -> String {
    let EgressPathStatus {
        tag,
        copied,
        repeated_packets,
        ..
    } = path;
    let kept = match copied {
        true => "it loses some packets, and copies are kept",
        false => "no copies are kept now",
    };
    format!("repair to {target} by {tag}: {kept}, {repeated_packets} sent again by another path\n")
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use braid_edge::status::{EgressStatus, IngressStatus, Problem, VERSION};

    use super::*;

    #[test]
    fn paths_are_a_line_each_with_what_became_of_order() {
        let status = Status {
            version: VERSION,
            name: "ha".into(),
            inside: "in0".into(),
            outside: "out0".into(),
            controller: "unix:/run/fabric.sock".into(),
            generation: Some(3),
            reordering: "adaptive".into(),
            egress: vec![EgressStatus {
                target: "hb".into(),
                hosts: 1,
                paths: vec![EgressPathStatus {
                    tag: 5,
                    addresses: None,
                    share: 0.5,
                    tx_packets: 10,
                    tx_bytes: 1_500_000,
                    resent_packets: 0,
                    copied: true,
                    avoided: true,
                    repeated_packets: 4,
                    silent: false,
                }],
            }],
            ingress: vec![IngressStatus {
                source: "hb".into(),
                in_order: true,
                paths: vec![],
                segments: Segments {
                    in_order: 7,
                    held: 2,
                    held_mean_ms: 1.5,
                    asked: 6,
                    repaired: 5,
                    ..Segments::default()
                },
            }],
            reasons: [].into(),
            health: vec![Problem {
                code: "controller-silent".into(),
                text: "does not answer".into(),
            }],
        };
        let expected = "\
edge ha: in0 inside, out0 outside, plan 3 of unix:/run/fabric.sock
EDGE  WAY  PATH  SHARE %  LATENCY ms  PACKETS   MB
hb    to      5     50.0           –       10  1.5
repair to hb by 5: it loses some packets, and copies are kept, 4 sent again by another path
to hb by 5: it loses packets, so flows that keep to one path take others
order of hb: 7 at once, 2 waited 1.5 ms on average and 0.0 ms at most, 0 wait, 0 sent again, 0 late; \
gaps given up: 0 known lost, 0 at their deadline, 0 for room; copies asked for 6 times, 5 came
# health: controller-silent: does not answer
";
        assert_eq!(text(&status, Paint::Plain), expected);
    }
}
