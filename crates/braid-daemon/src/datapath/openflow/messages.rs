//! Messages between daemon and controller, one JSON object a line. `python/braid_sdn/host/desired.py` reads the one, and
//! `balancer.py` there writes the other.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use braid_balance::{
    CachedPath, Choice, ClassEntry, ClassId, Family, Flow, FlowActivity, FlowState, KernelTime,
    LbMethod, Name, NextHop, PathCacheEntry, Protocol, RaceSettings, RuleEntry, Site, Sticky,
    Traffic, UplinkEntry, UplinkForecast, prefix_of,
};
use braid_core::UplinkId;
use braid_core::forecast::{kilobytes_per_sec, ppm};
use serde::{Deserialize, Serialize};

use super::sender_groups::SenderGroups;
use super::senders::{client_mac, mac_text};
use crate::config::{DatapathConfig, FailMode, OpenFlowMode};

/// Version of these messages (`VERSION` in `desired.py`). Another one's are not understood: the daemon starts the
/// controller anew, and the bridge keeps its rules meanwhile.
pub(super) const VERSION: u32 = 5;

/// The desired state.
#[derive(Debug, Serialize)]
pub(super) struct Desired {
    version: u32,
    revision: u64,
    uplinks: Vec<UplinkMessage>,
    classes: Vec<ClassMessage>,
    rules: Vec<RuleMessage>,
    limited: Vec<IpAddr>,
    max_flows: u32,
    race: RaceMessage,
    fail_mode: FailMode,
    /// MAC address of the host behind the bridge, if new connections take groups; otherwise the controller has all.
    group_inside: Option<String>,
    /// Answers of name servers wait until this daemon has judged them.
    hold_answers: bool,
    /// Parts that are set; a state without its uplinks would end every flow of an earlier daemon.
    #[serde(skip)]
    known: Known,
}

/// Parts of the desired state that the engine has given.
#[derive(Debug, Default)]
struct Known {
    uplinks: bool,
    classes: bool,
    rules: bool,
    race: bool,
    inside: bool,
}

#[derive(Debug, Default, Serialize)]
struct RaceMessage {
    cache_ttl_s: f64,
    explore_one_in: u32,
    per_prefix: u32,
    total: u32,
}

#[derive(Debug, Serialize)]
struct UplinkMessage {
    id: u8,
    device: String,
    v4: Option<NextHopMessage>,
    v6: Option<NextHopMessage>,
    ports: (u16, u16),
    accepts_new: bool,
    resets_tcp: bool,
    epoch: u32,
}

#[derive(Debug, Serialize)]
struct NextHopMessage {
    address: IpAddr,
    gateway: IpAddr,
}

#[derive(Debug, Serialize)]
struct ClassMessage {
    id: ClassId,
    method: LbMethod,
    v4: Vec<u8>,
    v6: Vec<u8>,
    candidates: Vec<u8>,
    /// Seconds for which a client keeps its uplink for a site; 0: never.
    sticky_s: u64,
}

#[derive(Debug, Serialize)]
struct RuleMessage {
    class: ClassId,
    source: Option<String>,
    dest: Option<String>,
    protocol: Option<u8>,
    source_ports: Option<(u16, u16)>,
    dest_ports: Option<(u16, u16)>,
    dscp: Option<u8>,
    family: Option<u8>,
    mac: Option<String>,
    uid: Option<(u32, u32)>,
    /// Numbers of the sender's control group, any of them.
    groups: Option<Vec<u8>>,
    /// Mark that the remote address must have.
    name: Option<u64>,
}

