"""``gradcanary`` for somebody whom the modes of files bind, also where the tests are run by root."""

import ctypes
import os
import sys

from gradcanary import cli

VERSION_3 = 0x20080522
OVERRIDES = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what root needs to write where it may not."""


def be_bound() -> None:
    """Give up what sets this process above the modes of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for place in range(3):  # effective, permitted, inheritable
        sets[place] &= ~OVERRIDES
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    be_bound()
    sys.exit(cli.main(sys.argv[1:]))
