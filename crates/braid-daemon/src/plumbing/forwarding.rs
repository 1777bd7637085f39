//! Forwarding alone, for a daemon that forwards packets and diverts none: the hub.
//!
//! The same sysctls as a gateway's, saved and restored by the same rules ([`super::sysctl`]). A machine that
//! learned its IPv6 default route from advertisements would forget it as a router, so those devices are set to
//! accept advertisements beforehand.

use std::fs;
use std::io;

use super::sysctl::{self, Saved, SavedSysctl, Values, accept_ra};
use super::{Desired, Divert, Error, Family, Step, kernel};

/// Routes as the kernel prints them: destination, its prefix length, source, its length, next hop,
/// metric, references, uses, flags, device.
const ROUTES: &str = "/proc/net/ipv6_route";

/// `RTF_ADDRCONF` (`linux/ipv6_route.h`): learned from an advertisement.
const LEARNED: u32 = 0x0004_0000;

/// Steps towards forwarding, or back.
#[derive(Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Sysctls that remain saved. Store them *before* [`Forwarding::apply`].
    pub saved: Saved,
    steps: Vec<Step>,
}

impl Forwarding {
    /// Plans the steps that are missing for forwarding. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn plan(saved: &Saved) -> Result<Forwarding, Error> {
        let devices = kernel::conf_devices()?;
        let desired = desired();
        let mut keys = sysctl::keys(&desired, &devices);
        let has = |device: &String| devices.contains(&(Family::V6, device.clone()));
        let learned: Vec<String> = learned()?.into_iter().filter(has).collect();
        keys.extend(learned.iter().map(|device| accept_ra(device)));
        let values = kernel::sysctls(keys.into_iter().chain(of(saved)))?;
        Ok(plan(&values, &learned, saved))
    }

    /// Plans the steps back to the previous state. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn removal(saved: &Saved) -> Result<Forwarding, Error> {
        let values = kernel::sysctls(of(saved))?;
        let changes = sysctl::restoration(&values, saved);
        Ok(Forwarding {
            saved: changes.saved,
            steps: changes.restores,
        })
    }

    /// Applies the steps.
    ///
    /// # Errors
    /// [`Error::Refused`] with the step that the kernel refused; earlier ones stay applied.
    pub fn apply(&self) -> Result<(), Error> {
        for step in &self.steps {
            let Step::Sysctl { key, value } = step else {
                unreachable!("there are no others here")
            };
            kernel::write_sysctl(key, value).map_err(|source| Error::Refused {
                step: step.to_string(),
                source,
            })?;
            tracing::debug!(%step, "changed the kernel's state");
        }
        Ok(())
    }
}

fn desired() -> Desired {
    Desired {
        forward: true,
        ..Desired::new(Vec::new(), Vec::new(), Divert::Off)
    }
}

fn of(saved: &Saved) -> impl Iterator<Item = String> {
    saved.sysctls.iter().map(|sysctl| sysctl.key.clone())
}

fn plan(values: &Values, learned: &[String], saved: &Saved) -> Forwarding {
    let is_ra = |sysctl: &&SavedSysctl| sysctl.key.ends_with("/accept_ra");
    let (ra, rest): (Vec<_>, Vec<_>) = saved.sysctls.iter().partition(is_ra);
    let mut kept: Vec<SavedSysctl> = ra.into_iter().cloned().collect();
    let mut steps = Vec::new();
    for key in learned.iter().map(|device| accept_ra(device)) {
        if values.get(&key).is_some_and(|value| value == "1") {
            steps.push(sysctl::write(&key, "2"));
            kept.retain(|sysctl| sysctl.key != key);
            kept.push(SavedSysctl {
                key,
                before: "1".to_owned(),
                ours: "2".to_owned(),
            });
        }
    }
    let rest = Saved {
        sysctls: rest.into_iter().cloned().collect(),
    };
    let changes = sysctl::changes(&desired(), values, &rest);
    steps.extend(changes.writes);
    steps.extend(changes.restores);
    kept.extend(changes.saved.sysctls);
    Forwarding {
        saved: Saved { sysctls: kept },
        steps,
    }
}

/// Returns the devices with a default route that was learned from an advertisement.
fn learned() -> Result<Vec<String>, Error> {
    match fs::read_to_string(ROUTES) {
        Ok(text) => Ok(learned_in(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::Read {
            what: ROUTES.to_owned(),
            source,
        }),
    }
}

fn learned_in(routes: &str) -> Vec<String> {
    let mut devices: Vec<String> = routes
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, length, _, _, _, _, _, _, flags, device] = fields[..] else {
                return None;
            };
            let flags = u32::from_str_radix(flags, 16).ok()?;
            (length == "00" && flags & LEARNED != 0).then(|| device.to_owned())
        })
        .collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn written(forwarding: &Forwarding) -> Vec<(&str, &str)> {
        let of = |step: &'_ Step| match step {
            Step::Sysctl { key, value } => (key.clone(), value.clone()),
            other => panic!("{other:?}"),
        };
        let pairs: Vec<_> = forwarding.steps.iter().map(of).collect();
        pairs
            .into_iter()
            .map(|(key, value)| (&*key.leak(), &*value.leak()))
            .collect()
    }

    #[test]
    fn forwarding_goes_on_and_back_and_a_learned_route_survives_it() {
        let ra = "net/ipv6/conf/eth0/accept_ra";
        let (v4, v6) = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding");
        let before = values(&[(ra, "1"), (v4, "0"), (v6, "0")]);
        let plan = super::plan(&before, &["eth0".into()], &Saved::default());
        assert_eq!(written(&plan), [(ra, "2"), (v4, "1"), (v6, "1")]);
        let after = values(&[(ra, "2"), (v4, "1"), (v6, "1")]);
        let again = super::plan(&after, &["eth0".into()], &plan.saved);
        assert_eq!(written(&again), [], "after a crash nothing is left to do");
        assert_eq!(
            again.saved.sysctls.len(),
            3,
            "and what was found is still known"
        );
        let back = sysctl::restoration(&after, &again.saved);
        assert_eq!(back.restores.len(), 3);
    }

    #[test]
    fn what_forwards_already_is_left_alone() {
        let on = values(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
        ]);
        let plan = super::plan(&on, &[], &Saved::default());
        assert_eq!(
            plan,
            Forwarding {
                saved: Saved::default(),
                steps: Vec::new()
            }
        );
    }

    #[test]
    fn learned_default_routes_are_told_from_others() {
        let zero = "0".repeat(32);
        let line = |length: &str, flags: &str, device: &str| {
            format!(
                "{zero} {length} {zero} 00 fe80{} 00000400 00000001 00000000 {flags} {device}\n",
                "0".repeat(28)
            )
        };
        let text = [
            line("00", "00450003", "eth0"),
            line("00", "00000003", "eth1"),
            line("40", "00440001", "eth2"),
            line("00", "00200200", "lo"),
        ];
        assert_eq!(learned_in(&text.concat()), ["eth0"]);
    }
}
