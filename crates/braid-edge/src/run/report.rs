//! Collects the status of an edge.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Answer, Edge, EdgeState, locked};
use crate::datapath::Counted;
use crate::reorderer::ReorderStats;
use crate::shared::REASONS;
use crate::status::{
    EgressPathStatus, EgressStatus, IngressPathStatus, IngressStatus, Problem, Segments, Status,
    VERSION,
};

impl Edge {
    pub(super) fn status(&self) -> Status {
        let (stats, repeated) = (self.driver.stats(), self.driver.repeated());
        let state = locked(&self.state);
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
            controller: options.control.to_string(),
            generation: state.table.as_ref().map(|table| table.generation),
            reordering: format!("{:?}", options.reordering).to_lowercase(),
            egress: Vec::new(),
            ingress: Vec::new(),
            health: health(&state, &reasons),
            reasons,
        };
        let Some(table) = &state.table else {
            return status;
        };
        for egress in &table.egress {
            let mut slots: BTreeMap<u16, usize> = BTreeMap::new();
            egress
                .slots
                .iter()
                .for_each(|tag| *slots.entry(*tag).or_default() += 1);
            let path = |(tag, count): (u16, usize)| {
                let traffic = datapath.traffic(Counted::Sent, tag).unwrap_or_default();
                EgressPathStatus {
                    tag,
                    addresses: state.path_addresses.get(&tag).cloned(),
                    share: count as f64 / egress.slots.len() as f64,
                    tx_packets: traffic.packets,
                    tx_bytes: traffic.bytes,
                    resent_packets: datapath.resent(tag).unwrap_or_default(),
                    copied: state.copied.contains(&tag),
                    avoided: state.avoided.contains(&tag),
                    repeated_packets: repeated.get(&tag).copied().unwrap_or_default(),
                    silent: state.path_states.silent.contains(&tag),
                }
            };
            status.egress.push(EgressStatus {
                target: egress.target.clone(),
                hosts: egress.hosts.len(),
                paths: slots.into_iter().map(path).collect(),
            });
        }
        for ingress in &table.ingress {
            let paths = ingress.paths.iter().map(|path| {
                let traffic = datapath
                    .traffic(Counted::Received, path.tag)
                    .unwrap_or_default();
                IngressPathStatus {
                    tag: path.tag,
                    addresses: state.path_addresses.get(&path.tag).cloned(),
                    latency_ms: path.latency_ms,
                    rx_packets: traffic.packets,
                    rx_bytes: traffic.bytes,
                }
            });
            status.ingress.push(IngressStatus {
                source: ingress.source.clone(),
                in_order: state.resequenced.contains(&ingress.source),
                paths: paths.collect(),
                segments: segments(stats.get(&ingress.source)),
            });
        }
        status
    }
}

fn health(state: &EdgeState, reasons: &BTreeMap<String, u64>) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut problem = |code: &str, text: &str| {
        found.push(Problem {
            code: code.to_owned(),
            text: text.to_owned(),
        });
    };
    for answer in &state.answers {
        match answer {
            Answer::Failed(code, text) => problem(code, text),
            Answer::Misdirected(text) if !state.answers.contains(&Answer::Followed) => {
                problem("no-leader", text);
            }
            Answer::Misdirected(_) | Answer::None | Answer::Followed => {}
        }
    }
    found.extend(state.silent_paths.iter().map(|path| Problem {
        code: "path-silent".to_owned(),
        text: format!(
            "{path}: nothing comes back (is the far edge running, and is there a route?)"
        ),
    }));
    found.extend(state.path_states.silent.iter().map(|tag| Problem {
        code: "path-silent".to_owned(),
        text: format!("tag {tag}: the far edge gets nothing by it; packets take the other paths"),
    }));
    let count = |name: &str| reasons.get(name).copied().unwrap_or(0);
    // A host's first packets may arrive before its offloads are off.
    if count("gso_packet") > count("split") / 100 + 100 {
        found.push(Problem {
            code: "gso-packets".to_owned(),
            text: "packets come in merged, and each is sent by one path: switch segmentation and \
                   receive offload off (ethtool -K DEVICE gro off; on veth hosts tso off gso off)"
                .to_owned(),
        });
    }
    let led = ["split", "sticky", "forwarded", "resequenced"].map(count);
    // Single packets during a change of routes are normal.
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

fn segments(stats: Option<&ReorderStats>) -> Segments {
    let Some(stats) = stats else {
        return Segments::default();
    };
    let counters = stats.counters;
    let ms = |span: Duration| 1000.0 * span.as_secs_f64();
    Segments {
        streams: stats.streams,
        waiting: stats.held,
        in_order: counters.in_order,
        held: counters.held,
        held_mean_ms: match counters.held {
            0 => 0.0,
            held => ms(counters.waited) / held as f64,
        },
        held_max_ms: ms(counters.waited_max),
        retransmitted: counters.retransmitted,
        late: counters.late,
        known_lost: counters.known_lost,
        expired: counters.expired,
        forced: counters.forced,
        crowded: counters.untracked,
        asked: counters.asked,
        repaired: counters.repaired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_controllers_one_has_to_lead() {
        let codes = |answers: &[Answer]| {
            let state = EdgeState {
                answers: answers.to_vec(),
                ..EdgeState::default()
            };
            let found = health(&state, &BTreeMap::new()).into_iter();
            found.map(|problem| problem.code).collect::<Vec<_>>()
        };
        let waiting = || Answer::Misdirected("beta leads".to_owned());
        let silent = || Answer::Failed("controller-silent", "refused".to_owned());
        assert!(codes(&[]).is_empty());
        assert!(codes(&[Answer::Followed, waiting()]).is_empty());
        assert!(codes(&[waiting(), Answer::Followed]).is_empty());
        assert_eq!(codes(&[waiting(), waiting()]), ["no-leader", "no-leader"]);
        // One that could not take over is missed.
        assert_eq!(codes(&[Answer::Followed, silent()]), ["controller-silent"]);
        assert_eq!(
            codes(&[silent(), waiting()]),
            ["controller-silent", "no-leader"]
        );
    }

    #[test]
    fn what_is_wrong_has_a_code_and_what_is_rare_has_none() {
        let codes = |counted: &[(&str, u64)]| {
            let reasons = counted
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            let found = health(&EdgeState::default(), &reasons.collect());
            found
                .into_iter()
                .map(|problem| problem.code)
                .collect::<Vec<_>>()
        };
        assert!(codes(&[]).is_empty());
        assert!(codes(&[("split", 10_000), ("no_route", 110), ("gso_packet", 200)]).is_empty());
        assert_eq!(codes(&[("split", 10_000), ("no_route", 111)]), ["no-route"]);
        assert_eq!(
            codes(&[("split", 10_000), ("gso_packet", 201)]),
            ["gso-packets"]
        );
        assert_eq!(
            codes(&[("resequenced", 10_000), ("too_long", 111)]),
            ["too-long"]
        );
        for name in [
            "split",
            "sticky",
            "forwarded",
            "resequenced",
            "too_long",
            "no_route",
            "gso_packet",
        ] {
            assert!(REASONS.iter().any(|reason| reason.name == name), "{name}");
        }
    }
}
