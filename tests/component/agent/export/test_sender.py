"""A collector that comes back: what it may answer to what waited, and what a process leaves when it does not."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import gradcanary
from gradcanary.export.spool import Progress, Spool
from support.agent.scripted import Says, Scripted, Told, Training, collector_that, once, refusal, until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Half seconds become hundredths."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.export.delivery.RETRY_S", (0.05, 0.2))


class Away:
    """A script: 503 for the kinds given until ``is_back``, then ``then`` decides, else 200."""

    def __init__(self, *kinds: str, then: Callable[[Told], Says | None] = lambda _: None) -> None:
        self.kinds, self.then, self.is_back = kinds, then, False

    def __call__(self, told: Told) -> Says:
        if told.kind in self.kinds and not self.is_back:
            return Says(503, refusal("busy"))
        return (self.then(told) if self.is_back else None) or Says()


def spools(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spool"))


def waited(url: str, away: Away, folder: Path, chunks: int = 6) -> gradcanary.Watch:
    """Train in chunks while the collector is away, then let it come back; the watch is open still."""
    training = Training()
    watch = gradcanary.watch(training.model, training.optimizer, url=url, run="replayed")
    for _ in range(chunks):
        training.steps(10)
        time.sleep(0.06)
    until(lambda: watch._session.sender._outbox.queue.steps >= 10 * chunks - 1)
    assert len(spools(folder)) == 1
    away.is_back = True
    return watch


def batches(collector: Scripted) -> list[Told]:
    return collector.of("batches", accepted=True)


def test_waiting_batches_are_sent_first_and_in_order(spool_folder):
    away = Away("hello", "batches")
    with collector_that(away) as collector:
        watch = waited(collector.url, away, spool_folder)
        watch.close()
        assert collector.steps() == list(range(60))
        assert collector.seqs() == list(range(len(collector.seqs())))
        assert collector.heard[-1].body == {"state": "finished", "last_step": 59, "error": None}
        assert all(told.body["dropped_steps"] == 0 for told in batches(collector))
    assert spools(spool_folder) == []
    assert watch._session.guard.caught == 0


def test_a_batch_that_was_on_its_way_keeps_its_bytes(spool_folder):
    away = Away("batches")
    with collector_that(away) as collector:
        waited(collector.url, away, spool_folder).close()
        first = [told.raw for told in collector.of("batches") if told.seq == 0]
        assert len(first) > 1
        assert len(set(first)) == 1


def test_a_new_database_hears_hello_and_accumulators_again(spool_folder):
    forgets = [True]

    def then(told: Told) -> Says | None:
        return Says(404, refusal("unknown_session")) if told.kind == "batches" and forgets and forgets.pop() else None

    away = Away("batches", then=then)
    with collector_that(away) as collector:
        waited(collector.url, away, spool_folder).close()
        assert collector.steps() == list(range(60))
        assert [told.kind for told in collector.accepted[1:3]] == ["hello", "batches"]
        assert all(told.body["accumulators"] != [] for told in batches(collector))


@pytest.mark.parametrize("code", ["conflict", "superseded"])
def test_refused_batches_are_set_aside_and_reported(spool_folder, code):
    away = Away(
        "batches", then=lambda told: Says(409, refusal(code)) if told.kind == "batches" and told.seq == 1 else None
    )
    with collector_that(away) as collector:
        waited(collector.url, away, spool_folder).close()
        gone = sorted(set(range(60)) - set(collector.steps()))
        assert 0 < len(gone) < 60
        assert batches(collector)[-1].body["dropped_steps"] == len(gone)
    assert spools(spool_folder) == []


def test_too_large_batches_are_halved(spool_folder):
    away = Away(
        "batches", then=lambda told: Says(413) if told.kind == "batches" and len(told.body["steps"]) > 3 else None
    )
    with collector_that(away) as collector:
        waited(collector.url, away, spool_folder).close()
        assert collector.steps() == list(range(60))
        assert collector.seqs() == list(range(len(collector.seqs())))
        assert batches(collector)[-1].body["dropped_steps"] == 0
    assert spools(spool_folder) == []


@pytest.mark.parametrize(
    ("kind", "says"), [("batches", Says(410, refusal())), ("hello", Says(422, refusal("no", "Too many layers.")))]
)
def test_unacceptable_batches_are_not_kept(spool_folder, capsys, kind, says):
    away = Away("hello", "batches", then=lambda told: says if told.kind == kind else None)
    with collector_that(away) as collector:
        watch = waited(collector.url, away, spool_folder)
        until(lambda: not spools(spool_folder))
        watch.close()
        assert batches(collector) == []
    assert "kept" not in capsys.readouterr().err


def test_heartbeats_tell_how_much_waits(spool_folder, monkeypatch):
    monkeypatch.setattr("gradcanary.export.sender.INTERVAL_S", 0.0)
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.005)
    away = Away("batches", then=lambda _: time.sleep(0.02))
    with collector_that(away) as collector:
        watch = waited(collector.url, away, spool_folder)
        until(lambda: collector.of("heartbeat") and collector.of("heartbeat")[-1].body["spooled_bytes"] == 0)
        watch.close()
        told = [(told.kind, told.body.get("spooled_bytes"), len(told.raw)) for told in collector.accepted]
    back = next(i for i, (kind, _, _) in enumerate(told) if kind == "batches")  # till then there comes more
    during = next(i for i, (kind, waiting, _) in enumerate(told) if i > back and kind == "heartbeat" and waiting)
    sent = sum(size for kind, _, size in told[during:] if kind == "batches")
    assert abs(told[during][1] - sent) < 0.2 * sent + 1000, told[:during]


def test_a_heartbeat_names_no_step_that_still_waits(spool_folder, monkeypatch):
    """Whoever puts ranks together takes it that nothing of earlier steps comes any more."""
    monkeypatch.setattr("gradcanary.export.sender.INTERVAL_S", 0.0)
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.005)
    away = Away("batches", then=lambda _: time.sleep(0.02))
    with collector_that(away) as collector:
        watch = waited(collector.url, away, spool_folder)
        until(lambda: any(told.body["step"] == 58 for told in collector.of("heartbeat")))
        watch.close()
        told = list(collector.accepted)
    taken, waiting = -1, 0
    for each in told:
        if each.kind == "batches":
            taken = max([taken, *each.body["steps"]])
        elif each.kind == "heartbeat":
            waiting += each.body["spooled_bytes"] > 0
            assert (-1 if each.body["step"] is None else each.body["step"]) <= taken
    assert waiting


def test_a_process_that_ends_alone_leaves_everything_and_says_where(spool_folder, capsys):
    with collector_that(Away("batches")) as collector:
        training = Training()
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="left"):
            training.steps(10)
            until(lambda: collector.of("batches"))
            training.steps(10)
    (path,) = spools(spool_folder)
    with closing(Spool.open(path)) as left:
        assert (left.steps, left.progress, left.made) == (20, Progress(), 20)
        assert left.ending == b'{"state":"finished","last_step":19,"error":null}'
    said = capsys.readouterr().err
    assert f"20 sampled steps and the end are kept: gradcanary sync {path}\n" in said


def test_the_end_names_a_refused_token_as_the_reason(spool_folder, capsys):
    with collector_that(once("hello", Says(401, refusal("x", "Revoked.")), times=99)) as collector:
        training = Training()
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="barred"):
            training.steps(20)
    (path,) = spools(spool_folder)
    last = capsys.readouterr().err.splitlines()[-1]
    kept = f"20 sampled steps and the end are kept: gradcanary sync {path}"
    assert last.endswith(f"the collector refuses the token; {kept}")


def test_the_end_alone_is_kept_too(spool_folder, capsys):
    with collector_that(Away("end")) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="end")
        training.steps(10)
        until(lambda: len(collector.steps()) >= 9)
        watch.close(timeout_s=0.5)
        assert collector.steps() == list(range(10))
    assert len(spools(spool_folder)) == 1
    assert "0 sampled steps and the end are kept" in capsys.readouterr().err


def test_a_watch_without_a_step_leaves_nothing(spool_folder, capsys):
    gradcanary.watch(url="http://127.0.0.1:9", run="nothing").close()
    assert not spool_folder.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_spool_folder_is_read_only_after_the_first_accepted_batch(monkeypatch):
    """It may hang."""
    taken: list[int] = []
    monkeypatch.setattr("gradcanary.export.spool.report_unsent", lambda *_: taken.append(len(collector.accepted)))
    away = Away("hello")
    with collector_that(away) as collector:
        training = Training()
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="looks"):
            training.steps(10)
            until(lambda: collector.of("hello"))
            away.is_back = True
            until(lambda: taken)
            time.sleep(0.06)
    assert len(taken) == 1
    assert taken[0] > 0


def test_without_file_locks_memory_has_to_do(spool_folder, monkeypatch):
    monkeypatch.setattr("gradcanary.export.spool.fcntl", None)  # as on Windows
    away = Away("batches")
    with collector_that(away) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="memory")
        training.steps(30)
        until(lambda: collector.of("batches"))
        away.is_back = True
        watch.close()
        assert collector.steps() == list(range(30))
    assert spools(spool_folder) == []


def test_memory_is_bounded_as_a_spool_is(monkeypatch):
    monkeypatch.setattr("gradcanary.export.spool.fcntl", None)
    monkeypatch.setattr("gradcanary.export.outbox.MEMORY_BYTES", 30_000)
    away = Away("batches")
    with collector_that(away) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="memory")
        for _ in range(20):
            training.steps(20)
            time.sleep(0.03)
        until(lambda: watch._session.recorder.clock.step <= (watch._session.sender._step or 0) + 1)
        assert watch._session.sender._outbox.queue.size <= 30_000
        away.is_back = True
        watch.close()
        arrived = collector.steps()
        assert arrived == sorted(arrived)
        # Behind the last step that was kept there is none to tell of the others.
        last = [*batches(collector), *collector.of("heartbeat", accepted=True)][-1]
        assert last.body["dropped_steps"] == 400 - len(arrived) > 0


def test_nothing_of_it_outlives_a_close(spool_folder):
    away = Away("batches")
    with collector_that(away) as collector:
        watch = waited(collector.url, away, spool_folder)
        away.is_back = False
        watch.close(timeout_s=0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "gradcanary-sender"]
    assert not [file for file in Path("/proc/self/fd").iterdir() if ".spool" in os.path.realpath(file)]
