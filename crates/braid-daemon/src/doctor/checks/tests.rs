//! Tables: one changed fact on a healthy machine, and the resulting findings.

use std::net::Ipv4Addr;

use braid_uplink::{Candidate, Layer, NextHop, RejectReason, Rejected};

use super::*;
use crate::doctor::environment_facts::Environment;
use crate::doctor::targets::TargetResults;
use crate::plumbing::{Family, ForeignRule};

fn uplink(name: &str, index: u8) -> Uplink {
    Uplink {
        name: name.to_owned(),
        device: name.to_owned(),
        ifindex: index.into(),
        layer: Layer::L2,
        mtu: 1500,
        v4: Some(NextHop {
            address: Ipv4Addr::new(10, index, 0, 2),
            gateway: Some(Ipv4Addr::new(10, index, 0, 1)),
            others: Vec::new(),
            metric: 0,
            advertised: false,
            on_link: None,
        }),
        v6: None,
        why: "default route metric 0".to_owned(),
    }
}

fn healthy() -> Facts {
    let sysctls = [
        (PORT_RANGE, "32768\t60999"),
        (V4_FORWARD, "0"),
        (RP_FILTER_ALL, "0"),
    ];
    Facts {
        capabilities: u64::MAX,
        release: "6.12.9-amd64".to_owned(),
        bpf: true,
        btf: true,
        refused: Some(Vec::new()),
        no_tun: None,
        sysctls_locked: None,
        discovery: Ok(Discovery {
            uplinks: vec![uplink("dsl", 1), uplink("lte", 2)],
            rejected: Vec::new(),
        }),
        foreign_device: None,
        running: false,
        earlier_rules: Vec::new(),
        sysctls: sysctls.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        firewall: Vec::new(),
        mwan3: false,
        networkd_removes_rules: false,
        environment: Environment {
            cgroups: Some("/sys/fs/cgroup".into()),
            clock: 1_800_000_000,
            run_space: Some(("/run".into(), 400_000_000)),
            unit: Some("active".to_owned()),
            conntrack: Some((1000, 262_144)),
            ..Environment::default()
        },
        targets: Some(TargetResults::of(&[
            ("icmp:1.1.1.1", "dsl", true),
            ("icmp:1.1.1.1", "lte", true),
        ])),
    }
}

/// Returns the findings that are not fine, one per line.
fn complaints(change: impl FnOnce(&mut Facts)) -> String {
    let mut facts = healthy();
    change(&mut facts);
    let findings = run(&facts, &[16384..=32767]);
    let bad = findings.iter().filter(|f| f.level != Level::Ok);
    bad.map(|f| format!("{:?} {}: {}\n", f.level, f.code, f.text))
        .collect()
}

#[test]
fn a_healthy_machine_has_nothing_but_ok() {
    assert_eq!(complaints(|_| {}), "");
    let codes: Vec<_> = run(&healthy(), &[]).into_iter().map(|f| f.code).collect();
    assert_eq!(
        codes,
        [
            "capabilities",
            "kernel",
            "bpf",
            "sysctl",
            "device-name",
            "tun",
            "programs",
            "uplinks",
            "rp-filter",
            "forwarding",
            "port-range",
            "cgroup2",
            "clock",
            "run-space",
            "unit",
            "conntrack",
            "targets",
        ]
    );
}

#[test]
fn what_the_verifier_says_is_told() {
    let said = "program braid_outbound: Permission denied (os error 13); R2 invalid mem access";
    assert_eq!(
        complaints(|f| f.refused = Some(vec![said.to_owned(), "map turns: invalid".to_owned()])),
        format!(
            "Fail programs: the kernel refuses the datapath's programs: {said}; map turns: invalid\n"
        )
    );
    // Another finding gives the reason why it was not tried.
    assert_eq!(complaints(|f| f.refused = None), "");
    // Nothing is lost without BTF.
    assert_eq!(complaints(|f| f.btf = false), "");
    let finding = edge_programs(&["program braid_join: Invalid argument".to_owned()]);
    assert_eq!(finding.level, Level::Warn);
    assert_eq!(
        finding.text,
        "no edge can run: program braid_join: Invalid argument"
    );
}

#[test]
fn what_keeps_a_bond_from_running_is_a_warning() {
    assert_eq!(
        complaints(|f| f.no_tun = Some("no such file".to_owned())),
        "Warn tun: no hub can be joined: /dev/net/tun: no such file\n"
    );
}

#[test]
fn what_keeps_braid_from_running_fails() {
    assert_eq!(
        complaints(|f| f.capabilities = 1 << 12 | 1 << 39),
        "Fail capabilities: lacks CAP_SYS_ADMIN (to mount its bpffs and load programs)\n"
    );
    assert_eq!(
        complaints(|f| f.capabilities = 0),
        "Fail capabilities: lacks CAP_NET_ADMIN (to change routes and attach programs), \
         CAP_SYS_ADMIN (to mount its bpffs and load programs)\n"
    );
    assert_eq!(
        complaints(|f| f.release = "5.9.16".to_owned()),
        "Fail kernel: kernel 5.9.16 is too old: 5.10 or newer is needed\n"
    );
    assert_eq!(
        complaints(|f| f.bpf = false),
        "Fail bpf: the kernel was built without BPF (no bpf in /proc/filesystems)\n"
    );
    assert_eq!(
        complaints(|f| f.foreign_device = Some("braid0")),
        "Fail device-name: a device named braid0 exists and is not braid's\n"
    );
    assert_eq!(
        complaints(|f| f.discovery = Ok(Discovery::default())),
        "Fail uplinks: no uplink: the main routing table has no default route\n"
    );
    let rejected = Rejected {
        candidate: Candidate {
            name: "eth0".to_owned(),
            device: "eth0".to_owned(),
        },
        reason: RejectReason::NoCarrier,
    };
    let nothing = Discovery {
        uplinks: Vec::new(),
        rejected: vec![rejected],
    };
    assert_eq!(
        complaints(|f| f.discovery = Ok(nothing)),
        "Fail uplinks: no uplink; eth0: no carrier\n"
    );
}

