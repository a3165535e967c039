"""``gradcanary`` on a disk that does what a file says: ``fail`` to keep what was written, or ``lose`` it, too."""

import errno
import os
import sys
from pathlib import Path

from gradcanary import cli
from gradcanary_server import wal

WORD = "GRADCANARY_TEST_DISK"

kept = 0


def flush(descriptor: int) -> None:
    global kept
    file, size = Path(os.environ[WORD]), os.fstat(descriptor).st_size
    if not file.exists():
        kept = size
        return
    if file.read_text() == "lose":
        if size < kept:
            kept = 0  # the log was emptied since, so all that is in it is new
        os.pwrite(descriptor, bytes(size - kept), kept)
    raise OSError(errno.EIO, "Input/output error")


if __name__ == "__main__":
    wal._flush = flush
    sys.exit(cli.main(sys.argv[1:]))
