//! Restores the machine, in the daemon or after its death.

use braid_host::run_dir::RunDir;
use braid_host::state::{PreviousState, State};
use braid_host::sysctl::Saved;
use braid_host::user_error::UserError;
use braid_uplink::BOND_DEVICE;

use crate::bond;
use crate::datapath::openflow;
use crate::plumbing::{Plan, Plumbing};
use crate::report::DownReport;
use crate::user_errors;

/// Undoes everything that an instance changed. Finding nothing is success; after a failure it may be repeated.
///
/// # Errors
/// The first change that could not be undone.
pub async fn remove(run_dir: &RunDir) -> Result<DownReport, UserError> {
    undo(run_dir, State::load(run_dir)?).await
}

/// Like [`remove`], with the recorded changes known to the caller.
///
/// # Errors
/// Like [`remove`].
pub async fn undo(run_dir: &RunDir, earlier: PreviousState) -> Result<DownReport, UserError> {
    let mut report = DownReport::default();
    if let PreviousState::State(state) = &earlier {
        state.check_network()?;
    }
    // Without a state this instance changed nothing here; that of another instance must stay.
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
        // The traffic returns to its old path first; the datapath is removed afterwards.
        let off = plumbing.undivert().await?;
        report.undone.extend(lines(&off));
    }
    let removed = braid_balance::remove(&run_dir.pins()).map_err(user_errors::of_datapath)?;
    if removed.programs > 0 || removed.attachments > 0 {
        report.undone.push(format!(
            "datapath: {} programs detached from {} hooks, {} tables freed",
            removed.programs, removed.attachments, removed.maps
        ));
    }
    report.undone.extend(openflow::remove(run_dir).await?);
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
