//! Taking a program off its device at once (`BPF_LINK_DETACH`, Linux 5.9).
//!
//! A link whose last pin is removed is detached by the kernel's workers some time later. Until then the program is still in the
//! device's list, where who attaches the next one finds it.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::bpf::bpf;

/// `BPF_OBJ_GET` and `BPF_LINK_DETACH` of `enum bpf_cmd`.
const OBJECT_GET: libc::c_int = 7;
const LINK_DETACH: libc::c_int = 34;

/// `union bpf_attr`, the member for pinned objects.
#[repr(C)]
struct PinAttributes {
    path: u64,
    fd: u32,
    flags: u32,
}

/// `union bpf_attr`, the member for detaching.
#[repr(C)]
struct DetachAttributes {
    link_fd: u32,
}

/// Detaches a pinned link. It stays pinned, as one whose device is gone.
pub(crate) fn detach(pin: &Path) -> io::Result<()> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut attributes = PinAttributes {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    // SAFETY: the attributes have the command's layout, and the path outlives the call.
    let fd = unsafe { bpf(OBJECT_GET, &mut attributes) }?;
    // SAFETY: the kernel has just returned this descriptor.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut attributes = DetachAttributes {
        link_fd: link.as_raw_fd().cast_unsigned(),
    };
    // SAFETY: the attributes have the command's layout, without pointers.
    unsafe { bpf(LINK_DETACH, &mut attributes) }?;
    Ok(())
}
