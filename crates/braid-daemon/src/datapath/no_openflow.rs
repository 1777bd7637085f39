//! Stands for the datapath of Open vSwitch in a build without it: there never is one.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use braid_balance::{
    Attachments, ClassEntry, Counters, Evacuated, Flow, FlowActivity, Name, Opened, PathCacheEntry,
    RaceSettings, Release, Released, RuleEntry, Sticky, SweepReport, Upcall, UplinkCounters,
    UplinkEntry, UplinkForecast,
};
use braid_core::UplinkId;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;

use crate::config::DatapathConfig;
use crate::rules::SystemIds;

/// A datapath that cannot be made.
pub(crate) enum OpenFlow {}

/// Its upcalls, of which there are none.
pub(crate) enum DnsTap {}

/// Waits for it, of which there are none.
pub(crate) enum Acceptance {}

impl Acceptance {
    pub async fn wait(self, _: Duration) -> bool {
        match self {}
    }
}

impl DnsTap {
    pub fn readiness(&self) -> io::Result<OwnedFd> {
        match *self {}
    }

    pub fn next(&mut self) -> Option<Upcall> {
        match *self {}
    }
}

/// Does nothing if no bridge is at work.
///
/// # Errors
/// One is, which a full build has made.
pub(crate) async fn remove(run_dir: &RunDir) -> Result<Vec<String>, UserError> {
    match super::is_bridge_at_work(run_dir) {
        true => Err(missing()),
        false => Ok(Vec::new()),
    }
}

fn missing() -> UserError {
    UserError::new("openflow", "this build has no datapath of Open vSwitch")
        .fix("it is the small one for routers: take the full one, as make build makes it")
}

impl OpenFlow {
    pub async fn open(_: &DatapathConfig, _: &RunDir) -> Result<(Self, Opened), UserError> {
        Err(missing())
    }

    pub async fn attach(&mut self, _: &Attachments) -> Result<(), UserError> {
        match *self {}
    }

    pub async fn wait_ready(&self) -> Result<(), UserError> {
        match *self {}
    }

    pub fn release_control(&mut self) {
        match *self {}
    }

    pub fn problem(&self) -> Option<String> {
        match *self {}
    }

    pub fn bridge_problems(&self) -> Vec<(&'static str, String, String)> {
        match *self {}
    }

    pub fn set_uplinks(&mut self, _: &[UplinkEntry]) {
        match *self {}
    }

    pub fn set_classes(&mut self, _: &[ClassEntry]) {
        match *self {}
    }

    pub fn set_rules(&mut self, _: &[RuleEntry], _: &SystemIds) {
        match *self {}
    }

    pub fn set_race(&mut self, _: RaceSettings) {
        match *self {}
    }

    pub fn set_forecasts(&mut self, _: &[UplinkForecast]) {
        match *self {}
    }

    pub fn flow_activity(&self) -> Vec<FlowActivity> {
        match *self {}
    }

    pub fn path_cache(&self) -> Vec<PathCacheEntry> {
        match *self {}
    }

    pub fn path_cache_entry(&self, _: IpAddr) -> Option<PathCacheEntry> {
        match *self {}
    }

    pub fn restore_path_cache(&mut self, _: &[PathCacheEntry]) {
        match *self {}
    }

    pub fn limit_clients(&mut self, _: &[IpAddr]) {
        match *self {}
    }

    pub fn evacuate(&self, _: UplinkId, _: bool, _: impl Fn(IpAddr) -> bool) -> Evacuated {
        match *self {}
    }

    pub fn release(&mut self, _: impl Fn(&Flow) -> Release) -> Released {
        match *self {}
    }

    pub fn swept(&self) -> SweepReport {
        match *self {}
    }

    pub fn flows(&self) -> Vec<Flow> {
        match *self {}
    }

    pub fn counters(&self) -> Counters {
        match *self {}
    }

    pub fn prompt_packets(&mut self) -> BTreeMap<UplinkId, [u64; 2]> {
        match *self {}
    }

    pub fn line_counters(&mut self) -> BTreeMap<UplinkId, UplinkCounters> {
        match *self {}
    }

    pub fn max_flows(&self) -> u32 {
        match *self {}
    }

    pub fn acceptance(&self) -> Option<Acceptance> {
        match *self {}
    }

    pub async fn tell_senders(&mut self) -> Result<(), UserError> {
        match *self {}
    }

    pub fn learn_names(&mut self, _: &[(IpAddr, Name)]) {
        match *self {}
    }

    pub fn keep_names(&mut self, _: u32) {
        match *self {}
    }

    pub fn forget_names(&mut self, _: &[IpAddr]) {
        match *self {}
    }

    pub fn sticky(&self) -> Vec<Sticky> {
        match *self {}
    }

    pub fn forget_sticky(&mut self, _: impl Fn(&Sticky) -> bool) -> usize {
        match *self {}
    }

    pub fn snoop_dns(&mut self, _: bool) {
        match *self {}
    }

    pub fn upcalls(&self) -> Result<DnsTap, UserError> {
        match *self {}
    }
}
