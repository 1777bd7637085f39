//! Leaves the machine as it was found, whether the daemon does it or somebody after its death.

use crate::failure::Failure;
use crate::plumbing::{Plan, Plumbing};
use crate::report::DownReport;
use crate::run_dir::RunDir;
use crate::state::State;

/// Undoes everything that an instance changed. Finding nothing is success; after a failure it may
/// be repeated.
///
/// # Errors
/// The first thing that could not be undone.
pub async fn remove(run_dir: &RunDir) -> Result<DownReport, Failure> {
    let mut report = DownReport::default();
    let state = State::load(run_dir)?;
    if let Some(state) = &state {
        state.check_network()?;
    }
    let saved = state.clone().map(|state| state.saved).unwrap_or_default();
    // Without a state nothing was changed here by this instance; another one's must stay.
    let plumbing = state.as_ref().map(|_| Plumbing::open()).transpose()?;
    if let Some(plumbing) = &plumbing {
        // Traffic first goes its old way again; only then does the datapath go.
        let off = plumbing.undivert().await?;
        report.undone.extend(lines(&off));
    }
    let removed = braid_balance::remove(&run_dir.pins())?;
    if removed.programs > 0 || removed.attachments > 0 {
        report.undone.push(format!(
            "datapath: {} programs detached from {} hooks, {} tables freed",
            removed.programs, removed.attachments, removed.maps
        ));
    }
    if let Some(plumbing) = &plumbing {
        let rest = plumbing.remove(&saved).await?;
        report.undone.extend(lines(&rest));
    }
    if run_dir.unmount_bpffs()? {
        report
            .undone
            .push(format!("umount {}", run_dir.bpffs().display()));
    }
    run_dir.clear()?;
    Ok(report)
}

fn lines(plan: &Plan) -> impl Iterator<Item = String> {
    plan.steps.iter().map(ToString::to_string)
}
