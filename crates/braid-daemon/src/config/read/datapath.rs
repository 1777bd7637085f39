//! `[datapath]`.

use std::ops::Range;
use std::path::PathBuf;

use braid_host::config::{Problem, Table};
use toml::de::DeTable;

use super::super::{Config, DatapathConfig, DatapathKind, FailMode, Hook, OpenFlowMode};
use super::{DATAPATH, SECTIONS};

/// Returns the settings, and the place of `kind = "openflow"` if the file says so.
pub(super) fn datapath(
    inner: &DeTable<'_>,
    problems: &mut Vec<Problem>,
) -> (DatapathConfig, Option<Range<usize>>) {
    let mut table = Table::new(DATAPATH.0, DATAPATH.1, inner);
    let default = DatapathConfig::default();
    let kind = table.keyword::<DatapathKind>("kind", DatapathKind::NAMES, problems);
    let hook = table.keyword::<Hook>("hook", &["auto", "tcx", "clsact"], problems);
    let coexist = table.boolean("coexist", problems);
    let max_flows = table.count("max_flows", 1024..=16_777_216, problems);
    let max_embryonic = table.count("max_embryonic", 1024..=4_194_304, problems);
    let ovs_run_dir = table.text("ovs_run_dir", problems);
    let fail_mode = table.keyword::<FailMode>("fail_mode", FailMode::NAMES, problems);
    let mode = table.keyword::<OpenFlowMode>("openflow_mode", OpenFlowMode::NAMES, problems);
    table.finish(SECTIONS, problems);
    if let Some(folder) = &ovs_run_dir
        && !folder.value.starts_with('/')
    {
        let what = format!("`ovs_run_dir` cannot be {:?}", folder.value);
        problems.push(
            Problem::new(what, folder.at.clone(), "not a path from the top")
                .fix("write a path such as \"/run/openvswitch\""),
        );
    }
    let openflow = kind.filter(|kind| kind.value == DatapathKind::OpenFlow);
    if let Some(kind) = &openflow
        && !cfg!(feature = "openflow")
    {
        problems.push(
            Problem::new(
                "this build has no datapath of Open vSwitch",
                kind.at.clone(),
                "not in the build for routers",
            )
            .fix("take the full build, as make build makes it, or set kind = \"ebpf\""),
        );
    }
    let config = DatapathConfig {
        kind: openflow
            .as_ref()
            .map_or(default.kind, |_| DatapathKind::OpenFlow),
        hook: hook.map_or(default.hook, |hook| hook.value),
        coexist: coexist.unwrap_or(default.coexist),
        max_flows: max_flows.map_or(default.max_flows, |n| n.value),
        max_embryonic: max_embryonic.map_or(default.max_embryonic, |n| n.value),
        fail_mode: fail_mode.map_or(default.fail_mode, |mode| mode.value),
        openflow_mode: mode.map_or(default.openflow_mode, |mode| mode.value),
        ovs_run_dir: ovs_run_dir.map_or(default.ovs_run_dir, |folder| PathBuf::from(folder.value)),
    };
    (config, openflow.map(|kind| kind.at))
}

/// Refuses settings that a bridge of Open vSwitch cannot follow.
pub(super) fn refuse_missing(config: &Config, at: &Range<usize>, problems: &mut Vec<Problem>) {
    let default = DatapathConfig::default();
    let datapath = &config.datapath;
    let mut missing = config.missing_in_openflow();
    for (differs, what) in [
        (datapath.hook != default.hook, "hook"),
        (datapath.coexist, "coexist"),
        (
            datapath.max_embryonic != default.max_embryonic,
            "max_embryonic",
        ),
    ] {
        if differs {
            missing.push((format!("[datapath] {what}"), "remove it".to_owned()));
        }
    }
    if (datapath.fail_mode, datapath.openflow_mode) == (FailMode::Standalone, OpenFlowMode::Group) {
        let text = "`fail_mode = \"standalone\"` needs `openflow_mode = \"packet-in\"`";
        problems.push(
            Problem::new(text, at.clone(), "groups choose without a controller")
                .fix("remove one of them"),
        );
    }
    for (what, fix) in missing {
        let text = format!("{what} needs the eBPF datapath");
        let fix = format!("{fix}, or set kind = \"ebpf\"");
        problems.push(Problem::new(text, at.clone(), "does not have it").fix(fix));
    }
}
