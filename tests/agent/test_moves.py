"""A process group that is made late begins another session: nothing is lost or doubled, whatever the collector does."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted import WAIT_S, Says, Told, Training, collector_that, until
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import gradcanary
from gradcanary import sync

HEARD, ALONE, ALL = 2, 5, 9
"""Steps that the collector has before it becomes slow, those without a group, and those of the training."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.delivery.RETRY_S", (0.05, 0.2))
    monkeypatch.setattr("gradcanary.sender.LAST_RETRY_S", 0.05)


@pytest.fixture(autouse=True)
def no_group() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Store:
    """A collector that is slow with the first batch until it is told to go on, and dies at a request of a session, of
    which it has stored the last one or not."""

    def __init__(self, dies_at: tuple[int, str, int] | None = None, *, stores_last: bool = False) -> None:
        self.may_go_on = threading.Event()
        self.is_dead = False
        self.hellos: dict[str, dict[str, object]] = {}
        self.batches: dict[tuple[str, int], bytes] = {}
        self.ends: dict[str, list[dict[str, object]]] = {}
        self._dies_at, self._stores_last = dies_at, stores_last

    def __call__(self, told: Told) -> Says:
        session = told.path.split("/")[6]
        number = [*self.hellos, session].index(session)
        seq = told.seq if told.kind == "batches" else 0
        if told.kind == "batches" and (number, seq) == (0, 0):
            self.may_go_on.wait(WAIT_S)
        if not self.is_dead:
            self.is_dead = (number, told.kind, seq) == self._dies_at
            if not self.is_dead or self._stores_last:
                self._store(session, told, seq)
            self._dies_at = None if self.is_dead else self._dies_at
        return Says(503) if self.is_dead else Says()

    def _store(self, session: str, told: Told, seq: int) -> None:
        if told.kind == "hello":
            self.hellos[session] = told.body
        elif told.kind == "batches":
            assert self.batches.setdefault((session, seq), told.raw) == told.raw
        elif told.kind == "end":
            self.ends.setdefault(session, []).append(told.body)

    def steps(self) -> list[list[int]]:
        """Return the steps of each session."""
        batches = {key: Told("POST", "", raw, 0.0).body for key, raw in self.batches.items()}
        assert {batch["dropped_steps"] for batch in batches.values()} == {0}
        return [
            [step for key, batch in sorted(batches.items()) if key[0] == session for step in batch["steps"]]
            for session in self.hellos
        ]


def moved(url: str, store: Store, *, is_back: bool) -> None:
    """Train, with a group made in the middle of it while the collector is slow; where that dies it may come back."""
    training = Training()
    watch = gradcanary.watch(training.model, training.optimizer, url=url, run="moves")
    training.steps(HEARD)
    until(lambda: store.hellos)
    training.steps(ALONE - HEARD)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    training.steps(ALL - ALONE)
    store.may_go_on.set()
    until(lambda: watch._session.sender.latest.step == ALL - 2)  # the last window is open until the watch ends
    if is_back:
        until(lambda: store.is_dead)
        store.is_dead = False
    watch.close(timeout_s=1.0)
    assert watch._session.guard.caught == 0


def assert_all_is_there(store: Store) -> None:
    assert store.steps() == [[*range(ALONE)], [*range(ALONE, ALL)]]
    first, second = store.hellos.values()
    assert (first["first_step"], second["first_step"]) == (0, ALONE)
    assert first["launch"] != second["launch"]
    assert [(hello["rank"], hello["world_size"]) for hello in (first, second)] == [(0, 1), (0, 2)]
    for session, last in zip(store.hellos, (ALONE - 1, ALL - 1), strict=True):
        told = store.ends[session]
        assert all(end == {"state": "finished", "last_step": last, "error": None} for end in told)


def test_a_slow_collector_has_both_sessions_and_no_step_waits_for_it(spool_folder: Path) -> None:
    """All steps are made before the first batch has its answer."""
    store = Store()
    with collector_that(store) as collector:
        moved(collector.url, store, is_back=False)
    assert_all_is_there(store)
    assert not spool_folder.exists()


@pytest.mark.parametrize(("stores_last", "is_back"), [(True, False), (False, True)])
@pytest.mark.parametrize("dies_at", [(0, "batches", 1), (0, "end", 0), (1, "hello", 0), (1, "batches", 0)])
def test_what_a_collector_that_dies_in_the_move_has_not_is_kept(
    spool_folder: Path, dies_at: tuple[int, str, int], *, stores_last: bool, is_back: bool
) -> None:
    store = Store(dies_at, stores_last=stores_last)
    with collector_that(store) as collector:
        moved(collector.url, store, is_back=is_back)
        store.is_dead = False
        said: list[str] = []
        assert sync.sync(sorted(spool_folder.glob("*.spool")), None, None, said.append), said
    assert_all_is_there(store)
    assert [*spool_folder.glob("*.spool")] == []
