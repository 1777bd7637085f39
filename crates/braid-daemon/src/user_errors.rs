//! Errors of the libraries below, in the user's words.

use braid_host::user_error::UserError;

/// Explains an error of the datapath to the user.
pub(crate) fn of_datapath(error: braid_balance::Error) -> UserError {
    use braid_balance::Error as E;
    match error {
        E::Permission { action } => {
            let text = format!("datapath: {action}: operation not permitted");
            UserError::new("permission", text)
                .fix("run it as root; braid doctor shows what is missing")
        }
        E::Kernel { action, release } => {
            let text = format!("datapath: {action}: not supported by kernel {release}");
            let fix = "boot kernel 5.10 or newer; braid doctor shows what is missing";
            UserError::new("kernel-too-old", text).fix(fix)
        }
        E::ForeignProgram {
            device,
            direction,
            program,
            id,
        } => {
            let text = format!(
                "datapath: program {program:?} (id {id}), which is not Braid's, is attached to \
                     {device} {direction}"
            );
            let fix = "detach that program, or set coexist = true in [datapath] to share the \
                           hook with it";
            UserError::new("foreign-program", text).fix(fix)
        }
        E::Layout {
            found,
            found_layout,
            needed_layout,
            ..
        } => {
            let text = format!(
                "datapath: the one at work is of version {found} and keeps its flows in layout \
                     {found_layout}, this version needs layout {needed_layout}"
            );
            UserError::new("datapath-version", text)
                .fix("braid down, then braid up; running flows are lost")
        }
        E::Load { .. } => UserError::new("datapath", format!("datapath: {error}"))
            .fix("braid doctor checks what the kernel can do"),
        _ => UserError::new("datapath", format!("datapath: {error}")),
    }
}

/// Explains an error of finding the uplinks to the user.
pub(crate) fn of_uplinks(error: braid_uplink::Error) -> UserError {
    match &error {
        braid_uplink::Error::NoUplink { rejected } => {
            let failure = UserError::new("no-uplink", error.to_string());
            failure.fix(if rejected.is_empty() {
                "connect to a network first (`ip route` should show a default route), or name \
                     uplinks and their gateways in a configuration"
            } else {
                "fix one of these, or name another device in the configuration"
            })
        }
        _ => UserError::new("uplinks", error.to_string()),
    }
}
