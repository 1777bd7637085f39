//! `braid explain`: why a flow took its uplink, or which one a new flow would take.

use std::net::{IpAddr, SocketAddr};

use braid_daemon::report::{
    ExplainQuestion, ExplainReport, ExplainsReport, FlowLinkShare, Outcome, Stage,
};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;

use crate::cli::ExplainArgs;
use crate::destination::{Destination, Host};
use crate::table::{Side, Table};
use crate::terminal::{Tint, answer_either, tinted};
use crate::{CommandError, client, paths, runtime, show};

/// Runs `braid explain` for every address of the destination.
pub fn explain(run_dir: &RunDir, arguments: &ExplainArgs) -> Result<(), CommandError> {
    let report = runtime()?.block_on(async {
        let mut answers: Vec<ExplainReport> = Vec::new();
        for question in questions(arguments).await? {
            let path = format!("/v1/explain?{}", query(&question)?);
            answers.push(client::get(run_dir, &path).await?);
        }
        Ok::<_, CommandError>(ExplainsReport { answers })
    })?;
    answer_either(arguments.output.json, &report, |paint| text(&report, paint))?;
    Ok(())
}

async fn questions(arguments: &ExplainArgs) -> Result<Vec<ExplainQuestion>, UserError> {
    let Destination { host, port } = &arguments.destination;
    let (mut addresses, name) = match host {
        Host::Address(address) => (vec![*address], None),
        Host::Name(name) => (look_up(name).await?, Some(name)),
    };
    if let Some(source) = arguments.source {
        let fits = |address: &IpAddr| address.is_ipv4() == source.address.is_ipv4();
        addresses.retain(fits);
        if addresses.is_empty() {
            let text = "the source and the destination are of different IP versions";
            return Err(UserError::new("usage", text));
        }
    }
    let domain = arguments.domain.as_ref().or(name);
    let question = |destination| ExplainQuestion {
        destination,
        port: *port,
        protocol: arguments.protocol,
        source: arguments.source.map(|source| source.address),
        source_port: arguments.source.and_then(|source| source.port),
        domain: domain.cloned(),
        uid: arguments.uid,
        dscp: arguments.dscp,
    };
    Ok(addresses.into_iter().map(question).collect())
}

