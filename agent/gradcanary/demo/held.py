"""``python -m gradcanary.demo.held MODULE ...``: as ``python -m MODULE ...``, ended when whoever started it is gone.

That one holds the other side of the standard input, which closes however it ended.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def await_end() -> None:
    """Wait for the end of the input."""
    # Not by sys.stdin: a thread that is in there as the process ends holds a lock that its end wants.
    while os.read(0, 4096):
        pass


def main() -> None:
    """Run the module, and end as by SIGTERM with the input."""
    threading.Thread(target=_end, name="gradcanary-held", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end() -> None:
    await_end()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
