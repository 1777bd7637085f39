//! Reports as text for people.

use braid_daemon::doctor::Level;
use braid_daemon::report::{
    CapacityBasisName, CapacityReport, DoctorReport, FlowReport, FlowsReport, KnownReport,
    NextHopReport, QualityBasisName, ShapingReport, StatusReport, UpReport, UplinkReport,
    UplinkState, VersionReport,
};
use braid_host::config::Paint;
use braid_host::report::HealthProblem;

use crate::bond;
use crate::pause;
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::{Tint, tinted};

/// Renders `braid status`.
pub fn status(report: &StatusReport, paint: Paint) -> String {
    let mut table = Table::new(&[
        ("UPLINK", Side::Left),
        ("STATE", Side::Left),
        ("RTT ms", Side::Right),
        ("LOSS %", Side::Right),
        ("DOWN Mbit/s", Side::Right),
        ("CAPACITY", Side::Right),
        ("UP Mbit/s", Side::Right),
        ("CAPACITY", Side::Right),
        ("SHARE %", Side::Right),
        ("FLOWS opened", Side::Right),
        ("TX MB", Side::Right),
        ("RX MB", Side::Right),
        ("WHY", Side::Left),
    ]);
    for uplink in &report.uplinks {
        table.row(vec![
            uplink.name.as_str().into(),
            state(uplink.state),
            tenths(uplink.rtt_ms).into(),
            tenths(uplink.loss.map(|loss| loss * 100.0)).into(),
            megabits(uplink.rx_bit_s).into(),
            capacity(uplink.rx_capacity.as_ref()).into(),
            megabits(uplink.tx_bit_s).into(),
            capacity(uplink.tx_capacity.as_ref()).into(),
            percent(uplink.share).into(),
            uplink.flows_opened.to_string().into(),
            megabytes(uplink.tx_bytes).into(),
            megabytes(uplink.rx_bytes).into(),
            uplink.why.as_str().into(),
        ]);
    }
    let sum = |of: fn(&UplinkReport) -> u64| report.uplinks.iter().map(of).sum::<u64>();
    let rates = |of: fn(&UplinkReport) -> Option<u64>| {
        let known: Option<u64> = report.uplinks.iter().map(of).sum();
        megabits(known.filter(|_| !report.uplinks.is_empty()))
    };
    table.row(vec![
        "total".into(),
        "".into(),
        "".into(),
        "".into(),
        rates(|uplink| uplink.rx_bit_s).into(),
        "".into(),
        rates(|uplink| uplink.tx_bit_s).into(),
        "".into(),
        "".into(),
        sum(|uplink| uplink.flows_opened).to_string().into(),
        megabytes(sum(|uplink| uplink.tx_bytes)).into(),
        megabytes(sum(|uplink| uplink.rx_bytes)).into(),
        format!("policy {}", report.policy).into(),
    ]);
    let flows = &report.flows;
    let mut text = table.render(paint);
    if let Some(bond) = &report.bond {
        text.push('\n');
        text.push_str(&bond::text(bond, paint));
    }
    text.push_str(&format!(
        "# flows: {} established, {} waiting for a first answer; {} MB of kernel memory\n",
        flows.established,
        flows.embryonic,
        megabytes(report.memory_bytes),
    ));
    text.push_str(&pause::paused_rules(&report.paused_rules));
    text.push_str(&health(&report.health, paint));
    text
}

pub fn health(health: &[HealthProblem], paint: Paint) -> String {
    if health.is_empty() {
        return format!("# health: {}\n", tinted("good", Tint::Good, paint));
    }
    let mut text = String::new();
    for finding in health {
        let line = format!("# health: {} ({})", finding.text, finding.code);
        text.push_str(&tinted(&line, Tint::Warn, paint));
        text.push('\n');
        if !finding.fix.is_empty() {
            text.push_str(&format!("#    fix: {}\n", finding.fix));
        }
    }
    text
}

