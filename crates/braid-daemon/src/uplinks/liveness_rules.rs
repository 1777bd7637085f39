//! From the `[liveness]` configuration to the health monitor's rules.

use std::sync::Arc;

use braid_uplink::liveness::{Rules, Target};

use crate::config::{HttpTarget, Settings, Target as Written};

/// Returns the rules for an uplink of this name.
#[must_use]
pub fn liveness_rules(settings: &Settings, name: &str) -> Rules {
    let liveness = &settings.config.liveness;
    let uplink = settings
        .config
        .uplinks
        .iter()
        .find(|uplink| uplink.name == name);
    let own = uplink.map_or(&[][..], |uplink| &uplink.targets);
    let written = match own {
        [] => &liveness.targets,
        own => own,
    };
    let common = Rules::default();
    let mut targets: Vec<Arc<Target>> = match written {
        [] => common.targets,
        written => written.iter().filter_map(target).map(Arc::new).collect(),
    };
    let expect = liveness.portal_expect.as_deref();
    targets.extend(
        liveness
            .portal
            .as_ref()
            .and_then(|page| portal(page, expect))
            .map(Arc::new),
    );
    Rules {
        targets,
        quorum: usize::try_from(liveness.quorum).unwrap_or(usize::MAX),
        interval: liveness.interval,
        metered_interval: liveness.metered_interval,
        metered: uplink.is_some_and(|uplink| uplink.metered),
        rise: liveness.rise,
        degraded_loss: liveness.degraded_loss,
        degraded_rtt: liveness.degraded_rtt,
    }
}

/// Converts a configured target; both are written the same way.
fn target(written: &Written) -> Option<Target> {
    let parsed = written.to_string().parse();
    parsed
        .inspect_err(|error| tracing::warn!(%error, "a target that cannot be probed"))
        .ok()
}

fn portal(page: &HttpTarget, expect: Option<&str>) -> Option<Target> {
    let target = target(&Written::Http(page.clone()))?;
    Some(match expect {
        Some(body) => target.expecting(body.to_owned()),
        None => target,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn rules(text: &str, name: &str) -> Rules {
        let config = Config::parse("test", text).unwrap();
        liveness_rules(&Settings::new(config, &Overrides::default()).unwrap(), name)
    }

    fn texts(rules: &Rules) -> Vec<String> {
        rules.targets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_a_word_the_lookout_has_its_own_rules() {
        assert_eq!(rules("", "eth0"), Rules::default());
    }

    #[test]
    fn every_way_to_write_a_target_is_understood() {
        let written = [
            "icmp:192.0.2.1",
            "icmp:2001:db8::1",
            "tcp:192.0.2.1:443",
            "tcp:[2001:db8::1]:443",
            "dns:192.0.2.1",
            "dns:192.0.2.1/example.org",
            "http://192.0.2.1:8080/x?y",
        ];
        let text = format!("[liveness]\ntargets = {written:?}\n");
        assert_eq!(rules(&text, "eth0").targets.len(), written.len());
    }

    #[test]
    fn an_uplink_may_have_its_own_targets() {
        let text = "[liveness]\ntargets = ['icmp:192.0.2.1']\nportal = 'http://192.0.2.9/'\n\
                    [[uplink]]\ndevice = 'lte'\nmetered = true\ntargets = ['tcp:192.0.2.2:443']\n\
                    [[uplink]]\ndevice = 'dsl'\n";
        let (lte, dsl) = (rules(text, "lte"), rules(text, "dsl"));
        assert_eq!(texts(&lte), ["tcp:192.0.2.2:443", "http://192.0.2.9/"]);
        assert_eq!(texts(&dsl), ["icmp:192.0.2.1", "http://192.0.2.9/"]);
        assert!(lte.metered && !dsl.metered);
    }
}
