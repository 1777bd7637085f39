//! Leaves the machine as it was found, whether the daemon does it or somebody after its death.

use braid_uplink::BOND_DEVICE;

use crate::bond;
use crate::plumbing::{Plan, Plumbing, Saved};
use crate::report::DownReport;
use crate::run_dir::RunDir;
use crate::state::{PreviousState, State};
use crate::user_error::UserError;

/// Undoes everything that an instance changed. Finding nothing is success; after a failure it may
/// be repeated.
///
/// # Errors
/// The first thing that could not be undone.
pub async fn remove(run_dir: &RunDir) -> Result<DownReport, UserError> {
    undo(run_dir, State::load(run_dir)?).await
}

/// As [`remove`], by what the caller knows was changed.
///
/// # Errors
/// As [`remove`].
pub async fn undo(run_dir: &RunDir, earlier: PreviousState) -> Result<DownReport, UserError> {
    let mut report = DownReport::default();
    if let PreviousState::State(state) = &earlier {
        state.check_network()?;
    }
    // Without a state nothing was changed here by this instance; another one's must stay.
    let (plumbing, saved) = match earlier {
        PreviousState::Nothing => (None, Saved::default()),
        PreviousState::State(state) => (Some(Plumbing::open()?), state.saved),
        PreviousState::Broken(why) => {
            report.undone.push(format!(
                "sysctls stay as Braid set them, what they were before is lost ({why})"
            ));
            (Some(Plumbing::open()?), Saved::default())
        }
    };
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
        if bond::remove_device()? {
            report.undone.push(format!("ip link delete {BOND_DEVICE}"));
        }
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
