"""``gradcanary`` on a disk that does what a file says: ``fail`` to keep what was written, or ``lose`` it, too."""

import os
import sys
from pathlib import Path

from gradcanary import cli
from support.server.disks import Disk, File, installed

WORD = "GRADCANARY_TEST_DISK"


class IllDisk(Disk):
    """Asks the file before each flush."""

    def flush(self, file: File) -> int:
        ordered = Path(os.environ[WORD])
        order = ordered.read_text() if ordered.exists() else ""
        self.fails, self.loses = order == "fail", order == "lose"
        return super().flush(file)


if __name__ == "__main__":
    with installed(IllDisk()):
        sys.exit(cli.main(sys.argv[1:]))
