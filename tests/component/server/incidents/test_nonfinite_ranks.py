"""What the other ranks of a replicated model tell: where a gradient that is not finite came from, and nothing else."""

import json

import numpy as np
import pytest
from sqlalchemy import event, func, select

from gradcanary import wire
from gradcanary_server.incidents import repository
from gradcanary_server.incidents.briefs import Briefs
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import runs
from gradcanary_server.storage.schema import batch, session
from gradcanary_server.tsdb import compaction
from support import streams
from support.server.archives import LAYERS, RUN

SICK = 12
PARTIAL, NONFINITE = wire.STATES.index("partial"), wire.STATES.index("nonfinite")


def first_rank(*, own=(), sick=(SICK,)):
    """A stream in which two of three layers are not finite at a step; of its own are those that it says so of."""
    absmax = np.full((30, LAYERS), 1e-2, np.float32)
    absmax[sick, :2] = np.inf
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


def greet(archive, made, ranks=3):
    for rank in range(ranks):
        place = {"rank": rank, "world_size": ranks, "launch": "one"}
        archive.ingest.hello(RUN, f"r{rank}", wire.dump(made.hello(**place)))


def post(archive, rank, seq, message):
    return archive.ingest.batch(RUN, f"r{rank}", seq, wire.dump(message))


def ranks(archive):
    """The rank of each layer of the incident."""
    case = archive.read(lambda c, run: repository.latest_incident(c, run.run_id, "nonfinite"))
    return {layer: member.rank for layer, member in case.members.items()}


@pytest.mark.parametrize("comes_first", [0, 1])
def test_a_nan_is_attributed_to_its_rank_whoever_comes_first(archive, comes_first):
    made, batches = first_rank()
    greet(archive, made)
    post(archive, 0, 0, batches[0])
    for rank in (comes_first, 1 - comes_first):
        sent = (1, batches[1]) if rank == 0 else (0, fault(made.layers))
        assert post(archive, rank, *sent).status == "stored"
    assert ranks(archive) == {0: 1, 1: None}, "of the other layer nobody knows"


def test_nonfinite_rank_is_the_lower_of_two(archive):
    made, batches = first_rank()
    greet(archive, made)
    for seq, each in enumerate(batches[:2]):
        post(archive, 0, seq, each)
    for rank in (2, 1):
        post(archive, rank, 0, fault(made.layers))
    assert ranks(archive)[0] == 1


def test_the_first_rank_tells_its_own_by_the_phase(archive):
    made, batches = first_rank(own=(0, 1))
    greet(archive, made)
    for seq, each in enumerate(batches):
        post(archive, 0, seq, each)
    assert ranks(archive) == {0: 0, 1: 0}


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("comes_first", [0, 1])
def test_the_first_rank_does_not_speak_for_what_another_one_had(archive, own, comes_first):
    """Both have one in the same step: each layer has the rank that it came from."""
    made, batches = first_rank(own=(own,))
    greet(archive, made)
    post(archive, 0, 0, batches[0])
    for rank in (comes_first, 1 - comes_first):
        post(archive, rank, *((1, batches[1]) if rank == 0 else (0, fault(made.layers, layers=(1 - own,)))))
    assert ranks(archive) == {own: 0, 1 - own: 1}


def test_another_step_and_another_launch_are_not_attributed(archive):
    made, batches = first_rank()
    greet(archive, made)
    for seq, each in enumerate(batches):
        post(archive, 0, seq, each)
    post(archive, 1, 0, fault(made.layers, step=SICK + 1))
    archive.ingest.hello(RUN, "later", wire.dump(made.hello(rank=1, world_size=3, launch="two")))
    archive.ingest.batch(RUN, "later", 0, wire.dump(fault(made.layers)))
    assert ranks(archive) == {0: None, 1: None}


@pytest.mark.parametrize("comes_first", [0, 1])
@pytest.mark.parametrize("again", [SICK + 2, SICK + 9])
def test_a_nan_that_comes_back_is_attributed_to_the_rank_that_then_measured_it(archive, again, comes_first):
    """Ranks measure their own gradients only after a first one; in the same batch of the first rank, or in the next."""
    made, batches = first_rank(sick=(SICK, again))
    greet(archive, made)
    sent = [(0, seq, each) for seq, each in enumerate(batches)]
    sent.insert(1 if comes_first else 3, (1, 0, fault(made.layers, step=again)))
    for each in sent:
        post(archive, *each)
    assert ranks(archive) == {0: 1, 1: None}


def test_a_nan_of_the_first_rank_that_comes_back_is_attributed(archive):
    made, (before, sick, last) = first_rank(own=(0,), sick=(SICK, SICK + 2))
    blocks = [each for each in sick.blocks if each.phase != "micro"]
    blocks.append(wire.Block("nonfinite", "micro", (SICK + 2,), (0,), wire.column("f", [1.0])))
    greet(archive, made)
    for seq, each in enumerate((before, wire.Batch(**{**vars(sick), "blocks": tuple(blocks)}), last)):
        post(archive, 0, seq, each)
    assert ranks(archive) == {0: 0, 1: None}


