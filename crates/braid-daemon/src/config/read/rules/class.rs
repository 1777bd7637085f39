//! `class` of a rule, which applies where packets enter the bond, after translation.

use std::ops::Range;

use braid_host::config::{Located, Problem};

use super::super::super::bond::BondClass;
use super::super::super::rule::Action;
use super::Reader;

impl Reader<'_, '_, '_> {
    /// Checks that `class` depends only on properties that packets still have inside the bond.
    pub(super) fn check_class(
        &mut self,
        action: &Located<Action>,
        class: Option<&Located<BondClass>>,
        unknown: [(&str, Option<&Range<usize>>); 7],
    ) {
        let Some(class) = class else { return };
        if action.value != Action::Bond {
            let what = "`class` is for rules with use = \"bond\"";
            self.note(
                what,
                class.at.clone(),
                "means nothing here",
                "remove the line",
            );
            return;
        }
        for (key, at) in unknown {
            let Some(at) = at else { continue };
            let what = format!("`{key}` cannot be used with `class`");
            self.problems.push(
                Problem::new(what, at.clone(), "not to be seen inside the bond")
                    .also(class.at.clone(), "is decided there")
                    .fix("match by destination, protocol, port, dscp or family, or leave `class` out"),
            );
        }
    }
}