impl Desired {
    /// Returns a state without uplinks. The numbers of its revisions are above those of every earlier daemon of this
    /// boot, whose state the controller may still follow.
    pub fn new(config: &DatapathConfig) -> Self {
        let since_boot = KernelTime::now().since(KernelTime::from_nanos(0));
        Self {
            version: VERSION,
            revision: u64::try_from(since_boot.as_micros()).unwrap_or_default(),
            uplinks: Vec::new(),
            classes: Vec::new(),
            rules: Vec::new(),
            limited: Vec::new(),
            max_flows: config.max_flows,
            race: RaceMessage::default(),
            fail_mode: config.fail_mode,
            group_inside: None,
            hold_answers: false,
            known: Known {
                inside: config.openflow_mode == OpenFlowMode::PacketIn,
                ..Known::default()
            },
        }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the state as a line, under the next number; `None` until all of it is known.
    pub fn next_line(&mut self) -> Option<(u64, String)> {
        let known = &self.known;
        if !(known.uplinks && known.classes && known.rules && known.race && known.inside) {
            return None;
        }
        self.revision += 1;
        let line = serde_json::to_string(self).expect("a desired state is plain data");
        Some((self.revision, line))
    }

    pub fn set_uplinks<'a>(&mut self, uplinks: impl Iterator<Item = (String, &'a UplinkEntry)>) {
        let message = |(device, entry): (String, &UplinkEntry)| UplinkMessage {
            id: entry.id.0,
            device,
            v4: entry.v4.and_then(next_hop),
            v6: entry.v6.and_then(next_hop),
            ports: (*entry.ports.start(), *entry.ports.end()),
            accepts_new: entry.accepts_new,
            resets_tcp: entry.resets_tcp,
            epoch: entry.epoch,
        };
        self.uplinks = uplinks.map(message).collect();
        self.known.uplinks = true;
    }

    pub fn set_classes(&mut self, classes: &[ClassEntry]) {
        let slots = |slots: &[UplinkId]| slots.iter().map(|id| id.0).collect();
        let message = |class: &ClassEntry| ClassMessage {
            id: class.id,
            method: class.lb_method,
            v4: slots(&class.v4),
            v6: slots(&class.v6),
            candidates: slots(&class.candidates),
            sticky_s: class.sticky.map_or(0, |time| time.as_secs()),
        };
        self.classes = classes.iter().map(message).collect();
        self.known.classes = true;
    }

    pub fn set_rules(&mut self, rules: &[RuleEntry], groups: &SenderGroups) {
        let prefix = |(address, length): (IpAddr, u8)| format!("{address}/{length}");
        let ports = |range: &std::ops::RangeInclusive<u16>| (*range.start(), *range.end());
        let message = |rule: &RuleEntry| RuleMessage {
            class: rule.class,
            source: rule.source.map(prefix),
            dest: rule.dest.map(prefix),
            protocol: rule.protocol,
            source_ports: rule.source_ports.as_ref().map(ports),
            dest_ports: rule.dest_ports.as_ref().map(ports),
            dscp: rule.dscp,
            family: rule.family.map(|family| match family {
                Family::V4 => 4,
                Family::V6 => 6,
            }),
            mac: rule.mac.map(|mac| mac_text(&client_mac(mac))),
            uid: rule
                .uid
                .as_ref()
                .map(|range| (*range.start(), *range.end())),
            groups: rule.cgroup.map(|id| groups.numbers(id)),
            name: rule.name.map(|bit| bit.mask()),
        };
        self.rules = rules.iter().map(message).collect();
        self.known.rules = true;
    }

    pub fn set_race(&mut self, race: RaceSettings) {
        self.race = RaceMessage {
            cache_ttl_s: race.cache_ttl.as_secs_f64(),
            explore_one_in: race.explore_one_in,
            per_prefix: race.per_prefix,
            total: race.total,
        };
        self.known.race = true;
    }

    /// Returns true if new connections take groups, and the host's MAC address is not known.
    pub fn wants_inside(&self) -> bool {
        !self.known.inside
    }

    pub fn set_inside(&mut self, mac: [u8; 6]) {
        self.group_inside = Some(mac_text(&mac));
        self.known.inside = true;
    }

    pub fn hold_answers(&mut self, wanted: bool) {
        self.hold_answers = wanted;
    }

    pub fn limit_clients(&mut self, clients: &[IpAddr]) {
        self.limited = clients.to_vec();
    }
}

/// A next hop without a gateway is for links without Ethernet headers, which the bridge does not have.
fn next_hop<A: Into<IpAddr>>(hop: NextHop<A>) -> Option<NextHopMessage> {
    Some(NextHopMessage {
        address: hop.address.into(),
        gateway: hop.gateway?.into(),
    })
}

/// Returns the line that tells the forecasts.
pub(super) fn forecasts_line(forecasts: &[UplinkForecast]) -> String {
    let message = |forecast: &UplinkForecast| {
        serde_json::json!({
            "id": forecast.uplink.0,
            "capacity": kilobytes_per_sec(forecast.capacity),
            "spare": kilobytes_per_sec(forecast.spare),
            "busy": forecast.busy,
            "loss": ppm(forecast.loss),
        })
    };
    let forecasts: Vec<_> = forecasts.iter().map(message).collect();
    serde_json::json!({ "forecasts": forecasts }).to_string()
}