def test_a_rank_with_other_layers_is_told_of_it(archive):
    """As a stage of a pipeline is no replica of the first one; not before the layers of the first rank are known."""
    first, other = (streams.Stream(np.full((10, LAYERS), 1e-2, np.float32), names=names) for names in ("abc", "def"))
    beat = wire.dump(wire.Heartbeat(None, 0, 0, 0.0))

    def hello(rank, made):
        place = {"rank": rank, "world_size": 3, "launch": "one"}
        return archive.ingest.hello(RUN, f"r{rank}", wire.dump(made.hello(**place))).has_other_layers

    assert not hello(1, other)
    assert not hello(0, first)
    assert not hello(2, first)
    assert hello(1, other)
    assert [archive.ingest.heartbeat(RUN, f"r{rank}", beat).has_other_layers for rank in range(3)] == [
        False,
        True,
        False,
    ]


def test_other_ranks_are_not_drawn_not_waited_for_and_leave_the_log(archive, monkeypatch):
    monkeypatch.setattr(compaction, "MOST_BATCHES", 2)
    made, batches = first_rank()
    greet(archive, made)
    post(archive, 0, 0, batches[0])
    post(archive, 1, 0, fault(made.layers))
    post(archive, 1, 1, fault(made.layers, step=25))
    pictures = archive.pictures(50)
    archive.compactor.compact()
    assert archive.count(batch) == 3, "it waits until the run has come so far"
    post(archive, 0, 1, batches[1])
    archive.compactor.compact()
    with archive.database.read() as connection:
        joined = (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session) & (session.c.rank == 1)
        assert connection.execute(select(func.count()).select_from(batch).join(session, joined)).scalar_one() == 1
    assert ranks(archive)[0] == 1
    assert post(archive, 1, 0, fault(made.layers)).status == "duplicate"
    assert json.loads(pictures)["samples"] == 10
    assert json.loads(archive.pictures(50))["samples"] == 20


def test_nonfinite_rank_of_a_resumed_run_waits_for_its_launch(archive, monkeypatch):
    monkeypatch.setattr(compaction, "MOST_BATCHES", 1)
    made, batches = first_rank()
    archive.ingest.hello(RUN, "before", wire.dump(made.hello(launch="zero")))
    for seq, each in enumerate((batches[0], batches[2])):
        archive.ingest.batch(RUN, "before", seq, wire.dump(each))
    greet(archive, made)
    post(archive, 1, 0, fault(made.layers))
    archive.compactor.compact()
    for seq, each in enumerate(batches[:2]):
        post(archive, 0, seq, each)
    assert ranks(archive)[0] == 1
    archive.compactor.compact()
    with archive.database.read() as connection:
        query = select(func.count()).select_from(batch).where(batch.c.session == "r1")
        assert connection.execute(query).scalar_one() == 0


MANY = 260
"""Sessions: more than the 256 of which a collector once kept the layers."""


@pytest.fixture
def learnt(archive, monkeypatch):
    """The work that a collector does to learn layers: queries for a layer set, and names that the rules looked up."""
    found, entry_of = [], Rules.entry_of

    def note(_connection, _cursor, statement, *_rest):
        if "FROM layer_set" in statement or statement.startswith("SELECT session.layer_sets \nFROM"):
            found.append(statement)

    def note_name(rules, name):
        found.append(name)
        return entry_of(rules, name)

    event.listen(archive.database._engine, "before_cursor_execute", note)
    monkeypatch.setattr(Rules, "entry_of", note_name)
    yield found
    event.remove(archive.database._engine, "before_cursor_execute", note)


def test_many_ranks_with_the_same_layers_are_learnt_once(archive, learnt):
    made, batches = first_rank()
    greet(archive, made, MANY)
    post(archive, 0, 0, batches[0])
    for rank in range(1, MANY):
        post(archive, rank, 0, fault(made.layers))
    assert len([each for each in learnt if "FROM layer_set" in each]) == 1
    learnt.clear()
    for rank in range(1, MANY):
        post(archive, rank, 1, fault(made.layers, SICK + 1))
    assert learnt == []


def test_runs_of_one_model_are_learnt_once(archive, learnt):
    made, batches = first_rank()
    for number in range(10):
        archive.ingest.hello(f"run-{number}", "s", wire.dump(made.hello()))
        archive.ingest.batch(f"run-{number}", "s", 0, wire.dump(batches[0]))
    assert sorted(each for each in learnt if "FROM" not in each) == sorted(made.names), "the rules were compiled once"
    assert len(learnt) == len(made.names) + 1


def test_runs_in_turn_are_judged_by_their_own_layers(archive):
    made, batches = first_rank()
    names = {"forth": made.names, "back": made.names[::-1], "other": tuple(f"other.{each}" for each in made.names)}
    streams_of = {name: streams.Stream(made.absmax, names=of) for name, of in names.items()}
    for name, stream in streams_of.items():
        archive.ingest.hello(name, "s", wire.dump(stream.hello()))
    for seq in range(len(batches)):
        for name, stream in streams_of.items():
            archive.ingest.batch(name, "s", seq, wire.dump(stream.batch(10 * seq, 10 * seq + 10)))
    with archive.database.read() as connection:
        for name, of in names.items():
            (brief,) = Briefs("http://here").read(connection, runs.get_run(connection, name).run_id, 0.0)
            case = repository.latest_incident(connection, runs.get_run(connection, name).run_id, "nonfinite")
            known = repository.layer_names(connection, runs.get_run(connection, name).run_id)
            assert {known[layer] for layer in case.members} == set(of[:2])
            assert brief.rule == "nonfinite"
