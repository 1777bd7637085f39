//! Compiles the configuration's rules for the datapath.
//!
//! Pure, except [`SystemIds::look_up`]. A rule with lists becomes several datapath rules, one for
//! each combination. Rules with `use = "none"` become none: the kernel's routing applies them before
//! the datapath sees a packet (see [`crate::plumbing`]).

pub mod cgroup;
mod table_capacity;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use braid_balance::{NameBit, RuleEntry};
use nix::unistd::User;

use crate::classes::Classes;
use crate::config::{Action, CgroupPath, RuleConfig, Settings};

pub use table_capacity::check_table_capacity;

/// Kernel ids of the users and control groups that rules name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemIds {
    /// User ids by name.
    pub users: BTreeMap<String, u32>,
    /// Control groups' kernel ids by path.
    pub cgroups: BTreeMap<CgroupPath, u64>,
}

impl SystemIds {
    /// Looks them up on this machine.
    #[must_use]
    pub fn look_up(settings: &Settings) -> SystemIds {
        let users = settings.rules().filter_map(|rule| rule.user.as_ref());
        let users = users.filter_map(|name| {
            let user = User::from_name(name).ok()??;
            Some((name.clone(), user.uid.as_raw()))
        });
        SystemIds {
            users: users.collect(),
            cgroups: look_up_cgroups(settings),
        }
    }

    /// Returns true if a control group that the rules name has come, has gone, or was made anew since.
    #[must_use]
    pub fn have_other_cgroups(&self, settings: &Settings) -> bool {
        look_up_cgroups(settings) != self.cgroups
    }

    /// Returns the reason why a rule cannot match anything, if there is one.
    #[must_use]
    pub fn lacks(&self, rule: &RuleConfig) -> Option<String> {
        if let Some(user) = rule
            .user
            .as_ref()
            .filter(|user| !self.users.contains_key(*user))
        {
            return Some(format!("there is no user {user:?}"));
        }
        let group = rule.cgroup.as_ref()?;
        let missing = !self.cgroups.contains_key(group);
        missing.then(|| format!("there is no control group {group}"))
    }
}

fn look_up_cgroups(settings: &Settings) -> BTreeMap<CgroupPath, u64> {
    let paths = settings.rules().filter_map(|rule| rule.cgroup.as_ref());
    let mut paths = paths.peekable();
    if paths.peek().is_none() {
        return BTreeMap::new();
    }
    let mount = cgroup::mount();
    let found = paths.filter_map(|path| {
        let group = mount.as_ref()?.join(path.relative());
        Some((path.clone(), cgroup::id(&group).ok()?))
    });
    found.collect()
}

/// The datapath's rules, each with the configured rule that it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledRules {
    entries: Vec<RuleEntry>,
    names: Vec<String>,
    system: SystemIds,
    /// Rules that currently match nothing, with the reason.
    pub idle: Vec<(String, String)>,
}

impl CompiledRules {
    /// Compiles the rules. [`Classes::update`] must have seen the settings.
    #[must_use]
    pub fn compile(settings: &Settings, classes: &Classes, system: &SystemIds) -> CompiledRules {
        let mut book = CompiledRules {
            system: system.clone(),
            ..CompiledRules::default()
        };
        let mut bits = name_bits(settings);
        for rule in settings.rules() {
            let bit = match rule.domain.is_empty() {
                true => None,
                false => bits.next().map(|(bit, _)| bit),
            };
            let Some(class) = classes.class_of(settings, rule) else {
                continue;
            };
            if let Some(why) = system.lacks(rule) {
                book.idle.push((rule.name.clone(), why));
                continue;
            }
            for mut entry in resolved(rule, system) {
                entry.class = class;
                entry.name = bit;
                book.entries.push(entry);
                book.names.push(rule.name.clone());
            }
        }
        book
    }

    /// Returns the rules for [`braid_balance::Datapath::set_rules`].
    #[must_use]
    pub fn entries(&self) -> &[RuleEntry] {
        &self.entries
    }

    /// Returns the ids with which the rules were compiled.
    #[must_use]
    pub fn system(&self) -> &SystemIds {
        &self.system
    }

    /// Returns the name of the rule that an entry comes from: a flow's
    /// [`rule`](braid_balance::Flow::rule).
    #[must_use]
    pub fn name_of(&self, entry: usize) -> Option<&str> {
        self.names.get(entry).map(String::as_str)
    }
}

/// Expands a rule's lists into all combinations, with the machine's ids, without its class and its
/// mark. Empty if the machine does not know a user or group that the rule names.
#[must_use]
pub fn resolved(rule: &RuleConfig, system: &SystemIds) -> Vec<RuleEntry> {
    if system.lacks(rule).is_some() {
        return Vec::new();
    }
    let cgroup = rule
        .cgroup
        .as_ref()
        .and_then(|path| system.cgroups.get(path).copied());
    let user = rule.user.as_ref().and_then(|user| system.users.get(user));
    let mut entries = rule.entries();
    for entry in &mut entries {
        entry.cgroup = cgroup;
        if let Some(uid) = user {
            entry.uid = Some(*uid..=*uid);
        }
    }
    entries
}

/// Returns the rules that name an uplink which is not among `known`; discovered uplinks may appear
/// later.
pub fn without_uplink<'s>(
    settings: &'s Settings,
    known: &[&str],
) -> impl Iterator<Item = (&'s RuleConfig, &'s str)> {
    settings.rules().filter_map(move |rule| match &rule.action {
        Action::Uplink(name) if !known.contains(&name.as_str()) => Some((rule, name.as_str())),
        _ => None,
    })
}

/// Returns the rules that match on a domain, with the mark of each.
pub fn name_bits(settings: &Settings) -> impl Iterator<Item = (NameBit, &RuleConfig)> {
    let by_domain = settings.rules().filter(|rule| !rule.domain.is_empty());
    (0..).map_while(NameBit::new).zip(by_domain)
}