/// Returns the line that restores an earlier instance's path cache.
pub(super) fn paths_line(memory: &[PathCacheEntry]) -> String {
    let path = |path: &CachedPath| PathReport {
        uplink: path.uplink.0,
        rtt_us: path.rtt.map(|rtt| rtt.as_micros() as u64),
        age_ms: path.age.as_millis() as u64,
        valid: path.valid,
    };
    let network = |entry: &PathCacheEntry| NetworkReport {
        prefix: entry.prefix,
        paths: entry.paths.iter().map(path).collect(),
    };
    let paths: Vec<_> = memory.iter().map(network).collect();
    serde_json::json!({ "paths": paths }).to_string()
}

/// Returns the line that tells names of remote addresses. `meaning` changes with that of their marks.
pub(super) fn names_line<'n>(
    meaning: u32,
    names: impl Iterator<Item = (&'n IpAddr, &'n Name)>,
    forgotten: &[IpAddr],
) -> String {
    let now = KernelTime::now();
    let name = |(address, name): (&IpAddr, &Name)| {
        serde_json::json!({
            "address": address,
            "marks": name.rules,
            "site": name.site,
            "life_ms": name.expires.since(now).as_millis() as u64,
        })
    };
    let names: Vec<_> = names.map(name).collect();
    serde_json::json!({ "names": names, "meaning": meaning, "forgotten": forgotten }).to_string()
}

/// Returns the line that gives packets of flows to be sent again, each from its IP header on.
pub(super) fn replay_line(packets: &[Vec<u8>]) -> String {
    let text =
        |packet: &Vec<u8>| -> String { packet.iter().map(|byte| format!("{byte:02x}")).collect() };
    let packets: Vec<_> = packets.iter().map(text).collect();
    serde_json::json!({ "replay": packets }).to_string()
}

/// Returns the line that says that an answer of a name server has been judged, after the names in it were told.
pub(super) fn judged_line(number: u64) -> String {
    serde_json::json!({ "judged": [number] }).to_string()
}

/// A flow that leaves its uplink, by the controller's number.
#[derive(Debug, Serialize)]
pub(super) struct ReleasedFlow {
    pub number: u64,
    /// Reset it; otherwise it chooses anew.
    pub reset: bool,
}

/// The begin of a line of the controller.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope {
    /// Its version; lines without one are older than versions.
    #[serde(default)]
    pub version: u32,
    /// An answer of a name server; without one the line is a report.
    #[serde(default)]
    pub answer: Option<AnswerMessage>,
}

/// An answer of a name server that waits to be judged.
#[derive(Debug, Deserialize)]
pub(super) struct AnswerMessage {
    pub number: u64,
    /// The packet that goes inside, from its IP header on, in hexadecimal digits.
    packet: String,
}

impl AnswerMessage {
    /// Returns the packet; an empty one if there is none.
    pub fn packet(&self) -> Vec<u8> {
        let digits = self.packet.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        digits.map(byte).collect::<Option<_>>().unwrap_or_default()
    }
}

/// The controller's report.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Report {
    /// Number of the desired state that it follows.
    pub revision: u64,
    /// The bridge is connected.
    pub connected: bool,
    /// New flows get uplinks.
    pub ready: bool,
    /// Rules in the bridge that are not the controller's.
    #[serde(default)]
    pub foreign_rules: u32,
    /// The bridge had no room for a rule a moment ago.
    #[serde(default)]
    pub table_full: bool,
    pub uplinks: Vec<UplinkReport>,
    pub reasons: std::collections::BTreeMap<String, u64>,
    /// Activity of the flows since the last forecasts.
    #[serde(default)]
    pub activity: Vec<ActivityReport>,
    /// Networks of the path cache that have changed; all of them on a new connection.
    #[serde(default)]
    pub paths: Vec<NetworkReport>,
    /// Choices of sticky clients that have changed; all of them on a new connection.
    #[serde(default)]
    pub sticky: Vec<StickyReport>,
    /// All flows; none if they have not been read since the last report.
    pub flows: Option<Vec<FlowReport>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct UplinkReport {
    pub id: u8,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub flows_opened: u64,
    /// Round trips of raced handshakes in microseconds, summed, and their number.
    pub rtt_us_sum: u64,
    pub rtt_samples: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct ActivityReport {
    id: u8,
    opened: u32,
    active: u32,
    busy: u32,
    last_opened: u64,
}

impl ActivityReport {
    pub fn activity(self) -> FlowActivity {
        FlowActivity {
            uplink: UplinkId(self.id),
            opened: self.opened,
            active: self.active,
            busy: self.busy,
            last_opened: self.last_opened,
        }
    }
}

/// A network of the path cache; without paths it is forgotten.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct NetworkReport {
    pub prefix: IpAddr,
    pub paths: Vec<PathReport>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct PathReport {
    uplink: u8,
    rtt_us: Option<u64>,
    age_ms: u64,
    valid: bool,
}

impl NetworkReport {
    /// Returns the entry with the times of its measurements; `now` is the time of the report.
    pub fn measured(&self, now: Instant) -> Vec<(Instant, CachedPath)> {
        let path = |told: &PathReport| {
            let age = Duration::from_millis(told.age_ms);
            let path = CachedPath {
                uplink: UplinkId(told.uplink),
                rtt: told.rtt_us.map(Duration::from_micros),
                tried: false,
                age,
                packets: 0,
                lost: 0,
                valid: told.valid,
            };
            (now.checked_sub(age).unwrap_or(now), path)
        };
        self.paths.iter().map(path).collect()
    }
}

/// Returns the entry of a network as the engine knows it at this time.
pub(super) fn path_cache_entry(
    prefix: IpAddr,
    paths: &[(Instant, CachedPath)],
    now: Instant,
) -> PathCacheEntry {
    let path = |(measured, path): &(Instant, CachedPath)| CachedPath {
        age: now.saturating_duration_since(*measured),
        ..*path
    };
    PathCacheEntry {
        prefix,
        bits: prefix_of(prefix).1,
        paths: paths.iter().map(path).collect(),
    }
}

/// The client, the site and the class of a choice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(super) struct StickyKey {
    client: IpAddr,
    site: SiteReport,
    class: u8,
}

