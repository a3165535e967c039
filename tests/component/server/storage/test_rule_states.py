"""The rules' memory in pieces: what two collectors write in turn, each reads as it was written."""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select, text

from gradcanary import wire
from gradcanary_server.rules.state import RuleState
from gradcanary_server.storage import rule_states, runs
from gradcanary_server.storage.rule_states import RuleStateStore
from gradcanary_server.storage.schema import rule_state
from support.effort import EFFORT
from support.server.archives import RUN
from support.streams import Stream, collapsed, falling_loss, healthy

LAYERS = 150
"""Of which a state has a few pieces."""

HAPPENINGS = ("moves", "grows", "shrinks", "is undone", "is forgotten", "another run")


class UndoneError(Exception):
    """What ends a transaction without a commit."""


def undo():
    raise UndoneError


def moved(state, how, seed):
    """A state that follows on another one; not one that a fold makes, for packing knows nothing of rules."""
    rng, after = np.random.default_rng(seed), state.copy()
    if how == "grows":
        after.make_room(len(after.present) + int(rng.integers(1, LAYERS)), int(rng.integers(0, 60)))
    width = len(after.present)
    for array in after.arrays_by_layer():
        flat = array.reshape(-1)
        some = rng.integers(0, max(flat.size, 1), min(flat.size, 5))
        flat[some] = rng.integers(0, 2, len(some)) if array.dtype == bool else rng.integers(0, 200, len(some))
    counting = rng.integers(0, max(width, 1), 0 if how == "shrinks" else min(width, 40))
    after.scores.unshare()
    if how == "shrinks":
        after.scores.score[:] = 0
    after.scores.score[:, counting], after.scores.since[:, counting] = 3.5, int(rng.integers(0, 1000))
    after.losses = rng.random(int(rng.integers(0, 50)))
    after.progress = replace(after.progress, last_step=int(rng.integers(0, 10**9)))
    return after


@pytest.fixture
def new_run(archive):
    numbers = itertools.count()

    def new_run():
        name = f"run-{next(numbers)}"
        with archive.database.write() as connection:
            runs.create_run(connection, name, 0.0, {})
        return name

    return new_run


story = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(HAPPENINGS), st.integers(0, 2**32 - 1)), min_size=1, max_size=10
)


@settings(max_examples=12 * EFFORT, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story)
def test_rule_state_of_two_collectors_in_turn(archive, new_run, story):
    collectors, truth, name = [RuleStateStore(), RuleStateStore()], RuleState.empty().pack(), new_run()
    for who, what, seed in story:
        if what == "is forgotten":
            collectors[who] = RuleStateStore()
        if what == "another run":
            with archive.database.write() as connection:
                connection.execute(text("DELETE FROM run WHERE name = :name"), {"name": name})
            truth, name = RuleState.empty().pack(), new_run()
        with contextlib.suppress(UndoneError), archive.database.write() as connection:
            row = runs.get_run(connection, name)
            memory = collectors[who].read(connection, row)
            assert memory.state.pack() == truth
            assert b"".join(memory.parts) in (truth, b"")
            after = moved(memory.state, what, seed)
            collectors[who].rewrite(connection, row.run_id, memory, after)
            if what == "is undone":
                undo()
            truth = after.pack()
        with archive.database.read() as connection:
            assert rule_states.read_state(connection, runs.get_run(connection, name).run_id).state.pack() == truth


def ended(archive, ingests):
    """Send a training to several collectors in turn; return all that is stored of it."""
    stream = Stream(collapsed(240, 100, (4, 5), 120), falling_loss(240))
    ingests[0].hello(RUN, "s", wire.dump(stream.hello()))
    for seq in range(30):
        ingests[seq % len(ingests)].batch(RUN, "s", seq, wire.dump(stream.batch(8 * seq, 8 * seq + 8)))
    with archive.database.read() as connection:
        return rule_states.read_state(connection, runs.get_run(connection, RUN).run_id).parts


def test_two_collectors_in_turn_remember_what_one_does(archive):
    alone = ended(archive, [archive.ingest])
    archive.clear()
    first = archive.ingest
    archive.forget()
    assert ended(archive, [first, archive.ingest]) == alone
    assert len(alone) > 1


def test_a_batch_reads_nothing_of_the_memory_and_writes_what_it_moved(archive):
    stream = Stream(healthy(200, 400))
    archive.ingest.hello(RUN, "s", wire.dump(stream.hello()))
    for seq in range(19):
        archive.ingest.batch(RUN, "s", seq, wire.dump(stream.batch(5 * seq, 5 * seq + 5)))
    seen, names = [], []

    def note(statement, times=1):
        names.append(statement)
        if "rule_state" in statement:
            seen.extend([statement.split()[0]] * times)

    def note_of_sqlalchemy(_connection, _cursor, statement, parameters, _context, executemany):
        note(statement, len(parameters) if executemany else 1)

    def trace(connection, *_):  # SQLite's driver executes the statements of a batch itself
        connection.set_trace_callback(note)

    engine = archive.database._engine
    kind, noted = (
        ("checkout", trace) if engine.dialect.name == "sqlite" else ("before_cursor_execute", note_of_sqlalchemy)
    )
    event.listen(engine, kind, noted)
    archive.ingest.batch(RUN, "s", 19, wire.dump(stream.batch(95, 100)))
    event.remove(engine, kind, noted)
    assert any(name.startswith("INSERT INTO batch") for name in names)
    assert {*seen} == {"UPDATE"}
    written = len(seen)
    with archive.database.read() as connection:
        pieces = connection.execute(select(func.count()).select_from(rule_state)).scalar_one()
    assert written <= pieces / 2
