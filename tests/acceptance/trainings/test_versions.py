"""An agent and a collector of different versions: a line names the side to upgrade, and the training goes on."""

import os

import pytest

from gradcanary import wire
from support import PROGRAMS, warm
from support.agent.spooled_trainings import arrived, kept, synced, training, until
from support.collectors import Collector

STEPS = 200
SIDES = {wire.PROTOCOL - 1: "where the collector runs", wire.PROTOCOL + 1: "where the training runs"}
"""The side that is older, by the protocol of the collector."""


@pytest.fixture(params=SIDES)
def protocol(request):
    """The protocol of the other collector."""
    return request.param


@pytest.fixture
def other(protocol, tmp_path):
    """A collector of another version on an empty store."""
    collector = Collector(tmp_path / "other")
    collector.program = (str(PROGRAMS / "other_protocol.py"), str(protocol))
    yield collector.start()
    collector.kill()


def become_alike(other, collector):
    """Start the other collector again as of the version of this one."""
    other.stop()
    other.program = collector.program
    other.start()


def trained(mode, url):
    """Return the digest of all that a training left, and what it said on stderr."""
    words = [str(PROGRAMS / "identical_training.py"), mode, url, str(STEPS)]
    ended = warm.run(warm.TRAINING, words, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1], ended.stderr.splitlines()


def test_a_training_for_another_version_is_the_same_and_what_it_measured_is_kept(
    other, protocol, collector, spool_folder
):
    bare, _ = trained("bare", other.url)
    digest, said = trained("watched", other.url)
    assert digest == bare
    [line] = [line for line in said if "protocol" in line]
    assert f": upgrade gradcanary {SIDES[protocol]}. Here is gradcanary " in line
    assert "What is measured is kept; the training goes on" in line
    assert f"{STEPS} sampled steps and the end are kept: gradcanary sync" in said[-1]
    assert other.get("/api/v1/runs").json()["runs"] == []
    refused = synced(spool_folder, "--url", other.url)
    assert refused.returncode == 1
    assert f"upgrade gradcanary {SIDES[protocol]}." in refused.stderr
    become_alike(other, collector)
    assert synced(spool_folder, "--url", other.url).returncode == 0
    assert arrived(other, "identical-watched") == list(range(STEPS))
    assert list(spool_folder.glob("*.spool")) == []


def test_a_collector_that_is_upgraded_meanwhile_gets_everything(other, protocol, collector, spool_folder):
    with training(collector.url, STEPS) as undisturbed:
        digest = undisturbed.ended()
    with training(other.url, STEPS, hold=STEPS // 2) as trained:
        trained.until_step(STEPS // 2)
        until(lambda: list(spool_folder.glob("*.spool")))
        become_alike(other, collector)
        trained.go_on()
        assert trained.ended() == digest
    assert trained.errors.count(f"upgrade gradcanary {SIDES[protocol]}.") == 1
    assert kept(other) == kept(collector)
