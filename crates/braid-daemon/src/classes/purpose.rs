//! What a class is for.

use crate::config::{Action, BondFlows, Fallback, OnDown, Policy, RuleConfig, Sticky};
use crate::settings::Settings;

/// What happens to the flows of a class. Rules that ask for the same share a class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// They are shared out over the uplinks.
    Share {
        /// How.
        policy: Policy,
        /// Whether a client's flows to a site stay together.
        sticky: Sticky,
    },
    /// They take one uplink.
    Only {
        /// Its name.
        uplink: String,
        /// What is done while it cannot take them.
        on_down: OnDown,
    },
    /// They go through the bond.
    Bond {
        /// What is done while that carries nothing.
        fallback: Fallback,
    },
    /// They go nowhere.
    Block,
}

impl Purpose {
    /// What happens to flows without a rule.
    #[must_use]
    pub fn common(settings: &Settings) -> Purpose {
        match settings.bonded && settings.config.bond.flows == BondFlows::All {
            true => Purpose::Bond {
                fallback: settings.config.bond.fallback,
            },
            false => Purpose::balance(settings),
        }
    }

    /// What happens to them where there is no bond.
    fn balance(settings: &Settings) -> Purpose {
        Purpose::Share {
            policy: settings.config.policy,
            sticky: settings.config.sticky,
        }
    }

    /// What a rule asks for; `None` where it asks for nothing of the datapath (`use = "none"`).
    #[must_use]
    pub fn of(settings: &Settings, rule: &RuleConfig) -> Option<Purpose> {
        Some(match &rule.action {
            Action::Policy(policy) => Purpose::Share {
                policy: *policy,
                sticky: rule.sticky.unwrap_or(settings.config.sticky),
            },
            Action::Uplink(uplink) => Purpose::Only {
                uplink: uplink.clone(),
                on_down: rule.on_down,
            },
            Action::Bond => Purpose::Bond {
                fallback: match rule.on_down {
                    OnDown::Block => Fallback::Block,
                    OnDown::Fallback => settings.config.bond.fallback,
                },
            },
            Action::Balance => match (Purpose::balance(settings), rule.sticky) {
                (Purpose::Share { policy, .. }, Some(sticky)) => Purpose::Share { policy, sticky },
                (balance, _) => balance,
            },
            Action::Block => Purpose::Block,
            Action::None => return None,
        })
    }
}
