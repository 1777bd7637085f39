//! What an edge says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Edge, Known, locked};
use crate::order::Account;
use crate::shared::REASONS;
use crate::status::{
    CamePath, InwardStatus, OutwardStatus, Problem, Segments, SentPath, Status, VERSION,
};

impl Edge {
    pub(super) fn status(&self) -> Status {
        let accounts = self.driver.accounts();
        let known = locked(&self.known);
        let mut datapath = locked(&self.datapath);
        let options = &self.options;
        let counts = datapath.reasons().unwrap_or_default();
        let reasons: BTreeMap<String, u64> = REASONS
            .iter()
            .zip(counts)
            .map(|(reason, count)| (reason.name.to_owned(), count))
            .collect();
        let mut status = Status {
            version: VERSION,
            name: options.name.clone(),
            inside: options.devices.inside.clone(),
            outside: options.devices.outside.join(", "),
            controller: options.guide.to_string(),
            generation: known.table.as_ref().map(|table| table.generation),
            order: format!("{:?}", options.ordering).to_lowercase(),
            outward: Vec::new(),
            inward: Vec::new(),
            health: health(&known, &reasons),
            reasons,
        };
        let Some(table) = &known.table else {
            return status;
        };
        for outward in &table.outward {
            let mut slots: BTreeMap<u16, usize> = BTreeMap::new();
            outward
                .slots
                .iter()
                .for_each(|tag| *slots.entry(*tag).or_default() += 1);
            let path = |(tag, count): (u16, usize)| {
                let traffic = datapath.traffic(true, tag).unwrap_or_default();
                SentPath {
                    tag,
                    ends: known.ends.get(&tag).cloned(),
                    share: count as f64 / outward.slots.len() as f64,
                    packets: traffic.packets,
                    bytes: traffic.bytes,
                }
            };
            status.outward.push(OutwardStatus {
                target: outward.target.clone(),
                hosts: outward.hosts.len(),
                paths: slots.into_iter().map(path).collect(),
            });
        }
        for inward in &table.inward {
            let paths = inward.paths.iter().map(|path| {
                let traffic = datapath.traffic(false, path.tag).unwrap_or_default();
                CamePath {
                    tag: path.tag,
                    ends: known.ends.get(&path.tag).cloned(),
                    latency_ms: path.latency_ms,
                    packets: traffic.packets,
                    bytes: traffic.bytes,
                }
            });
            status.inward.push(InwardStatus {
                source: inward.source.clone(),
                in_order: known.ordered.contains(&inward.source),
                paths: paths.collect(),
                segments: segments(accounts.get(&inward.source)),
            });
        }
        status
    }
}

fn health(known: &Known, reasons: &BTreeMap<String, u64>) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some((code, text)) = &known.problem {
        found.push(Problem {
            code: (*code).to_owned(),
            text: text.clone(),
        });
    }
    found.extend(known.silent.iter().map(|path| Problem {
        code: "path-silent".to_owned(),
        text: format!(
            "{path}: nothing comes back (is the far edge running, and is there a route?)"
        ),
    }));
    let count = |name: &str| reasons.get(name).copied().unwrap_or(0);
    // A host's first packets may come before its offloads are off.
    if count("super_packet") > count("split") / 100 + 100 {
        found.push(Problem {
            code: "super-packets".to_owned(),
            text: "packets come in merged, and each is sent by one path: switch segmentation and \
                   receive offload off (ethtool -K DEVICE gro off; on veth hosts tso off gso off)"
                .to_owned(),
        });
    }
    let led = ["split", "sticky", "as_came", "ordered"].map(count);
    // One that went while routes changed is no news.
    let few = led.iter().sum::<u64>() / 100 + 10;
    if count("too_long") > few {
        found.push(Problem {
            code: "too-long".to_owned(),
            text: "packets are longer than their layer-3 path's device carries, and left to the \
                   machine: give hosts an MTU that fits all paths (ip link set DEVICE mtu)"
                .to_owned(),
        });
    }
    if count("no_route") > few {
        found.push(Problem {
            code: "no-route".to_owned(),
            text: "packets of layer-3 paths have nowhere to go: switch forwarding on \
                   (sysctl net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1), and give each \
                   path's addresses a route (ip rule, ip route)"
                .to_owned(),
        });
    }
    found
}

fn segments(account: Option<&Account>) -> Segments {
    let Some(account) = account else {
        return Segments::default();
    };
    let counters = account.counters;
    let ms = |span: Duration| 1000.0 * span.as_secs_f64();
    Segments {
        streams: account.streams,
        waiting: account.held,
        in_order: counters.in_order,
        held: counters.held,
        held_mean_ms: match counters.held {
            0 => 0.0,
            held => ms(counters.waited) / held as f64,
        },
        held_most_ms: ms(counters.waited_max),
        again: counters.retransmitted,
        late: counters.late,
        known_lost: counters.known_lost,
        expired: counters.expired,
        forced: counters.forced,
        crowded: counters.untracked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_has_a_code_and_what_is_rare_has_none() {
        let codes = |counted: &[(&str, u64)]| {
            let reasons = counted
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            let found = health(&Known::default(), &reasons.collect());
            found
                .into_iter()
                .map(|problem| problem.code)
                .collect::<Vec<_>>()
        };
        assert!(codes(&[]).is_empty());
        assert!(codes(&[("split", 10_000), ("no_route", 110), ("super_packet", 200)]).is_empty());
        assert_eq!(codes(&[("split", 10_000), ("no_route", 111)]), ["no-route"]);
        assert_eq!(
            codes(&[("split", 10_000), ("super_packet", 201)]),
            ["super-packets"]
        );
        assert_eq!(
            codes(&[("ordered", 10_000), ("too_long", 111)]),
            ["too-long"]
        );
        for name in [
            "split",
            "sticky",
            "as_came",
            "ordered",
            "too_long",
            "no_route",
            "super_packet",
        ] {
            assert!(REASONS.iter().any(|reason| reason.name == name), "{name}");
        }
    }
}