/// The number of a site that has a name, or the first address of its network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(untagged)]
enum SiteReport {
    Named(u32),
    Network(IpAddr),
}

/// A sticky client; without an uplink it is forgotten.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct StickyReport {
    #[serde(flatten)]
    pub key: StickyKey,
    uplink: Option<u8>,
    age_ms: u64,
}

impl StickyReport {
    /// Returns the choice as the engine knows it; `None`: there is none any more. `now` is the time of the report.
    pub fn sticky(&self, now: KernelTime) -> Option<Sticky> {
        Some(Sticky {
            client: self.key.client,
            site: match self.key.site {
                SiteReport::Named(number) => Site::Named(number),
                SiteReport::Network(first) => Site::Network(first),
            },
            class: ClassId(self.key.class),
            uplink: UplinkId(self.uplink?),
            used: before(now, self.age_ms),
        })
    }

    /// Returns what a new controller is told of a choice.
    pub fn told(key: &StickyKey, sticky: &Sticky, now: KernelTime) -> StickyReport {
        StickyReport {
            key: key.clone(),
            uplink: Some(sticky.uplink.0),
            age_ms: now.since(sticky.used).as_millis() as u64,
        }
    }
}

/// Returns the time so many milliseconds before.
fn before(now: KernelTime, millis: u64) -> KernelTime {
    let boot = KernelTime::from_nanos(0);
    boot.after(
        now.since(boot)
            .saturating_sub(Duration::from_millis(millis)),
    )
}

#[derive(Debug, Deserialize)]
pub(super) struct FlowReport {
    pub number: u64,
    protocol: u8,
    inner: SocketAddr,
    remote: Option<SocketAddr>,
    outer: SocketAddr,
    uplink: u8,
    answered: bool,
    choice: String,
    class: u8,
    rule: Option<usize>,
    age_ms: u64,
    idle_ms: u64,
    tx_packets: u64,
    tx_bytes: u64,
    rx_packets: u64,
    rx_bytes: u64,
}