/// Renders `braid uplinks`, and the uplinks of `braid up`.
pub fn uplinks(uplinks: &[UplinkReport], paint: Paint) -> String {
    let mut table = Table::new(&[
        ("UPLINK", Side::Left),
        ("DEVICE", Side::Left),
        ("STATE", Side::Left),
        ("TIER", Side::Right),
        ("MTU bytes", Side::Right),
        ("IPV4", Side::Left),
        ("IPV6", Side::Left),
        ("DOWN Mbit/s", Side::Right),
        ("CAPACITY", Side::Right),
        ("UP Mbit/s", Side::Right),
        ("CAPACITY", Side::Right),
        ("WEIGHT", Side::Right),
        ("SHARE %", Side::Right),
        ("WHY", Side::Left),
    ]);
    for uplink in uplinks {
        table.row(vec![
            uplink.name.as_str().into(),
            uplink.device.as_str().into(),
            state(uplink.state),
            uplink.tier.to_string().into(),
            uplink.mtu.to_string().into(),
            next_hop(uplink.ipv4.as_ref()).into(),
            next_hop(uplink.ipv6.as_ref()).into(),
            megabits(uplink.rx_bit_s).into(),
            capacity(uplink.rx_capacity.as_ref()).into(),
            megabits(uplink.tx_bit_s).into(),
            capacity(uplink.tx_capacity.as_ref()).into(),
            uplink.weight.to_string().into(),
            percent(uplink.share).into(),
            uplink.why.as_str().into(),
        ]);
    }
    let mut text = table.render(paint);
    text.push_str(&link_quality(uplinks, paint));
    let sends_twice = uplinks.iter().filter(|uplink| uplink.sends_twice);
    text.extend(sends_twice.map(|uplink| {
        format!(
            "# {} loses packets: the first ones of a flow go twice\n",
            uplink.name
        )
    }));
    text.extend(uplinks.iter().filter_map(shaping));
    text
}

/// Renders round trip, jitter and loss of the uplinks of which something is known, with the evidence.
fn link_quality(uplinks: &[UplinkReport], paint: Paint) -> String {
    let evidence = |known: Option<KnownReport>| {
        let Some(known) = known else {
            return NO_VALUE.to_owned();
        };
        let basis = match known.basis {
            QualityBasisName::Traffic => "traffic",
            QualityBasisName::Probes => "probes",
        };
        format!("{basis} {}", age(known.age_ms))
    };
    let mut table = Table::new(&[
        ("UPLINK", Side::Left),
        ("RTT ms", Side::Right),
        ("KNOWN BY", Side::Left),
        ("JITTER ms", Side::Right),
        ("KNOWN BY", Side::Left),
        ("LOSS %", Side::Right),
        ("KNOWN BY", Side::Left),
    ]);
    let is_known =
        |uplink: &&UplinkReport| uplink.rtt_known.is_some() || uplink.loss_known.is_some();
    let known: Vec<_> = uplinks.iter().filter(is_known).collect();
    for uplink in &known {
        table.row(vec![
            uplink.name.as_str().into(),
            tenths(uplink.rtt_ms).into(),
            evidence(uplink.rtt_known).into(),
            tenths(uplink.jitter_ms).into(),
            evidence(uplink.jitter_known).into(),
            share(uplink.loss).into(),
            evidence(uplink.loss_known).into(),
        ]);
    }
    match known.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.render(paint)),
    }
}

/// Renders the rates that an uplink is shaped to, and their effect.
fn shaping(uplink: &UplinkReport) -> Option<String> {
    let one = |direction: &str, found: &ShapingReport| {
        let rate = match found.rate_bit_s {
            Some(rate) => format!("{} Mbit/s", megabits(Some(rate))),
            None => "not yet".to_owned(),
        };
        let (dropped, marked) = (found.dropped_packets, found.marked_packets);
        format!("{direction} {rate} ({dropped} packets dropped, {marked} marked)")
    };
    let (down, up) = (uplink.rx_shaping.as_ref()?, uplink.tx_shaping.as_ref()?);
    let (down, up) = (one("down", down), one("up", up));
    Some(format!("# {} shaped to: {down}, {up}\n", uplink.name))
}

/// Renders a capacity: rate, expected error, the way in which it is known, and age; or the rate that it exceeds. If
/// the other method has found something else, that follows.
fn capacity(report: Option<&CapacityReport>) -> String {
    let Some(found) = report else {
        return NO_VALUE.to_owned();
    };
    let other = found
        .other
        .as_deref()
        .filter(|other| disagree(found, other));
    let one = one_capacity(found);
    other.map_or_else(
        || one.clone(),
        |other| format!("{one} ({})", one_capacity(other)),
    )
}

fn one_capacity(found: &CapacityReport) -> String {
    let (megabits, age) = (found.rate_bit_s as f64 / 1e6, age(found.age_ms));
    let way = match found.basis {
        CapacityBasisName::AtLeast => return format!("> {megabits:.1} {age}"),
        CapacityBasisName::Saturated => "traffic",
        CapacityBasisName::Transfer => "transfer",
        CapacityBasisName::Dispersion => "dispersion",
    };
    format!("{megabits:.1} ±{:.0} % {way} {age}", found.error * 100.0)
}

