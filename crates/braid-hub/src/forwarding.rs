//! Forwarding of packets between the clients and the internet.
//!
//! The same sysctls as a gateway's, saved and restored by the same rules ([`braid_host::sysctl`]). A machine that
//! learned its IPv6 default route from advertisements would forget it as a router, so those devices are set to
//! accept advertisements beforehand.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use braid_host::sysctl::{self, Changes, Desired, Error, Saved};

/// Routes as the kernel prints them: destination, its prefix length, source, its length, next hop,
/// metric, references, uses, flags, device.
const ROUTES: &str = "/proc/net/ipv6_route";

/// `RTF_ADDRCONF` (`linux/ipv6_route.h`): learned from an advertisement.
const LEARNED: u32 = 0x0004_0000;

/// Plans the writes that are missing for forwarding. Changes nothing. Store [`Changes::saved`] before [`apply`].
///
/// # Errors
/// The kernel's values or routes cannot be read.
pub fn plan(saved: &Saved) -> Result<Changes, Error> {
    let desired = desired(learned()?, saved);
    let keys = sysctl::keys(&desired)?;
    let values = sysctl::read(keys.into_iter().chain(saved_keys(saved)))?;
    Ok(sysctl::changes(&desired, &values, saved))
}

/// Plans the writes back to the previous state. Changes nothing.
///
/// # Errors
/// The kernel's values cannot be read.
pub fn removal(saved: &Saved) -> Result<Changes, Error> {
    let values = sysctl::read(saved_keys(saved))?;
    Ok(sysctl::restoration(&values, saved))
}

/// Applies planned writes.
///
/// # Errors
/// [`Error::Refused`] with the one that the kernel refused; earlier ones stay applied.
pub fn apply(changes: &Changes) -> Result<(), Error> {
    for write in changes.writes.iter().chain(&changes.restores) {
        write.apply().map_err(|source| Error::Refused {
            write: write.to_string(),
            source,
        })?;
        tracing::debug!(%write, "changed the kernel's state");
    }
    Ok(())
}

/// A device keeps accepting advertisements while its route is away: the next one brings it back.
fn desired(learned: Vec<String>, saved: &Saved) -> Desired {
    let device = |key: String| {
        let device = key
            .strip_prefix("net/ipv6/conf/")?
            .strip_suffix("/accept_ra")?;
        Some(device.to_owned())
    };
    let devices: BTreeSet<String> = learned
        .into_iter()
        .chain(saved_keys(saved).filter_map(device))
        .collect();
    Desired {
        accept_ra: devices.into_iter().collect(),
        forward: true,
        ..Desired::default()
    }
}

fn saved_keys(saved: &Saved) -> impl Iterator<Item = String> {
    saved.sysctls.iter().map(|sysctl| sysctl.key.clone())
}

/// Returns the devices with a default route that was learned from an advertisement.
fn learned() -> Result<Vec<String>, Error> {
    match fs::read_to_string(ROUTES) {
        Ok(text) => Ok(learned_in(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::Read {
            path: ROUTES.to_owned(),
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
    use braid_host::sysctl::Values;

    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn written(changes: &Changes) -> Vec<(&str, &str)> {
        let all = changes.writes.iter().chain(&changes.restores);
        all.map(|write| (&*write.key, &*write.value)).collect()
    }

    /// Plans with one device whose default route was learned, or without any.
    fn planned(values: &Values, learned: &[&str], saved: &Saved) -> Changes {
        let learned = learned.iter().map(ToString::to_string).collect();
        sysctl::changes(&desired(learned, saved), values, saved)
    }

    #[test]
    fn forwarding_goes_on_and_back_and_a_learned_route_survives_it() {
        let ra = "net/ipv6/conf/eth0/accept_ra";
        let (v4, v6) = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding");
        let before = values(&[(ra, "1"), (v4, "0"), (v6, "0")]);
        let plan = planned(&before, &["eth0"], &Saved::default());
        assert_eq!(written(&plan), [(ra, "2"), (v4, "1"), (v6, "1")]);
        let after = values(&[(ra, "2"), (v4, "1"), (v6, "1")]);
        // The route may be away for a while.
        for learned in [&["eth0"][..], &[]] {
            let again = planned(&after, learned, &plan.saved);
            assert_eq!(written(&again), [], "after a crash nothing is left to do");
            let saved = &again.saved;
            assert_eq!(saved.sysctls.len(), 3, "and what was found is still known");
            assert_eq!(sysctl::restoration(&after, saved).restores.len(), 3);
        }
    }

    #[test]
    fn what_forwards_already_is_left_alone() {
        let on = values(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
        ]);
        assert_eq!(planned(&on, &[], &Saved::default()), Changes::default());
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
