//! Kinds of traffic class.

use crate::config::{Action, BondFlows, Fallback, OnDown, Policy, RuleConfig, Settings, Sticky};

/// Treatment of the flows of a class. Rules that ask for the same one share a class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClassKind {
    /// They are shared out over the uplinks.
    Share {
        /// The policy.
        policy: Policy,
        /// The scope in which a client's flows stay on one uplink.
        sticky: Sticky,
    },
    /// They take one uplink.
    Only {
        /// Its name.
        uplink: String,
        /// Treatment while it cannot take them.
        on_down: OnDown,
    },
    /// They go through the bond.
    Bond {
        /// Treatment while the bond carries nothing.
        fallback: Fallback,
    },
    /// They are blocked.
    Block,
}

impl ClassKind {
    /// Returns the treatment of flows without a rule.
    #[must_use]
    pub fn common(settings: &Settings) -> ClassKind {
        match settings.bonded && settings.config.bond.flows == BondFlows::All {
            true => ClassKind::Bond {
                fallback: settings.config.bond.fallback,
            },
            false => ClassKind::balance(settings),
        }
    }

    /// Returns their treatment where there is no bond.
    fn balance(settings: &Settings) -> ClassKind {
        ClassKind::Share {
            policy: settings.config.policy,
            sticky: settings.config.sticky,
        }
    }

    /// Returns the treatment that a rule asks for; `None` if the datapath is not involved (`use = "none"`).
    #[must_use]
    pub fn of(settings: &Settings, rule: &RuleConfig) -> Option<ClassKind> {
        Some(match &rule.action {
            Action::Policy(policy) => ClassKind::Share {
                policy: *policy,
                sticky: rule.sticky.unwrap_or(settings.config.sticky),
            },
            Action::Uplink(uplink) => ClassKind::Only {
                uplink: uplink.clone(),
                on_down: rule.on_down,
            },
            Action::Bond => ClassKind::Bond {
                fallback: match rule.on_down {
                    OnDown::Block => Fallback::Block,
                    OnDown::Fallback => settings.config.bond.fallback,
                },
            },
            Action::Balance => match (ClassKind::balance(settings), rule.sticky) {
                (ClassKind::Share { policy, .. }, Some(sticky)) => {
                    ClassKind::Share { policy, sticky }
                }
                (balance, _) => balance,
            },
            Action::Block => ClassKind::Block,
            Action::None => return None,
        })
    }
}
