//! The system call `bpf`, for those of its commands that aya does not offer.
#![allow(unsafe_code)]

use std::io;

/// Makes the system call. Returns its result, such as a descriptor.
///
/// # Safety
/// The attributes must have the command's layout, and their pointers be valid for it.
pub(crate) unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: as the caller promises.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    match result {
        0.. => Ok(result as libc::c_int),
        _ => Err(io::Error::last_os_error()),
    }
}
