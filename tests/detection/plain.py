"""``python -m detection.plain CASE``: run one case as a script that knows nothing of gradcanary."""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch

from detection.cases import CASES
from detection.job import run
from gradcanary import api


class _OpenWatches:
    """Logs a loss that no backward pass has, as a script does that is watched from outside."""

    def log(self, *, loss: float) -> None:
        for watch in api.open_watches():
            watch.log(loss=loss)


def main() -> None:
    """Train to the end of the case, or until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    case = next(each for each in CASES if each.name == arguments.case)
    with tempfile.TemporaryDirectory() as folder:
        run(case.build, lambda _step: nullcontext(_OpenWatches()), Path(folder) / "unread.npz")


if __name__ == "__main__":
    main()
