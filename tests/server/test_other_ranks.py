"""What the other ranks of a replicated model tell: where a gradient that is not finite came from, and nothing else."""

import json

import numpy as np
import pytest
import streams
from archives import LAYERS, RUN
from sqlalchemy import func, select

from gradcanary import wire
from gradcanary_server import incident_rows, sealing
from gradcanary_server.schema import batch, session

SICK = 12
PARTIAL, NONFINITE = wire.STATES.index("partial"), wire.STATES.index("nonfinite")


def first_rank(*, own=()):
    """A stream in which two of three layers are not finite at a step; of its own are those that it says so of."""
    absmax = np.full((30, LAYERS), 1e-2, np.float32)
    absmax[SICK, :2] = np.inf
    made = streams.Stream(absmax)
    batches = list(made.batches(10))
    if own:
        others = tuple(layer for layer in (0, 1) if layer not in own)
        parts = tuple(
            wire.Block("nonfinite", phase, (SICK,), layers, wire.column("f", [1.0] * len(layers)))
            for phase, layers in (("micro", own), ("accumulated", others))
            if layers
        )
        blocks = tuple(each for each in batches[1].blocks if each.stat != "nonfinite") + parts
        batches[1] = wire.Batch(**{**vars(batches[1]), "blocks": blocks})
    return made, batches


def fault(layer_set, step=SICK, layers=(0,)):
    """What another rank sends of a step in which these layers were not finite of its own."""
    state = bytearray([PARTIAL]) * LAYERS
    for layer in layers:
        state[layer] = NONFINITE
    values = wire.column("f", [1.0] * len(layers))
    return wire.Batch(
        layer_set=layer_set.id,
        every=1,
        steps=(step,),
        times=wire.column("d", [1.7e9]),
        micro_steps=(1,),
        skipped=(0,),
        clipped=(0,),
        state=wire.column("B", state),
        blocks=(wire.Block("nonfinite", "micro", (step,), tuple(layers), values),),
        accumulators=(),
        metrics=(),
        dropped_steps=0,
    )


def greet(store, made, ranks=3):
    for rank in range(ranks):
        place = {"rank": rank, "world_size": ranks, "launch": "one"}
        store.ingest.hello(RUN, f"r{rank}", wire.dump(made.hello(**place)))


def post(store, rank, seq, message):
    return store.ingest.batch(RUN, f"r{rank}", seq, wire.dump(message))


def ranks(store):
    """The rank of each layer of the incident."""
    case = store.read(lambda c, run: incident_rows.latest(c, run.run_id, "nonfinite"))
    return {layer: member.rank for layer, member in case.members.items()}


@pytest.mark.parametrize("comes_first", [0, 1])
def test_a_nan_is_attributed_to_its_rank_whoever_comes_first(store, comes_first):
    made, batches = first_rank()
    greet(store, made)
    post(store, 0, 0, batches[0])
    for rank in (comes_first, 1 - comes_first):
        sent = (1, batches[1]) if rank == 0 else (0, fault(made.layers))
        assert post(store, rank, *sent).status == "stored"
    assert ranks(store) == {0: 1, 1: None}, "of the other layer nobody knows"


def test_of_two_ranks_it_is_the_lower_one(store):
    made, batches = first_rank()
    greet(store, made)
    for seq, each in enumerate(batches[:2]):
        post(store, 0, seq, each)
    for rank in (2, 1):
        post(store, rank, 0, fault(made.layers))
    assert ranks(store)[0] == 1


def test_the_first_rank_tells_its_own_by_the_phase(store):
    made, batches = first_rank(own=(0, 1))
    greet(store, made)
    for seq, each in enumerate(batches):
        post(store, 0, seq, each)
    assert ranks(store) == {0: 0, 1: 0}


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("comes_first", [0, 1])
def test_the_first_rank_does_not_speak_for_what_another_one_had(store, own, comes_first):
    """Both have one in the same step: each layer has the rank that it came from."""
    made, batches = first_rank(own=(own,))
    greet(store, made)
    post(store, 0, 0, batches[0])
    for rank in (comes_first, 1 - comes_first):
        post(store, rank, *((1, batches[1]) if rank == 0 else (0, fault(made.layers, layers=(1 - own,)))))
    assert ranks(store) == {own: 0, 1 - own: 1}


def test_another_step_and_another_launch_are_not_attributed(store):
    made, batches = first_rank()
    greet(store, made)
    for seq, each in enumerate(batches):
        post(store, 0, seq, each)
    post(store, 1, 0, fault(made.layers, step=SICK + 1))
    store.ingest.hello(RUN, "later", wire.dump(made.hello(rank=1, world_size=3, launch="two")))
    store.ingest.batch(RUN, "later", 0, wire.dump(fault(made.layers)))
    assert ranks(store) == {0: None, 1: None}


def test_other_ranks_are_not_drawn_not_waited_for_and_leave_the_log(store, monkeypatch):
    monkeypatch.setattr(sealing, "MOST_BATCHES", 2)
    made, batches = first_rank()
    greet(store, made)
    post(store, 0, 0, batches[0])
    post(store, 1, 0, fault(made.layers))
    post(store, 1, 1, fault(made.layers, step=25))
    pictures = store.pictures(50)
    store.compactor.compact()
    assert store.count(batch) == 3, "it waits until the run has come so far"
    post(store, 0, 1, batches[1])
    store.compactor.compact()
    with store.database.read() as connection:
        joined = (session.c.session == batch.c.session) & (session.c.rank == 1)
        assert connection.execute(select(func.count()).select_from(batch).join(session, joined)).scalar_one() == 1
    assert ranks(store)[0] == 1
    assert post(store, 1, 0, fault(made.layers)).status == "duplicate"
    assert json.loads(pictures)["samples"] == 10
    assert json.loads(store.pictures(50))["samples"] == 20


def test_what_is_told_of_a_resumed_run_waits_for_its_own_launch(store, monkeypatch):
    monkeypatch.setattr(sealing, "MOST_BATCHES", 1)
    made, batches = first_rank()
    store.ingest.hello(RUN, "before", wire.dump(made.hello(launch="zero")))
    for seq, each in enumerate((batches[0], batches[2])):
        store.ingest.batch(RUN, "before", seq, wire.dump(each))
    greet(store, made)
    post(store, 1, 0, fault(made.layers))
    store.compactor.compact()
    for seq, each in enumerate(batches[:2]):
        post(store, 0, seq, each)
    assert ranks(store)[0] == 1
    store.compactor.compact()
    with store.database.read() as connection:
        query = select(func.count()).select_from(batch).where(batch.c.session == "r1")
        assert connection.execute(query).scalar_one() == 0