/// Returns true if two estimates cannot both be right, by what they say of their errors.
fn disagree(one: &CapacityReport, other: &CapacityReport) -> bool {
    let range = |of: &CapacityReport| {
        let rate = of.rate_bit_s as f64;
        match of.basis {
            CapacityBasisName::AtLeast => (rate, f64::INFINITY),
            _ => (rate * (1.0 - of.error), rate * (1.0 + of.error)),
        }
    };
    let ((low, high), (least, most)) = (range(one), range(other));
    high < least || most < low
}

fn megabits(rate_bit_s: Option<u64>) -> String {
    tenths(rate_bit_s.map(|rate| rate as f64 / 1e6))
}

fn age(milliseconds: u64) -> String {
    match milliseconds / 1000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Renders the answer of `braid up`.
pub fn up(report: &UpReport, paint: Paint) -> String {
    let mut text = uplinks(&report.uplinks, paint);
    let adopted = if report.adopted {
        ", took over the datapath at work"
    } else {
        ""
    };
    text.push_str(&format!(
        "# up: process {}, policy {}{adopted}\n",
        report.pid, report.policy
    ));
    for candidate in &report.skipped {
        text.push_str(&format!("# not taken: {candidate}\n"));
    }
    text
}

/// Renders `braid flows`, the most recently active first.
pub fn flows(report: &FlowsReport, paint: Paint) -> String {
    flow_table(&report.flows, paint)
}

/// Renders a table of flows, the most recently active first.
pub fn flow_table(flows: &[FlowReport], paint: Paint) -> String {
    let mut table = Table::new(&[
        ("PROTOCOL", Side::Left),
        ("INNER", Side::Left),
        ("REMOTE", Side::Left),
        ("OUTER", Side::Left),
        ("UPLINK", Side::Left),
        ("STATE", Side::Left),
        ("AGE s", Side::Right),
        ("IDLE s", Side::Right),
        ("TX kB", Side::Right),
        ("RX kB", Side::Right),
        ("WHY", Side::Left),
    ]);
    let mut flows: Vec<&FlowReport> = flows.iter().collect();
    flows.sort_by_key(|flow| flow.idle_ms);
    for flow in flows {
        table.row(vec![
            flow.protocol.as_str().into(),
            flow.inner.as_str().into(),
            flow.remote.as_deref().unwrap_or("any").into(),
            flow.outer.as_str().into(),
            flow.uplink.as_str().into(),
            flow.state.as_str().into(),
            seconds(flow.age_ms).into(),
            seconds(flow.idle_ms).into(),
            kilobytes(flow.tx_bytes).into(),
            kilobytes(flow.rx_bytes).into(),
            flow.why.as_str().into(),
        ]);
    }
    table.render(paint)
}

/// Renders `braid doctor`.
pub fn doctor(report: &DoctorReport, paint: Paint) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let (word, tint) = match finding.level {
            Level::Ok => ("ok  ", Tint::Good),
            Level::Warn => ("WARN", Tint::Warn),
            Level::Fail => ("FAIL", Tint::Bad),
        };
        text.push_str(&format!(
            "{}  {}\n",
            tinted(word, tint, paint),
            finding.text
        ));
        if !finding.fix.is_empty() {
            text.push_str(&format!("      fix: {}\n", finding.fix));
        }
    }
    text
}

/// Renders `braid version`.
pub fn version(report: &VersionReport) -> String {
    let commit = report
        .commit
        .as_deref()
        .unwrap_or("not built from a repository");
    let datapath = report.datapath.as_ref().map_or_else(
        || "not at work here".to_owned(),
        |datapath| {
            format!(
                "{}, looked after by process {}",
                datapath.version, datapath.pid
            )
        },
    );
    format!(
        "braid     {}\ncommit    {commit}\nkernel    {}\ndatapath  {datapath}\n",
        report.version, report.kernel
    )
}

/// Renders a state.
pub fn state(state: UplinkState) -> Cell {
    let tint = match state {
        UplinkState::Up => Tint::Good,
        UplinkState::Standby | UplinkState::Paused => Tint::None,
        UplinkState::Degraded => Tint::Warn,
        UplinkState::Portal | UplinkState::Dead | UplinkState::Down => Tint::Bad,
    };
    Cell::tinted(state.as_str(), tint)
}

