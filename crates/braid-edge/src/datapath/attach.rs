//! Attaches programs to devices.

use std::io;

use aya::programs::tc::{self, NlOptions, TcAttachOptions, TcHandle};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use braid_host::run_dir::{NameClaim, NameClaimError};

use super::{HANDLE, Hook, Layer, PRIORITY, ifindex, refused};
use crate::Error;

/// Keeps other edges off a device while the returned claim lives: two edges on a device would split
/// packets twice. The name is local to its network namespace and ends with its process.
pub(super) fn claim(device: &str, program: &str) -> Result<NameClaim, Error> {
    let index = ifindex(device)?;
    NameClaim::take(&format!("braid-edge/{index}")).map_err(|error| match error {
        NameClaimError::Held(_) => Error::DeviceInUse {
            device: device.to_owned(),
            program: program.to_owned(),
        },
        NameClaimError::Broken(source) => Error::system(format!("claiming {device}"), source),
    })
}

/// Attaches a program to a claimed device and replaces programs that a killed edge left there.
pub(super) fn put(
    program: &mut SchedClassifier,
    name: &str,
    device: &str,
    hook: Hook,
) -> Result<(), Error> {
    let what = format!("{name} on {device}");
    for left in [Layer::Two.programs(), Layer::Three.programs()].concat() {
        // Usually there is none. If one cannot be removed, attaching fails below.
        let _ = tc::qdisc_detach_program(device, TcAttachType::Ingress, left);
    }
    let options = if hook.is_tcx() {
        TcAttachOptions::TcxOrder(LinkOrder::first())
    } else {
        match tc::qdisc_add_clsact(device) {
            Err(error) if !is_there(&error) => return Err(refused(&what, &error)),
            _ => {}
        }
        TcAttachOptions::Netlink(NlOptions {
            priority: PRIORITY,
            handle: TcHandle::from(HANDLE),
            ..NlOptions::default()
        })
    };
    program
        .attach_with_options(device, TcAttachType::Ingress, options)
        .map_err(|error| refused(&what, &error))?;
    Ok(())
}

/// Returns true if the qdisc exists already, by the error's innermost source.
fn is_there(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.kind() == io::ErrorKind::AlreadyExists;
        }
        next = error.source();
    }
    false
}