impl FlowReport {
    /// Returns the flow as the engine knows flows. `now` is the time of the report.
    pub fn flow(&self, now: KernelTime) -> Flow {
        Flow {
            protocol: Protocol(self.protocol),
            inner: self.inner,
            remote: self.remote,
            outer: self.outer,
            uplink: UplinkId(self.uplink),
            state: match self.answered {
                true => FlowState::Established,
                false => FlowState::New,
            },
            assured: self.answered,
            fast: false,
            choice: match self.choice.as_str() {
                "hash_source" => Choice::HashSource,
                "hash_pair" => Choice::HashPair,
                "next_usable" => Choice::NextUsable,
                "only" => Choice::Only,
                "sticky" => Choice::Sticky,
                "raced" => Choice::Raced,
                "remembered" => Choice::Remembered,
                "predicted" => Choice::Predicted,
                "group" => Choice::Group,
                _ => Choice::NextSlot,
            },
            class: ClassId(self.class),
            rule: self.rule,
            came_from: None,
            created: before(now, self.age_ms),
            last_seen: before(now, self.idle_ms),
            tx: Traffic {
                packets: self.tx_packets,
                bytes: self.tx_bytes,
            },
            rx: Traffic {
                packets: self.rx_packets,
                bytes: self.rx_bytes,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(openflow_mode: OpenFlowMode) -> DatapathConfig {
        DatapathConfig {
            max_flows: 1024,
            openflow_mode,
            ..DatapathConfig::default()
        }
    }

    fn race() -> RaceSettings {
        RaceSettings {
            cache_ttl: Duration::from_secs(120),
            explore_one_in: 16,
            per_prefix: 8,
            total: 200,
        }
    }

    #[test]
    fn no_state_is_told_before_all_of_it_is_known() {
        let mut desired = Desired::new(&config(OpenFlowMode::PacketIn));
        desired.limit_clients(&[]);
        desired.set_uplinks(std::iter::empty());
        desired.set_classes(&[]);
        desired.set_race(race());
        assert_eq!(desired.next_line(), None);
        let rule = RuleEntry {
            dest: Some((IpAddr::from([192, 0, 2, 0]), 24)),
            dest_ports: Some(80..=90),
            class: ClassId(3),
            ..RuleEntry::default()
        };
        desired.set_rules(&[rule], &SenderGroups::default());
        let (first, line) = desired.next_line().unwrap();
        assert!(
            line.contains(r#""class":3,"source":null,"dest":"192.0.2.0/24""#),
            "{line}"
        );
        assert!(line.contains(r#""dest_ports":[80,90]"#), "{line}");
        assert!(
            line.contains(r#""max_flows":1024,"race":{"cache_ttl_s":120.0,"#),
            "{line}"
        );
        let end = r#""fail_mode":"secure","group_inside":null,"hold_answers":false}"#;
        assert!(line.contains(end), "{line}");
        assert_eq!(desired.next_line().unwrap().0, first + 1);
    }

    #[test]
    fn a_state_with_groups_names_the_host() {
        let mut desired = Desired::new(&config(OpenFlowMode::Group));
        desired.set_uplinks(std::iter::empty());
        desired.set_classes(&[]);
        desired.set_rules(&[], &SenderGroups::default());
        desired.set_race(race());
        assert!(desired.wants_inside());
        assert_eq!(desired.next_line(), None);
        desired.set_inside([2, 0, 0, 0, 0, 0x1f]);
        let (_, line) = desired.next_line().unwrap();
        assert!(
            line.contains(r#""group_inside":"02:00:00:00:00:1f""#),
            "{line}"
        );
    }

    #[test]
    fn an_answer_is_told_from_a_report() {
        fn told(line: &str) -> Envelope {
            serde_json::from_str(line).unwrap()
        }
        assert!(
            told(r#"{"version":5,"revision":7,"reasons":{}}"#)
                .answer
                .is_none()
        );
        let line = r#"{"version":5,"answer":{"number":9,"packet":"45ff00"}}"#;
        let answer = told(line).answer.unwrap();
        assert_eq!((answer.number, answer.packet()), (9, vec![0x45, 0xff, 0]));
        for broken in ["4g", "é"] {
            let line = format!(r#"{{"answer":{{"number":9,"packet":"{broken}"}}}}"#);
            assert!(told(&line).answer.unwrap().packet().is_empty());
        }
    }

    #[test]
    fn a_report_reads_as_flows() {
        let line = r#"{"revision":7,"connected":true,"ready":true,"uplinks":[],"reasons":{"no_port":2},
            "flows":[{"number":9,"protocol":6,"inner":"192.0.0.8:40000","remote":"[2001:db8::1]:80",
            "outer":"192.0.2.1:16384","uplink":1,"answered":true,"choice":"next_usable","class":2,"rule":null,
            "age_ms":5000,"idle_ms":1000,"tx_packets":1,"tx_bytes":2,"rx_packets":3,"rx_bytes":4}]}"#;
        let report: Report = serde_json::from_str(line).unwrap();
        let now = KernelTime::from_nanos(60_000_000_000);
        let flow = report.flows.unwrap()[0].flow(now);
        assert_eq!(flow.choice, Choice::NextUsable);
        assert_eq!(now.since(flow.last_seen), Duration::from_secs(1));
        assert_eq!(now.since(flow.created), Duration::from_secs(5));
        assert_eq!((flow.assured, flow.rx.bytes), (true, 4));
    }
}