/// Resolves a name. Each address is returned once.
async fn look_up(name: &str) -> Result<Vec<IpAddr>, UserError> {
    let found = tokio::net::lookup_host((name, 0)).await;
    let found = found.map_err(|error| {
        let failure = UserError::new("name", format!("{name}: {error}"));
        failure.fix("name an address instead, and the name by --domain")
    })?;
    let mut addresses: Vec<IpAddr> = found.map(|address: SocketAddr| address.ip()).collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// Encodes the question as a URL query.
fn query(question: &ExplainQuestion) -> Result<String, UserError> {
    serde_urlencoded::to_string(question)
        .map_err(|error| UserError::new("usage", format!("cannot be asked: {error}")))
}

fn text(report: &ExplainsReport, paint: Paint) -> String {
    let answers = report.answers.iter().map(|answer| one(answer, paint));
    answers.collect::<Vec<_>>().join("\n")
}

fn one(report: &ExplainReport, paint: Paint) -> String {
    let mut text = format!("{}\n", tinted(&report.question, Tint::Bold, paint));
    text.push_str(&format!("new flow: {}\n", verdict(report, paint)));
    let mut steps = Table::new(&[("STAGE", Side::Left), ("WHAT", Side::Left)]);
    for step in &report.steps {
        steps.row(vec![stage(step.stage).into(), step.text.as_str().into()]);
    }
    text.push_str(&steps.render(paint));
    // The steps give the state of each.
    if report.candidates.len() > 1 {
        let mut table = Table::new(&[("UPLINK", Side::Left), ("SHARE %", Side::Right)]);
        for candidate in &report.candidates {
            table.row(vec![
                candidate.uplink.as_str().into(),
                show::share(candidate.share).into(),
            ]);
        }
        text.push_str(&table.render(paint));
    }
    if let Some(path) = &report.path_cache {
        text.push_str(&format!("# what is remembered of {}:\n", path.network));
        text.push_str(&paths::of_destination(&path.paths, paint));
    }
    match report.flows.len() {
        0 => text.push_str("# no such flow now\n"),
        1 => text.push_str("# one such flow now:\n"),
        n => text.push_str(&format!("# {n} such flows now:\n")),
    }
    if !report.flows.is_empty() {
        text.push_str(&show::flow_table(&report.flows, paint));
    }
    if !report.links.is_empty() {
        text.push_str("# their links in the bond, in the last seconds:\n");
        let mut table = Table::new(&[
            ("INNER", Side::Left),
            ("REMOTE", Side::Left),
            ("DOWN", Side::Left),
            ("UP", Side::Left),
            ("WHY", Side::Left),
        ]);
        for flow in &report.links {
            table.row(vec![
                flow.inner.as_str().into(),
                flow.remote.as_str().into(),
                links(&flow.rx).into(),
                links(&flow.tx).into(),
                flow.why.as_str().into(),
            ]);
        }
        text.push_str(&table.render(paint));
    }
    text
}

/// Lists links with their shares in per cent.
fn links(shares: &[FlowLinkShare]) -> String {
    let each = |link: &FlowLinkShare| format!("{:.0} % {}", link.share * 100.0, link.uplink);
    match shares.is_empty() {
        true => "-".to_owned(),
        false => shares.iter().map(each).collect::<Vec<_>>().join(", "),
    }
}

fn verdict(report: &ExplainReport, paint: Paint) -> String {
    let uplink = report.uplink.as_deref().unwrap_or_default();
    let (text, tint) = match report.outcome {
        Outcome::Uplink => (format!("takes {uplink}"), Tint::Good),
        Outcome::Shared => (
            "takes one of the uplinks below, by its turn".into(),
            Tint::Good,
        ),
        Outcome::Raced => (
            "goes out by the uplinks below, and takes the one whose answer comes first".into(),
            Tint::Good,
        ),
        Outcome::Untouched => (
            "is not touched: it leaves by the machine's routes".into(),
            Tint::None,
        ),
        Outcome::Blocked => ("is refused".into(), Tint::Warn),
        Outcome::Refused => ("is dropped: it may not be opened".into(), Tint::Bad),
        Outcome::NoUplink => ("is dropped: no uplink can take it".into(), Tint::Bad),
    };
    tinted(&text, tint, paint)
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Route => "route",
        Stage::Client => "client",
        Stage::Rule => "rule",
        Stage::Protocol => "protocol",
        Stage::Policy => "policy",
        Stage::Sticky => "sticky",
        Stage::Race => "race",
        Stage::Slot => "slot",
        Stage::Uplink => "uplink",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_daemon::report::{Candidate, DestinationReport, FlowLinksReport, PathReport, Step};

    #[test]
    fn a_question_survives_its_way() {
        let question = ExplainQuestion {
            destination: "2001:db8::1".parse().unwrap(),
            port: Some(443),
            protocol: 6,
            source: None,
            source_port: None,
            domain: Some("a b&c.example".into()),
            uid: None,
            dscp: None,
        };
        let query = query(&question).unwrap();
        assert_eq!(
            query,
            "destination=2001%3Adb8%3A%3A1&port=443&protocol=6&domain=a+b%26c.example"
        );
    }

    #[test]
    fn what_is_remembered_comes_as_a_table() {
        let way = PathReport {
            uplink: "dsl".into(),
            rtt_ms: Some(21.4),
            age_ms: 3000,
            data_packets: 0,
            lost_packets: 0,
            predicted_ms: None,
            valid: true,
        };
        let candidate = |uplink: &str| Candidate {
            uplink: uplink.into(),
            share: None,
            why: "up".into(),
        };
        let report = ExplainsReport {
            answers: vec![ExplainReport {
                question: "tcp from this machine to 198.51.100.1:443".into(),
                flows: vec![],
                links: vec![],
                outcome: Outcome::Raced,
                uplink: None,
                candidates: vec![candidate("dsl"), candidate("lte")],
                path_cache: Some(DestinationReport {
                    network: "198.51.100.0/24".into(),
                    paths: vec![way],
                }),
                reservations: vec![],
                steps: vec![Step {
                    stage: Stage::Race,
                    text: "raced on dsl, lte".into(),
                }],
            }],
        };
        let expected = "\
tcp from this machine to 198.51.100.1:443
new flow: goes out by the uplinks below, and takes the one whose answer comes first
STAGE  WHAT
race   raced on dsl, lte
UPLINK  SHARE %
dsl           –
lte           –
# what is remembered of 198.51.100.0/24:
UPLINK  RTT ms  AGE s  PACKETS  LOSS %  1 MB ms  VALID
dsl       21.4    3.0        0       –        –  yes
# no such flow now
";
        assert_eq!(text(&report, Paint::Plain), expected);
    }

    #[test]
    fn an_answer_says_what_and_why() {
        let step = |stage, text: &str| Step {
            stage,
            text: text.into(),
        };
        let share = |uplink: &str, share| FlowLinkShare {
            uplink: uplink.into(),
            share,
        };
        let report = ExplainsReport {
            answers: vec![ExplainReport {
                question: "tcp from this machine to 198.51.100.1:443".into(),
                flows: vec![],
                links: vec![FlowLinksReport {
                    inner: "192.0.0.8:40000".into(),
                    remote: "198.51.100.1:443".into(),
                    tx: vec![share("dsl", 1.0)],
                    rx: vec![share("lte", 0.609), share("dsl", 0.391)],
                    why: "each packet takes the link by which it arrives first".into(),
                }],
                outcome: Outcome::Shared,
                uplink: None,
                candidates: vec![
                    Candidate {
                        uplink: "dsl".into(),
                        share: Some(0.25),
                        why: "up, rtt 21 ms".into(),
                    },
                    Candidate {
                        uplink: "lte".into(),
                        share: Some(0.75),
                        why: "up, rtt 52 ms".into(),
                    },
                ],
                path_cache: None,
                reservations: vec![],
                steps: vec![
                    step(Stage::Route, "no route of this machine's own wins"),
                    step(Stage::Rule, "no rule matches"),
                    step(Stage::Policy, "wrr: the next slot"),
                    step(Stage::Uplink, "dsl: up, rtt 21 ms"),
                ],
            }],
        };
        let expected = "\
tcp from this machine to 198.51.100.1:443
new flow: takes one of the uplinks below, by its turn
STAGE   WHAT
route   no route of this machine's own wins
rule    no rule matches
policy  wrr: the next slot
uplink  dsl: up, rtt 21 ms
UPLINK  SHARE %
dsl        25.0
lte        75.0
# no such flow now
# their links in the bond, in the last seconds:
INNER            REMOTE            DOWN                UP         WHY
192.0.0.8:40000  198.51.100.1:443  61 % lte, 39 % dsl  100 % dsl  each packet takes the link by which it arrives first
";
        assert_eq!(text(&report, Paint::Plain), expected);
    }
}