fn next_hop<A: std::fmt::Display>(next_hop: Option<&NextHopReport<A>>) -> String {
    match next_hop {
        None => NO_VALUE.to_owned(),
        Some(NextHopReport {
            address,
            gateway: None,
        }) => address.to_string(),
        Some(NextHopReport {
            address,
            gateway: Some(gateway),
        }) => format!("{address} via {gateway}"),
    }
}

/// Formats a value with one decimal, if there is one.
pub fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| NO_VALUE.to_owned(), |value| format!("{value:.1}"))
}

/// Formats a fraction in percent.
pub fn percent(fraction: f64) -> String {
    format!("{:.1}", fraction * 100.0)
}

/// Formats a fraction in percent, if there is one.
pub fn share(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| NO_VALUE.to_owned(), percent)
}

/// Formats bytes as megabytes.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn kilobytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e3)
}

/// Formats milliseconds as seconds.
pub fn seconds(milliseconds: u64) -> String {
    format!("{:.1}", milliseconds as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_daemon::config::Policy;
    use braid_daemon::report::{FlowCounts, LayerName};

    fn uplink(name: &str, state: UplinkState, share: f64, why: &str) -> UplinkReport {
        UplinkReport {
            name: name.into(),
            device: format!("{name}0"),
            id: 0,
            layer: LayerName::L2,
            state,
            tier: 1,
            rtt_ms: state.takes_new_flows().then_some(21.4),
            rtt_known: None,
            jitter_ms: None,
            jitter_known: None,
            loss: state.takes_new_flows().then_some(0.025),
            loss_known: None,
            sends_twice: false,
            probe_rtt_ms: None,
            probe_loss: None,
            mtu: 1500,
            ipv4: Some(NextHopReport {
                address: [192, 0, 2, 2].into(),
                gateway: Some([192, 0, 2, 1].into()),
            }),
            ipv6: None,
            weight: 3,
            tx_bit_s: Some(if state.takes_new_flows() { 200_000 } else { 0 }),
            rx_bit_s: Some(if state.takes_new_flows() {
                17_400_000
            } else {
                0
            }),
            tx_capacity: None,
            rx_capacity: None,
            tx_shaping: None,
            rx_shaping: None,
            share,
            tx_bytes: 1_250_000,
            rx_bytes: 98_000_000,
            tx_packets: 900,
            rx_packets: 70_000,
            flows_opened: 42,
            quota_used_bytes: None,
            quota_bytes: None,
            data_packets: 0,
            lost_packets: 0,
            since_unix_ms: None,
            pause: None,
            why: why.into(),
        }
    }

    fn report() -> StatusReport {
        StatusReport {
            version: "0.1.0".into(),
            pid: 4711,
            policy: Policy::Wrr,
            uplinks: vec![
                uplink("dsl", UplinkState::Up, 1.0, "default route metric 100"),
                uplink("lte", UplinkState::Down, 0.0, "no carrier"),
            ],
            bond: None,
            flows: FlowCounts {
                established: 30,
                embryonic: 2,
            },
            reasons: [("out_flow".to_owned(), 900)].into(),
            memory_bytes: 12_300_000,
            paused_rules: vec![],
            health: vec![HealthProblem {
                code: "uplink-down".into(),
                text: "lte: no carrier; new flows take the other uplinks".into(),
                fix: "plug it in".into(),
            }],
        }
    }

    #[test]
    fn status_is_a_table_and_health_lines() {
        let expected = "\
UPLINK  STATE  RTT ms  LOSS %  DOWN Mbit/s  CAPACITY  UP Mbit/s  CAPACITY  SHARE %  FLOWS opened  TX MB  RX MB  WHY
dsl     up       21.4     2.5         17.4         –        0.2         –    100.0            42    1.2   98.0  default route metric 100
lte     down        –       –          0.0         –        0.0         –      0.0            42    1.2   98.0  no carrier
total                                 17.4                  0.2                               84    2.5  196.0  policy wrr
# flows: 30 established, 2 waiting for a first answer; 12.3 MB of kernel memory
# health: lte: no carrier; new flows take the other uplinks (uplink-down)
#    fix: plug it in
";
        assert_eq!(status(&report(), Paint::Plain), expected);
    }

    #[test]
    fn uplinks_show_addresses_gateways_capacities_and_shaping() {
        let expected = "\
UPLINK  DEVICE  STATE  TIER  MTU bytes  IPV4                     IPV6  DOWN Mbit/s                                          CAPACITY  UP Mbit/s   CAPACITY  WEIGHT  SHARE %  WHY
dsl     dsl0    up        1       1500  192.0.2.2 via 192.0.2.1  –            17.4  19.8 ±1 % traffic 3 s (25.0 ±2 % transfer 7 min)        0.2  > 0.4 3 s       3    100.0  default route metric 100
lte     lte0    down      1       1500  192.0.2.2 via 192.0.2.1  –             0.0                                                 –        0.0          –       3      0.0  no carrier
# dsl shaped to: down 18.8 Mbit/s (12 packets dropped, 3 marked), up not yet (0 packets dropped, 0 marked)
";
        let mut report = report();
        report.uplinks[0].rx_shaping = Some(ShapingReport {
            rate_bit_s: Some(18_800_000),
            dropped_packets: 12,
            marked_packets: 3,
        });
        report.uplinks[0].tx_shaping = Some(ShapingReport {
            rate_bit_s: None,
            dropped_packets: 0,
            marked_packets: 0,
        });
        let capacity = |basis, rate_bit_s| CapacityReport {
            rate_bit_s,
            basis,
            error: 0.01,
            age_ms: 3_400,
            other: None,
        };
        let mut down = capacity(CapacityBasisName::Saturated, 19_800_000);
        let transfer = CapacityReport {
            error: 0.02,
            age_ms: 420_000,
            ..capacity(CapacityBasisName::Transfer, 25_000_000)
        };
        down.other = Some(Box::new(transfer));
        report.uplinks[0].rx_capacity = Some(down);
        report.uplinks[0].tx_capacity = Some(capacity(CapacityBasisName::AtLeast, 400_000));
        assert_eq!(uplinks(&report.uplinks, Paint::Plain), expected);
    }

    #[test]
    fn round_trips_jitter_and_loss_are_shown_with_their_evidence() {
        let mut report = report();
        let plain = uplinks(&report.uplinks, Paint::Plain);
        let known = |basis, age_ms| Some(KnownReport { basis, age_ms });
        let dsl = &mut report.uplinks[0];
        dsl.rtt_known = known(QualityBasisName::Traffic, 900);
        dsl.jitter_ms = Some(1.26);
        dsl.jitter_known = known(QualityBasisName::Traffic, 4_200);
        dsl.loss_known = known(QualityBasisName::Probes, 120_000);
        dsl.sends_twice = true;
        let text = uplinks(&report.uplinks, Paint::Plain);
        let expected = "
UPLINK  RTT ms  KNOWN BY     JITTER ms  KNOWN BY     LOSS %  KNOWN BY
dsl       21.4  traffic 0 s        1.3  traffic 4 s     2.5  probes 2 min
# dsl loses packets: the first ones of a flow go twice
";
        assert_eq!(text.strip_prefix(&plain), Some(expected));
    }

    #[test]
    fn flows_come_most_recent_first() {
        let flow = |inner: &str, remote: Option<&str>, idle_ms| FlowReport {
            protocol: "udp".into(),
            inner: inner.into(),
            remote: remote.map(str::to_owned),
            outer: "192.0.2.2:5000".into(),
            uplink: "dsl".into(),
            state: "established".into(),
            age_ms: 2500,
            idle_ms,
            tx_bytes: 1234,
            rx_bytes: 0,
            tx_packets: 3,
            rx_packets: 0,
            previous_uplink: None,
            why: "next slot".into(),
        };
        let report = FlowsReport {
            flows: vec![
                flow("10.0.0.2:5000", None, 900),
                flow("10.0.0.3:5000", Some("198.51.100.1:443"), 100),
            ],
            matching: 2,
        };
        let expected = "\
PROTOCOL  INNER          REMOTE            OUTER           UPLINK  STATE        AGE s  IDLE s  TX kB  RX kB  WHY
udp       10.0.0.3:5000  198.51.100.1:443  192.0.2.2:5000  dsl     established    2.5     0.1    1.2    0.0  next slot
udp       10.0.0.2:5000  any               192.0.2.2:5000  dsl     established    2.5     0.9    1.2    0.0  next slot
";
        assert_eq!(flows(&report, Paint::Plain), expected);
    }

    #[test]
    fn findings_come_with_the_mending_command() {
        let finding = |level, text: &str, fix: &str| braid_daemon::doctor::Finding {
            code: "x".into(),
            level,
            text: text.into(),
            fix: fix.into(),
        };
        let report = DoctorReport {
            findings: vec![
                finding(Level::Ok, "kernel 6.1", ""),
                finding(Level::Fail, "no uplink", "ip route add default via GATEWAY"),
            ],
        };
        let expected = "\
ok    kernel 6.1
FAIL  no uplink
      fix: ip route add default via GATEWAY
";
        assert_eq!(doctor(&report, Paint::Plain), expected);
    }
}
