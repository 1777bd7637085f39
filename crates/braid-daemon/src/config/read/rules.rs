//! `[[rule]]`.

mod class;

use std::collections::BTreeSet;
use std::ops::Range;

use braid_balance::{MAX_CLASSES, MAX_RULES};
use braid_host::config::{Located, Problem, Table, nearest, tables};

use super::super::bond::BondClass;
use super::super::conflict::{Conflict, conflicts};
use super::super::header::{Dscp, IpProtocol};
use super::super::matcher::{IpVersion, UidRange};
use super::super::policy::Policy;
use super::super::rule::{Action, CgroupPath, OnDown, RuleConfig};
use super::super::sticky::Sticky;
use super::uplinks::UplinkDraft;
use super::{RULE, SECTIONS, STICKY_FIX, own_name};

/// Maximum number of rules by domain: the datapath has a bit for each.
const MAX_DOMAIN_RULES: usize = 64;
/// Maximum length of a login name (useradd(8)).
const MAX_USER: usize = 32;

pub(super) fn rules(
    table: &mut Table<'_, '_>,
    uplinks: &[UplinkDraft],
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) -> Vec<RuleConfig> {
    let before = problems.len();
    let mut rules = Vec::new();
    let mut names: Vec<Located<String>> = Vec::new();
    let tables = tables(table, "rule", problems);
    for (number, (inner, at)) in (1..).zip(tables) {
        let mut read = Reader {
            table: Table::new(RULE.0, RULE.1, inner),
            at,
            problems,
        };
        let unnamed = (format!("rule-{number}"), read.at.clone());
        let name = own_name(&mut read.table, "rule", unnamed, &names, read.problems);
        let rule = read.rule(&name.value, uplinks);
        names.push(name);
        rules.extend(rule);
    }
    // Rules can be compared only if all of them could be read.
    if problems.len() == before {
        limits(&rules, &names, problems);
        warnings.extend(
            conflicts(&rules)
                .iter()
                .map(|(place, conflict)| odd(&rules, &names, *place, conflict)),
        );
    }
    rules
}

/// Checks the datapath's table limits.
fn limits(rules: &[RuleConfig], names: &[Located<String>], problems: &mut Vec<Problem>) {
    let one_too_many = |place: usize, what: String, fix: &str| {
        Problem::new(what, names[place].at.clone(), "one too many").fix(fix)
    };
    let by_domain = (0..rules.len()).filter(|place| !rules[*place].domain.is_empty());
    if let Some(place) = by_domain.clone().nth(MAX_DOMAIN_RULES) {
        let what = format!("more than {MAX_DOMAIN_RULES} rules with `domain`");
        let fix = "put domains with the same `use` into one rule's list";
        problems.push(one_too_many(place, what, fix));
    }
    let mut room = MAX_RULES;
    let mut kinds = BTreeSet::new();
    for (place, rule) in rules.iter().enumerate() {
        if rule.action == Action::None {
            continue;
        }
        let takes = rule.entries().len();
        if takes > room {
            let what = format!(
                "the rules come to more than {MAX_RULES} combinations: {:?} alone to {takes}",
                rule.name
            );
            let fix = "a rule with lists is one for each combination of their entries: \
                       write wider prefixes or ranges";
            problems.push(one_too_many(place, what, fix));
            return;
        }
        room -= takes;
        kinds.insert((&rule.action, rule.on_down, rule.sticky));
        if kinds.len() == MAX_CLASSES {
            let what = format!("more than {} kinds of treatment", MAX_CLASSES - 1);
            let fix = "`use`, `on_down` and `sticky` together make the kind: use fewer";
            problems.push(one_too_many(place, what, fix));
            return;
        }
    }
}

/// Returns the warning about a conflict between rules.
fn odd(
    rules: &[RuleConfig],
    names: &[Located<String>],
    place: usize,
    conflict: &Conflict,
) -> Problem {
    let (name, at) = (&rules[place].name, names[place].at.clone());
    let other = |first: &usize| (&rules[*first].name, names[*first].at.clone());
    let problem = match conflict {
        Conflict::Nothing => Problem::new(
            format!("rule {name:?} matches nothing"),
            at,
            "asks for what no flow is at once",
        )
        .fix("addresses must be of one IP version; link-layer addresses are of a LAN's clients, users and control groups of this machine's own programs"),
        Conflict::Hidden(first) => {
            let (first, first_at) = other(first);
            Problem::new(format!("rule {name:?} never matches"), at, "is asked after")
                .also(first_at, "takes all of it")
                .fix(format!("put it before {first:?}, or remove one of the two"))
        }
        Conflict::Overlap(first) => {
            let (first, first_at) = other(first);
            Problem::new(
                format!("rules {first:?} and {name:?} match some flows alike"),
                at,
                "is asked after",
            )
            .also(first_at, "decides what both match")
            .fix("put first what should win; nothing to do if that is so")
        }
        Conflict::TooEarly(first) => {
            let (first, first_at) = other(first);
            Problem::new(
                format!("rule {name:?} is carried out before {first:?}"),
                at,
                "by the kernel's routing",
            )
            .also(first_at, "asks for what routing does not know")
            .fix("match them apart by source, destination, protocol, ports, uid, user or family")
        }
    };
    problem.warning()
}