#[test]
fn kernels_before_tcx_are_fine() {
    let judged = run(
        &Facts {
            release: "5.10.0-30".to_owned(),
            ..healthy()
        },
        &[],
    );
    assert!(judged[1].text.contains("clsact") && judged[1].level == Level::Ok);
}

#[test]
fn one_uplink_is_a_warning() {
    assert_eq!(
        complaints(|f| f.discovery.as_mut().unwrap().uplinks.truncate(1)),
        "Warn uplinks: only one uplink: dsl (default route metric 0): there is nothing to \
         balance\n"
    );
}

#[test]
fn port_ranges_that_overlap_are_counted() {
    let range = |text: &str| {
        let value = text.to_owned();
        complaints(|f| drop(f.sysctls.insert(PORT_RANGE.to_owned(), value)))
    };
    assert_eq!(range("1024\t60999"), "");
    assert_eq!(
        range("16384\t32768"),
        "Warn port-range: local sockets use ports 16384-32768, of which braid takes \
         16384-32767: 1 remain for them\n"
    );
    assert!(range("20000\t30000").starts_with("Fail port-range"));
}

#[test]
fn other_tools_are_named() {
    let rule = ForeignRule {
        family: Family::V4,
        preference: 2001,
        selector: " fwmark 0x100/0x3f00".to_owned(),
        table: 1,
    };
    let text = complaints(|f| f.earlier_rules.push(rule));
    assert!(
        text.ends_with("-4 pref 2001 fwmark 0x100/0x3f00 lookup 1\n"),
        "{text}"
    );
    assert!(complaints(|f| f.mwan3 = true).starts_with("Warn mwan3"));
    assert!(complaints(|f| f.networkd_removes_rules = true).starts_with("Warn networkd"));
}

#[test]
fn firewall_rules_that_no_longer_match_are_shown() {
    let with = |line: &str| {
        let line = line.to_owned();
        complaints(|f| {
            f.firewall.push(line);
            f.sysctls.insert(V4_FORWARD.to_owned(), "1".to_owned());
        })
    };
    assert_eq!(with("oifname \"dsl\" masquerade"), "");
    assert_eq!(with("-A POSTROUTING -o dsl -j MASQUERADE"), "");
    assert!(with("masquerade").starts_with("Warn masquerade"));
    assert!(with("-A POSTROUTING -j MASQUERADE").starts_with("Warn masquerade"));
    assert!(
        with("iifname \"lan\" oifname { \"dsl\", \"lte\" } accept").starts_with("Warn firewall")
    );
    assert!(with("-A FORWARD -o lte -j ACCEPT").starts_with("Warn firewall"));
    assert_eq!(with("-A FORWARD -o dsl2 -j ACCEPT"), "");
    assert_eq!(with("-A FORWARD -i dsl -o lan -j ACCEPT"), "");
    assert_eq!(with("iifname \"dsl\" oifname != \"dsl\" accept"), "");
}

#[test]
fn what_else_runs_here_is_named() {
    let rival = complaints(|facts| {
        facts.environment.programs.insert("mwan3track".to_owned());
    });
    assert!(
        rival.starts_with("Warn conflicting-program: mwan3track runs"),
        "{rival}"
    );
    let manager = complaints(|facts| {
        facts.environment.connectivity_checks = true;
        facts
            .environment
            .programs
            .insert("NetworkManager".to_owned());
    });
    assert!(manager.starts_with("Warn networkmanager:"), "{manager}");
    let foreign = complaints(|facts| {
        facts.environment.foreign_programs = vec![("dsl".to_owned(), "shaper".to_owned())];
    });
    assert_eq!(
        foreign,
        "Warn foreign-program: programs that are not braid's are where its own go: shaper on dsl\n"
    );
}

#[test]
fn what_the_machine_lacks_is_named() {
    let lacks = complaints(|facts| {
        facts.environment = Environment {
            run_space: Some(("/run".into(), 0)),
            unit: Some("failed".to_owned()),
            conntrack: Some((9, 10)),
            ..Environment::default()
        };
    });
    let codes: Vec<&str> = lacks
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(
        codes,
        [
            "Warn cgroup2",
            "Warn clock",
            "Fail run-space",
            "Warn unit",
            "Warn conntrack"
        ]
    );
}

#[test]
fn targets_that_never_answer_are_named() {
    let tried =
        |tries: &[(&str, &str, bool)]| complaints(|f| f.targets = Some(TargetResults::of(tries)));
    let nobody = tried(&[
        ("icmp:1.1.1.1", "dsl", false),
        ("icmp:1.1.1.1", "lte", false),
    ]);
    assert!(
        nobody.starts_with("Warn targets: no target answers on any uplink (icmp:1.1.1.1)"),
        "{nobody}"
    );
    let one = tried(&[
        ("icmp:1.1.1.1", "dsl", true),
        ("icmp:1.1.1.1", "lte", false),
        ("icmp:192.0.2.1", "dsl", false),
    ]);
    assert_eq!(
        one,
        "Warn targets: targets that answer on no uplink count for nothing: icmp:192.0.2.1\n\
         Warn uplink-silent: lte: nothing answers there that answers on another uplink\n"
    );
}
