"""The command line, as it is typed."""

import pytest
from targets import Typed

from gradcanary import cli


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return a function that runs a command and returns its exit status and what it printed."""

    def run(*words: object) -> tuple[int, str, str]:
        flat = [str(part) for word in words for part in (word if isinstance(word, list) else [word])]
        status = cli.main(flat)
        return status, *capsys.readouterr()

    return run
