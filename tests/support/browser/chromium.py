"""Which Chromium the browser tests, the screenshots and the benchmark of pages start."""

import shutil


def installed() -> str | None:
    """Return Debian's, None where only Playwright's own can be.

    Not chromium-headless-shell, which takes an eighth less CPU: a finger's tap moves no pointer there.
    """
    return shutil.which("chromium")
