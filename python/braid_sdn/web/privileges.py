"""Privileges of the calling thread, of which it gives up all: it reads what strangers send."""

from __future__ import annotations

import ctypes
import os

#: `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h, and the words of its three sets.
CAPABILITY_VERSION, CAPABILITY_WORDS = 0x20080522, 6
#: `PR_SET_NO_NEW_PRIVS` of linux/prctl.h.
NO_NEW_PRIVILEGES = 38


def drop() -> None:
    """Give up all capabilities, and the way to new ones, for good; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * CAPABILITY_WORDS)()
    for call, *arguments in ((libc.prctl, NO_NEW_PRIVILEGES, 1, 0, 0, 0), (libc.capset, header, nothing)):
        if call(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"the page's thread cannot give up its privileges: {os.strerror(number)}")
