"""Bad days: the collector is away or killed, a disk is full. The training goes on, and nothing is lost unseen."""

import random
import time
from pathlib import Path

import pytest

from support.agent.spooled_trainings import arrived, kept, training, until
from support.collectors import Collector
from support.ports import free_port

STEPS = 160


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """What the collector has of a training that nothing happened to, and the digest of its weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    collector = Collector(folder / "data").start()
    with training(collector.url, STEPS, folder / "spool") as trained:
        digest = trained.ended()
    found = kept(collector)
    collector.kill()
    assert found["dropped"] == [0]
    assert found["gaps"] == []
    assert len(found["incidents"]) > 0
    assert not (folder / "spool").exists(), "a healthy run never touches the disk"
    return found, digest


@pytest.fixture
def absent(tmp_path: Path):
    """A collector that does not run yet, on a port of its own."""
    collector = Collector(tmp_path / "collector")
    collector.port = free_port()
    yield collector
    if collector.process is not None:
        collector.kill()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spool"))


def test_a_collector_that_comes_late_has_everything(absent, undisturbed, spool_folder):
    with training(absent.url, STEPS, pause=0.1, hold=120) as trained:
        trained.until_step(80)
        until(lambda: files(spool_folder))
        absent.start()
        trained.go_on()
        assert trained.ended() == undisturbed[1]
    assert kept(absent) == undisturbed[0]
    assert files(spool_folder) == []
    assert trained.errors.count("no collector at") == 1


def test_a_collector_that_is_killed_again_and_again_has_everything(absent, undisturbed, spool_folder):
    dice = random.Random(20_250_301)
    absent.start()
    kills = 0
    with training(absent.url, STEPS, pause=1) as trained:
        while "step 120" not in trained.lines:
            assert trained.process.poll() is None, trained.errors
            time.sleep(dice.uniform(0.2, 1.5))
            absent.kill()
            time.sleep(dice.uniform(0.1, 0.8))
            absent.start()
            kills += 1
        assert trained.ended() == undisturbed[1]
    assert kills >= 3
    assert kept(absent) == undisturbed[0]
    assert files(spool_folder) == []


def test_a_full_spool_gives_up_steps_and_the_collector_shows_what_is_missing(absent, undisturbed):
    """How many steps a batch holds, and so how much a spool, is the machine's to say."""
    with training(absent.url, STEPS, pause=0.4, hold=120, limit=30_000, flush=0.1) as trained:
        trained.until_step(120)
        absent.start()
        trained.go_on()
        assert trained.ended() == undisturbed[1]
    found, complete, present = kept(absent), undisturbed[0], arrived(absent)
    assert {0, STEPS - 1} <= set(present)
    assert present == sorted(set(present))
    assert found["dropped"] == [STEPS - len(present)] != [0]
    missing = {step for gap in found["gaps"] for step in range(gap["from_step"], gap["to_step"] + 1)}
    assert missing == set(range(STEPS)) - set(present)
    assert {gap["reason"] for gap in found["gaps"]} == {"dropped"}
    assert [layer[2] for layer in found["layers"]] == [layer[2] for layer in complete["layers"]]


@pytest.mark.parametrize("largest", [0, 40_000], ids=["no file at all", "a file of 40 kB"])
def test_a_disk_that_is_full_costs_memory(absent, undisturbed, largest):
    with training(absent.url, STEPS, pause=0.1, hold=120, largest_file=largest or 1) as trained:
        trained.until_step(120)
        absent.start()
        trained.go_on()
        assert trained.ended() == undisturbed[1]
    assert kept(absent) == undisturbed[0]
    assert trained.errors.count("waits in memory") == 1


@pytest.mark.parametrize("folder", ["/proc/gradcanary", "/dev/null/spool", "/proc"])
def test_a_folder_that_takes_no_file_costs_memory(absent, undisturbed, monkeypatch, folder):
    monkeypatch.setenv("GRADCANARY_SPOOL", folder)
    with training(absent.url, STEPS, pause=0.1, hold=120) as trained:
        trained.until_step(120)
        absent.start()
        trained.go_on()
        assert trained.ended() == undisturbed[1]
    assert kept(absent) == undisturbed[0]
    assert trained.errors.count("waits in memory") == 1


def test_a_segment_that_is_damaged_meanwhile_is_counted(absent, undisturbed, spool_folder):
    with training(absent.url, STEPS, pause=0.1, hold=120) as trained:
        trained.until_step(80)
        (spool,) = files(spool_folder)
        (file,) = spool.glob("*.seg")
        with file.open("r+b") as damaged:
            size = file.stat().st_size
            damaged.seek(size // 2)
            damaged.write(b"\xff" * (size // 4))
        absent.start()
        trained.go_on()
        assert trained.ended() == undisturbed[1]
    found, present = kept(absent), arrived(absent)
    assert 0 < len(present) < STEPS
    assert found["dropped"] == [STEPS - len(present)]
    assert present == sorted(set(present))
    assert "Traceback" not in trained.errors


def test_a_forked_child_leaves_the_file_alone(absent, undisturbed, spool_folder):
    with training(absent.url, STEPS, pause=0.1, hold=120, fork=79) as trained:
        trained.until_step(120)
        assert len(files(spool_folder)) == 1
        absent.start()
        trained.go_on()
        trained.ended()
    assert files(spool_folder) == []
    assert kept(absent)["dropped"] == [0]
    assert arrived(absent) == list(range(STEPS))
