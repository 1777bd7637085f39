//! Two calls of bpf(2), with arguments that aya does not pass.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use aya_obj::generated::{bpf_cmd, bpf_prog_type};
use aya_obj::{Function, Program};

/// Log level: statistics alone for a program that is accepted, every step for one that is not.
const LOG_STATISTICS: u32 = 4;
const LOG_STEPS: u32 = 1;

/// Bytes of the log. The kernel keeps the end of a longer one, or refuses it (before Linux 6.4).
const LOG_BYTES: usize = 8 << 20;

/// The beginning of `union bpf_attr` for BPF_BTF_LOAD.
#[repr(C)]
#[derive(Default)]
struct TypesAttribute {
    bytes: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    unused: u32,
}

/// The beginning of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct ProgramAttribute {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_kind: u32,
    types: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
    line_size: u32,
    lines: u64,
    line_count: u32,
    attach_type: u32,
}

fn bpf<T>(command: bpf_cmd, attribute: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the attribute has the command's layout and the given length; its pointers outlive the
    // call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attribute),
            size_of::<T>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Loads a program's types.
pub(crate) fn load_types(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attribute = TypesAttribute {
        bytes: bytes.as_ptr() as u64,
        size: bytes.len() as u32,
        ..TypesAttribute::default()
    };
    bpf(bpf_cmd::BPF_BTF_LOAD, &mut attribute)
}

/// Loads a linked program and unloads it. Returns the verifier's log, with the error if the program
/// was refused.
pub(crate) fn load_program(
    program: &Program,
    function: &Function,
    types: Option<&OwnedFd>,
    flags: u32,
) -> Result<String, (io::Error, String)> {
    let functions = function.func_info.func_info_bytes();
    let lines = function.line_info.line_info_bytes();
    let mut log = vec![0_u8; LOG_BYTES];
    let mut attribute = ProgramAttribute {
        kind: bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS as u32,
        instruction_count: function.instructions.len() as u32,
        instructions: function.instructions.as_ptr() as u64,
        license: program.license.as_ptr() as u64,
        log_level: LOG_STATISTICS,
        log_size: log.len() as u32,
        log: log.as_mut_ptr() as u64,
        flags,
        ..ProgramAttribute::default()
    };
    if let Some(types) = types {
        attribute.types = types.as_raw_fd() as u32;
        attribute.function_size = function.func_info_rec_size as u32;
        attribute.functions = functions.as_ptr() as u64;
        attribute.function_count = function.func_info.len() as u32;
        attribute.line_size = function.line_info_rec_size as u32;
        attribute.lines = lines.as_ptr() as u64;
        attribute.line_count = function.line_info.len() as u32;
    }
    let result = bpf(bpf_cmd::BPF_PROG_LOAD, &mut attribute);
    if result
        .as_ref()
        .is_err_and(|error| error.raw_os_error() != Some(libc::EAGAIN))
    {
        attribute.log_level = LOG_STEPS;
        log[0] = 0;
        // The kernel refuses it again, with a detailed log.
        drop(bpf(bpf_cmd::BPF_PROG_LOAD, &mut attribute));
    }
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]).into_owned();
    match result {
        Ok(_) => Ok(log),
        Err(error) => Err((error, log)),
    }
}
