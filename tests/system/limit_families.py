"""Run a program that may open sockets of some address families alone, as systemd's RestrictAddressFamilies has it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

SOCKET_CALL = {"x86_64": 41, "aarch64": 198}[platform.machine()]
#: Instructions of classic BPF, and where the filter finds the call's number and its first argument.
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16
ALLOW, FAIL = 0x7FFF0000, 0x00050000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


def limit(families: list[int]) -> None:
    """Have this process and its children get EAFNOSUPPORT for sockets of other families."""
    rest = len(families)
    code = [(LOAD, 0, 0, NUMBER), (JUMP_IF_EQUAL, 0, rest + 2, SOCKET_CALL), (LOAD, 0, 0, FIRST_ARGUMENT)]
    code += [(JUMP_IF_EQUAL, rest - place, 0, family) for place, family in enumerate(families)]
    code += [(RETURN, 0, 0, FAIL | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    described = struct.pack("HP", len(code), ctypes.addressof(program))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    limit([getattr(socket, name) for name in sys.argv[1].split()])
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606
