"""Ranks that stop after the same step, over a real store; each rank is a thread, in step with the others as by DDP."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from gradcanary.guard import Guard
from gradcanary.hooks import agreement
from gradcanary.hooks.agreement import Agreement, agree

RANKS, STEPS = 3, 400


class Ranks:
    """Threads that train: none begins a step before all have ended the last but ``ahead`` ones."""

    def __init__(self, ahead: int) -> None:
        self.ended = [0] * RANKS
        self._ahead, self._moved = ahead, threading.Condition()

    def end_step(self, rank: int) -> None:
        with self._moved:
            self.ended[rank] += 1
            self._moved.notify_all()
            assert self._moved.wait_for(lambda: self.ended[rank] - min(self.ended) <= self._ahead, 10), "it hangs"

    def leave(self, rank: int) -> None:
        with self._moved:
            self.ended[rank] = STEPS + self._ahead
            self._moved.notify_all()


def train(
    wants_from: int, *, without: tuple[int, ...] = (), ahead: int = 0, late: float = 0.0
) -> tuple[list[int | None], list[list[str]]]:
    """Return the step after which each rank stopped, and what it printed; ``without`` ranks take no part."""
    store, ranks, guards = HashStore(), Ranks(ahead), [Guard() for _ in range(RANKS)]

    def run(rank: int) -> int | None:
        time.sleep(late * rank)
        own = None if rank in without else Agreement(store, rank, RANKS, 1, guards[rank])
        stopped = None
        for step in range(1, STEPS + 1):
            ranks.end_step(rank)
            # Only rank 0 counts: the others get their answers from the collector at other times.
            if own is not None and own.poll(wants=step >= wants_from if rank == 0 else step > 3):
                stopped = step
                break
        if own is not None:
            own.close()
        ranks.leave(rank)
        return stopped

    with ThreadPoolExecutor(RANKS) as pool:
        stops = list(pool.map(run, range(RANKS)))
    assert all(guard.caught == 0 for guard in guards)
    return stops, [sorted(guard._reported) for guard in guards]


@pytest.mark.parametrize("wants_from", [1, 2, 37, STEPS - 100])
@pytest.mark.parametrize(("ahead", "late"), [(0, 0.0), (3, 0.0), (0, 0.05), (30, 0.05)])
def test_all_ranks_stop_after_the_same_step(
    monkeypatch: pytest.MonkeyPatch, wants_from: int, ahead: int, late: float
) -> None:
    monkeypatch.setattr(agreement, "SPACING_S", 1e-4)
    stops, said = train(wants_from, ahead=ahead, late=late)
    assert len(set(stops)) == 1
    assert stops[0] is not None
    assert stops[0] > wants_from
    assert said[1:] == [[], []]


def test_nobody_stops_where_rank_0_wants_nothing() -> None:
    assert train(STEPS + 1) == ([None] * RANKS, [[]] * RANKS)


@pytest.mark.parametrize("without", [(1,), (1, 2), (0,)])
def test_nobody_stops_if_a_rank_takes_no_part(without: tuple[int, ...]) -> None:
    stops, said = train(5, without=without)
    assert stops == [None] * RANKS
    assert said[0] == ([] if 0 in without else [agreement.INCOMPLETE])


def test_a_decision_to_stop_stays_until_all_have_read_it() -> None:
    """Rank 0 may have ended, and begun the next training, before another rank reads it."""
    store, guard = HashStore(), Guard()
    first, second = (Agreement(store, rank, 2, 1, guard) for rank in range(2))
    steps = 0
    while not first.poll(wants=True):
        steps += 1
        assert not second.poll(wants=False)
    first.close()
    Agreement(store, 0, 2, 2, guard)
    assert second.poll(wants=False)
    assert steps < 10


def test_a_rank_that_comes_after_the_end_waits_for_nothing() -> None:
    store, guard = HashStore(), Guard()
    Agreement(store, 0, 2, 1, guard).close()
    late = Agreement(store, 1, 2, 1, guard)
    assert not any(late.poll(wants=True) for _ in range(20))
    assert guard.caught == 0


def test_a_store_that_fails_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(HashStore):
        def add(self, key: str, value: int) -> int:
            raise RuntimeError("connection reset")

    guard = Guard()
    first, second = (Agreement(Gone(), rank, 2, 1, guard) for rank in range(2))
    assert not any(each.poll(wants=True) for _ in range(20) for each in (first, second))
    assert guard.last == "RuntimeError: connection reset"


def test_one_process_needs_no_agreement_and_ranks_without_a_group_never_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert agree(1, Guard()) is None
    alone = agree(2, Guard())
    assert alone is not None
    assert not any(alone.poll(wants=True) for _ in range(20))
    alone.close()
    assert agreement.NO_GROUP in capsys.readouterr().err
