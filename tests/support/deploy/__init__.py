"""The files of docs/deploy, and the tools that check them: ensure_tools.sh, by ``make test-all``."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "docs" / "deploy"
UNPACKED = Path(sys.prefix) / "deploy" / "usr" / "bin"


def tool(*names: str) -> str:
    """Return the path of the first of these programs that is here; Debian gives some another name."""
    path = f"{UNPACKED}{os.pathsep}{os.environ['PATH']}"
    found = [place for name in names if (place := shutil.which(name, path=path))]
    assert found, f"no {names[0]} here: make {UNPACKED.parents[2].name}/.deploy"
    return found[0]


def check(*words: object, cwd: Path = FOLDER, env: Mapping[str, str] = os.environ) -> str:
    """Run a tool and return what it printed; fails with that where its status is not 0."""
    ran = subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def edited(name: str, changes: Mapping[str, str]) -> str:
    """Return the text of a file with the edits of its reader, from old to new; each old text must be there."""
    text = (FOLDER / name).read_text("utf-8")
    for old, new in changes.items():
        assert old in text, f"{name} has no {old}"
        text = text.replace(old, new)
    return text


def alertmanager() -> list[str]:
    """Return the words that start Alertmanager; an unpacked one of Debian reads its templates from /usr/share, too."""
    program = tool("alertmanager", "prometheus-alertmanager")
    if Path(program).parent != UNPACKED:
        return [program]
    share = UNPACKED.parent / "share"
    start = f'mount --bind {shlex.quote(str(share))} /usr/share && exec "$0" "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", start, program]
