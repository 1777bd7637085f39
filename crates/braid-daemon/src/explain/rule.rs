//! Finds the rule that matches a flow.

use std::net::IpAddr;

use braid_balance::{ClassId, FlowFacts, RuleEntry};

use super::{Snapshot, Trace, client};
use crate::config::{Action, RuleConfig};
use crate::report::{ExplainQuestion, Stage};
use crate::rules::{self, SystemIds};

/// Returns the facts that rules match on.
pub(super) fn facts(question: &ExplainQuestion, snapshot: &Snapshot<'_>) -> FlowFacts {
    let domain = question
        .domain
        .as_deref()
        .map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    let known = snapshot.names.get(snapshot.now, question.destination);
    FlowFacts {
        source: client(question),
        dest: question.destination,
        protocol: question.protocol,
        ports: (
            question.source_port.unwrap_or(0),
            question.port.unwrap_or(0),
        ),
        dscp: question.dscp.unwrap_or(0),
        mac: None,
        uid: question.uid,
        cgroups: Vec::new(),
        names: match &domain {
            Some(name) => snapshot.names.marks_of(name),
            None => known.map_or(0, |known| known.facts.rules),
        },
    }
}

/// Returns the class that the rules put a flow into; `None` if a rule exempts it from Braid.
pub(super) fn match_rules(
    facts: &FlowFacts,
    question: &ExplainQuestion,
    snapshot: &Snapshot<'_>,
    trace: &mut Trace<'_, '_>,
) -> Option<ClassId> {
    for rule in snapshot.settings.paused_rules() {
        if would_match(rule, facts, question, snapshot) {
            let text = format!("rule {} is paused, so it decides nothing", rule.name);
            trace.note(Stage::Rule, text);
        }
    }
    if let Some(rule) = untouched(facts, snapshot) {
        let text = format!(
            "rule {}: use = \"none\", by the kernel's routing",
            rule.name
        );
        trace.note(Stage::Rule, text);
        return None;
    }
    let mut unsure = Vec::new();
    for (number, entry) in snapshot.rules.entries().iter().enumerate() {
        let name = snapshot.rules.name_of(number).unwrap_or_default();
        if entry.matches(facts) {
            note_unsure(&unsure, trace);
            let rule = snapshot.settings.rules().find(|rule| rule.name == name);
            let action = rule.map_or_else(String::new, |rule| rule.action.to_string());
            let text = format!(
                "rule {name}: use = \"{action}\"{}",
                by_name(entry, question, snapshot)
            );
            trace.note(Stage::Rule, text);
            return Some(entry.class);
        }
        if let Some(lacking) = lacking(entry, facts, question)
            && !unsure.iter().any(|(other, _)| other == name)
        {
            unsure.push((name.to_owned(), lacking));
        }
    }
    note_unsure(&unsure, trace);
    let text = match snapshot.settings.rules().next() {
        None if snapshot.settings.paused_rules().next().is_some() => "every rule is paused",
        None => "there are no rules",
        Some(_) => "no rule matches",
    };
    trace.note(Stage::Rule, text.to_owned());
    Some(ClassId(0))
}

/// Returns the rule with `use = "none"` that the kernel applies, unless an earlier rule that the kernel
/// also knows matches first.
fn untouched<'s>(facts: &FlowFacts, snapshot: &Snapshot<'s>) -> Option<&'s RuleConfig> {
    let first = snapshot.settings.rules().find(|rule| {
        rule.kernel_can_match() && {
            let system = snapshot.rules.system();
            matches(rule, facts, system)
        }
    });
    first.filter(|rule| rule.action == Action::None)
}

fn matches(rule: &RuleConfig, facts: &FlowFacts, system: &SystemIds) -> bool {
    rules::resolved(rule, system)
        .iter()
        .any(|entry| entry.matches(facts))
}

/// Returns true if a rule that is switched off would match.
fn would_match(
    rule: &RuleConfig,
    facts: &FlowFacts,
    question: &ExplainQuestion,
    snapshot: &Snapshot<'_>,
) -> bool {
    let asked = question.domain.as_deref();
    let known = snapshot.names.get(snapshot.now, question.destination);
    let name = asked.or(known.map(|known| known.name.as_str()));
    let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    let is_named = |name: String| rule.domain.iter().any(|pattern| pattern.matches(&name));
    // Its entries have no mark for its names.
    matches(rule, facts, snapshot.rules.system())
        && (rule.domain.is_empty() || name.is_some_and(is_named))
}

/// Describes the source of the name, if the rule matches on one.
fn by_name(entry: &RuleEntry, question: &ExplainQuestion, snapshot: &Snapshot<'_>) -> String {
    if entry.name.is_none() {
        return String::new();
    }
    match (
        &question.domain,
        snapshot.names.get(snapshot.now, question.destination),
    ) {
        (Some(name), _) => format!(", for {name}"),
        (None, Some(known)) => format!(
            ", since {} was asked for as {}",
            question.destination, known.name
        ),
        (None, None) => String::new(),
    }
}

/// Returns the field that the question omits and with which the rule would match.
fn lacking(
    entry: &RuleEntry,
    facts: &FlowFacts,
    question: &ExplainQuestion,
) -> Option<&'static str> {
    let mut asks = entry.clone();
    let mut lacking = None;
    let mut open = |what: &'static str, clear: bool| {
        if clear {
            lacking.get_or_insert(what);
        }
        clear
    };
    if open("the client's link-layer address", asks.mac.is_some()) {
        asks.mac = None;
    }
    if open("the control group", asks.cgroup.is_some()) {
        asks.cgroup = None;
    }
    if open(
        "the user",
        asks.uid.is_some() && question.uid.is_none() && question.source.is_none(),
    ) {
        asks.uid = None;
    }
    if open(
        "the code point",
        asks.dscp.is_some() && question.dscp.is_none(),
    ) {
        asks.dscp = None;
    }
    if open(
        "the client",
        asks.source.is_some() && question.source.is_none(),
    ) {
        asks.source = None;
    }
    if open(
        "the client's port",
        asks.source_ports.is_some() && question.source_port.is_none(),
    ) {
        asks.source_ports = None;
    }
    if open(
        "the port",
        asks.dest_ports.is_some() && question.port.is_none(),
    ) {
        asks.dest_ports = None;
    }
    if open(
        "the name",
        asks.name.is_some() && question.domain.is_none() && facts.names == 0,
    ) {
        asks.name = None;
    }
    // A source prefix also implies the family.
    let same_family = entry
        .source
        .is_none_or(|(prefix, _)| same_family(prefix, facts.dest));
    lacking.filter(|_| same_family && asks.matches(facts))
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

fn note_unsure(unsure: &[(String, &'static str)], trace: &mut Trace<'_, '_>) {
    for (name, lacking) in unsure {
        let text =
            format!("rule {name} could match: it asks for {lacking}, which is not known here");
        trace.note(Stage::Rule, text);
    }
}