/// A rule while it is being read.
struct Reader<'p, 't, 'i> {
    table: Table<'t, 'i>,
    at: Range<usize>,
    problems: &'p mut Vec<Problem>,
}

impl Reader<'_, '_, '_> {
    fn note(&mut self, what: impl Into<String>, at: Range<usize>, label: &str, fix: &str) {
        self.problems.push(Problem::new(what, at, label).fix(fix));
    }

    fn rule(mut self, name: &str, uplinks: &[UplinkDraft]) -> Option<RuleConfig> {
        let prefix = "write a network like \"192.0.2.0/24\" or \"2001:db8::/32\", or an address";
        let ports = "write a port like \"443\" or a range like \"8000-8100\"";
        let (table, problems) = (&mut self.table, &mut *self.problems);
        let source = table.list("source", prefix, problems);
        let destination = table.list("destination", prefix, problems);
        let protocol: Option<Located<IpProtocol>> = table.one(
            "protocol",
            "write tcp, udp, icmp, gre, esp, sctp, ipip, or a number from 0 to 255",
            problems,
        );
        let source_port = table.list("source_port", ports, problems);
        let port = table.list("port", ports, problems);
        let dscp: Option<Located<Dscp>> = table.one(
            "dscp",
            "write a number from 0 to 63, or a name like \"ef\", \"af41\" or \"cs1\"",
            problems,
        );
        let mac = table.list(
            "mac",
            "write an address like \"02:00:5e:10:00:01\"",
            problems,
        );
        let domain = table.list(
            "domain",
            "write a name like \"bank.example\", or \"*.bank.example\" for all names below it",
            problems,
        );
        let uid = table.list(
            "uid",
            "write a user id like \"1000\" or a range like \"1000-1999\"",
            problems,
        );
        let user = table.text("user", problems);
        let cgroup: Option<Located<CgroupPath>> = table.parsed(
            "cgroup",
            "write its path below the cgroup2 mount, like \"/system.slice/backup.service\"",
            problems,
        );
        let family = table.keyword::<IpVersion>("family", &IpVersion::NAMES, problems);
        let had_use = table.has("use");
        let action = self.action(uplinks);
        let on_down = self
            .table
            .keyword::<OnDown>("on_down", OnDown::NAMES, self.problems);
        let sticky: Option<Located<Sticky>> =
            self.table.parsed("sticky", STICKY_FIX, self.problems);
        let class = self
            .table
            .keyword::<BondClass>("class", BondClass::NAMES, self.problems);

        self.check_ports(protocol.as_ref(), source_port.first().or(port.first()));
        if let (Some(user), Some(uid)) = (&user, uid.first()) {
            let uid: &Located<UidRange> = uid;
            let what = "a rule has either `user` or `uid`";
            let fix = "name all of them by number";
            self.problems.push(
                Problem::new(what, user.at.clone(), "the name")
                    .also(uid.at.clone(), "the number")
                    .fix(fix),
            );
        }
        if let Some(user) = &user
            && !is_user(&user.value)
        {
            let what = format!("no user is called {:?}", user.value);
            self.note(
                what,
                user.at.clone(),
                "this name",
                "write a login name, or `uid`",
            );
        }
        if let Some(action) = &action {
            self.check_kernel_rule(
                action,
                [
                    ("dscp", dscp.as_ref().map(|dscp| &dscp.at)),
                    ("mac", mac.first().map(|mac: &Located<_>| &mac.at)),
                    (
                        "domain",
                        domain.first().map(|domain: &Located<_>| &domain.at),
                    ),
                    ("cgroup", cgroup.as_ref().map(|cgroup| &cgroup.at)),
                ],
            );
            self.check_extras(action, on_down.as_ref(), sticky.as_ref());
            self.check_class(
                action,
                class.as_ref(),
                [
                    ("source", source.first().map(|at: &Located<_>| &at.at)),
                    (
                        "source_port",
                        source_port.first().map(|at: &Located<_>| &at.at),
                    ),
                    ("mac", mac.first().map(|at| &at.at)),
                    ("domain", domain.first().map(|at| &at.at)),
                    ("uid", uid.first().map(|at| &at.at)),
                    ("user", user.as_ref().map(|at| &at.at)),
                    ("cgroup", cgroup.as_ref().map(|at| &at.at)),
                ],
            );
        } else if !had_use {
            let what = "a rule without `use`";
            let fix = "add a line like use = \"wrr\": a policy, an uplink, \"bond\", \"balance\", \"none\" or \"block\"";
            self.note(what, self.at.clone(), "this one", fix);
        }
        self.table.finish(SECTIONS, self.problems);
        Some(RuleConfig {
            name: name.to_owned(),
            source: values(source),
            destination: values(destination),
            protocol: protocol.map(|protocol| protocol.value),
            source_port: values(source_port),
            port: values(port),
            dscp: dscp.map(|dscp| dscp.value),
            mac: values(mac),
            domain: values(domain),
            uid: values(uid),
            user: user.map(|user| user.value),
            cgroup: cgroup.map(|cgroup| cgroup.value),
            family: family.map(|family| family.value),
            action: action?.value,
            on_down: on_down.map(|word| word.value).unwrap_or_default(),
            sticky: sticky.map(|sticky| sticky.value),
            class: class.map(|class| class.value),
        })
    }

    /// Takes `use`. If the file lists the uplinks, a named uplink must be one of them.
    fn action(&mut self, uplinks: &[UplinkDraft]) -> Option<Located<Action>> {
        let fix =
            "write a policy, the name of an uplink, \"bond\", \"balance\", \"none\" or \"block\"";
        let action: Located<Action> = self.table.parsed("use", fix, self.problems)?;
        let Action::Uplink(name) = &action.value else {
            return Some(action);
        };
        let known: Vec<&str> = uplinks
            .iter()
            .map(|draft| draft.name.value.as_str())
            .collect();
        if uplinks.is_empty() || known.contains(&name.as_str()) {
            return Some(action);
        }
        let words: Vec<&str> = known.iter().copied().chain(Action::RESERVED).collect();
        let all = format!(
            "there are the uplinks {}, the policies {}, bond, balance, none and block",
            known.join(", "),
            Policy::NAMES.join(", ")
        );
        let fix = match nearest(name, &words) {
            Some(near) => format!("did you mean \"{near}\"? ({all})"),
            None => all,
        };
        let what = format!("there is no uplink {name:?}");
        self.note(
            what,
            action.at.clone(),
            "neither an uplink nor a policy",
            &fix,
        );
        None
    }

    fn check_ports<T>(
        &mut self,
        protocol: Option<&Located<IpProtocol>>,
        port: Option<&Located<T>>,
    ) {
        if let (Some(protocol), Some(port)) = (protocol, port)
            && !protocol.value.has_ports()
        {
            let what = format!("{} has no ports", protocol.value);
            self.problems.push(
                Problem::new(what, port.at.clone(), "a port here")
                    .also(protocol.at.clone(), "the protocol")
                    .fix("write protocol = \"tcp\" or \"udp\", or leave the port out"),
            );
        }
    }

    /// Checks a rule with `none`: the kernel's routing rules apply it, and they have fewer matchers than
    /// the datapath.
    fn check_kernel_rule(
        &mut self,
        action: &Located<Action>,
        unknown: [(&str, Option<&Range<usize>>); 4],
    ) {
        if action.value != Action::None {
            return;
        }
        for (key, at) in unknown {
            let Some(at) = at else { continue };
            let what = format!("`{key}` cannot be used with use = \"none\"");
            self.problems.push(
                Problem::new(what, at.clone(), "routing rules do not know this")
                    .also(action.at.clone(), "becomes a routing rule")
                    .fix("match by source, destination, protocol, ports, uid, user or family"),
            );
        }
    }

    fn check_extras(
        &mut self,
        action: &Located<Action>,
        on_down: Option<&Located<OnDown>>,
        sticky: Option<&Located<Sticky>>,
    ) {
        let names_uplink = matches!(action.value, Action::Uplink(_) | Action::Bond);
        // The default has no effect anywhere, and the effective configuration includes it.
        let block = on_down.filter(|word| word.value == OnDown::Block);
        if let (Some(on_down), false) = (block, names_uplink) {
            let what = "`on_down` is for rules that name an uplink or the bond";
            self.note(
                what,
                on_down.at.clone(),
                "means nothing here",
                "remove the line",
            );
        }
        let shares_out = matches!(action.value, Action::Policy(_) | Action::Balance);
        if let (Some(sticky), false) = (sticky, shares_out) {
            let what = "`sticky` is for rules that name a policy";
            self.note(
                what,
                sticky.at.clone(),
                "means nothing here",
                "remove the line",
            );
        }
    }
}

fn is_user(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, ':' | '/' | ',');
    (1..=MAX_USER).contains(&name.len()) && name.chars().all(fits)
}

fn values<T>(list: Vec<Located<T>>) -> Vec<T> {
    list.into_iter().map(|item| item.value).collect()
}
