"""Links to runs of other trackers: no library is imported for them, and no secret is in an address."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary.guard import Guard
from gradcanary.integrations import links

IMPORTS_NOTHING = """
import sys
import gradcanary
from gradcanary.guard import Guard
from gradcanary.integrations.links import Links

alert = gradcanary.Alert(1, "collapse", "critical", "open", 3, 4, "All fell.", "http://127.0.0.1/incidents/1")
found = Links("http://127.0.0.1/runs/a", Guard(), links=True)
found.look()
gradcanary.integrations.wandb.alert(alert)
gradcanary.integrations.mlflow.tag(alert)
assert found.find() == ()
assert not {"wandb", "mlflow", "torch"} & set(sys.modules)
"""


def test_no_library_is_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTS_NOTHING], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines() == [
        f"gradcanary: {name} did not get the {what} of incident #1: no run was active when the latest step was sampled"
        for name, what in (("wandb", "alert"), ("mlflow", "tags"))
    ]


def test_an_active_run_keeps_a_thread_until_the_watch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the exit of Python 3.12 and newer no alert could start one."""
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace()))
    monkeypatch.setattr(links.wandb.library, "run", None)
    found = links.Links("http://127.0.0.1/runs/a", Guard(), links=False)
    found.look()
    assert "gradcanary-wandb" in {thread.name for thread in threading.enumerate()}
    found.wait(10)
    assert "gradcanary-wandb" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("https://wandb.ai/team/toy/runs/3uopis29", "https://wandb.ai/team/toy/runs/3uopis29"),
        ("https://wandb.ai/a/b/runs/c?apiKey=0123456789", "https://wandb.ai/a/b/runs/c"),
        ("http://user:secret@host:5000/base/#/experiments/1/runs/2", "http://host:5000/base/#/experiments/1/runs/2"),
        ("https://[::1", None),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("https://", None),
        ("https://wandb.ai/" + 500 * "a", None),
        (None, None),
    ],
)
def test_an_address_has_no_user_and_no_query(address: str | None, public: str | None) -> None:
    assert links.public_address(address) == public


@given(
    st.builds(
        wire.TrackerRun,
        st.just("wandb"),
        st.text(),
        st.text(max_size=400),
        st.none() | st.text() | st.text().map("https://host/{}".format),
        st.none() | st.text(max_size=400),
    )
)
def test_whatever_a_library_says_the_collector_takes_it(run: wire.TrackerRun) -> None:
    from gradcanary_server.ingest.messages import _check_trackers

    _check_trackers((links.sendable(run),))
