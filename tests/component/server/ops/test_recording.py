"""A recording has what the rules read: folded again it gives the same memory, whatever was compacted meanwhile."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcanary_server.ops import recording, replay_source, rules_command
from gradcanary_server.ops.simulation import Simulation
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from gradcanary_server.storage import rule_states, runs
from gradcanary_server.tsdb import retention, tiles
from support import streams
from support.dialects import one_store
from support.server.archives import LAYERS, RUN


def stream(rng, steps, first, every, names):
    """Gradients that come and go, and a loss that is not finite now and then."""
    absmax = (10 ** rng.uniform(-6, 1, (steps, len(names)))).astype(np.float32)
    absmax[steps // 2 :, 0] *= np.float32(1e-4)
    for value in (0, np.nan, np.inf):
        absmax[rng.random(absmax.shape) < 0.02] = value
    loss = np.where(rng.random(steps) < 0.02, np.nan, rng.uniform(0.1, 1, steps))
    return streams.Stream(absmax, loss, first_step=first, every=every, stored="bfloat16", names=names)


def folded_again(archive):
    with archive.database.read() as connection:
        row = runs.get_run(connection, RUN)
        packed = b"".join(rule_states.read_state(connection, row.run_id).parts)
    state, rules = RuleState.empty(), Rules()
    for take in replay_source.source_of_recording(
        recording.recording_lines(archive.database, archive.archive, row, "live")
    ).chunks:
        assert len(take.times) == len(take.samples.steps)
        state, _ = evaluate(state, take.launch, take.samples, rules)
    return state.pack(), packed


@one_store
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 90), st.sampled_from([1, 1, 10])), min_size=1, max_size=3),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from([1, 7, 64]),
    st.integers(0, 2**32 - 1),
)
def test_a_recording_folds_to_the_memory_of_the_collector(module_archive, monkeypatch, launches, size, seed):
    """Launches go back in steps, change their interval, have other layers, and end in the middle of a tile."""
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    module_archive.clear()
    rng = np.random.default_rng(seed)
    for number, parts in enumerate(launches):
        step, seq, begun = 10 * number, 0, None
        for steps, every in parts:
            part = stream(rng, steps, -(-step // every) * every, every, streams.layer_names(LAYERS)[number:])
            begun = begun or part
            module_archive.send(f"s{number}", part, size, first_seq=seq, layer_sets=(begun.layers,))
            seq += -(-steps // size)
            step = part.first_step + steps * every
    again, known = folded_again(module_archive)
    assert again == known
    module_archive.compactor.compact()
    assert folded_again(module_archive) == (known, known)
    module_archive.ingest.end(RUN, "s0", b'{"state": "finished", "last_step": null, "error": null}')
    module_archive.compactor.compact()
    assert folded_again(module_archive) == (known, known)


def test_samples_that_are_gone_are_said_to_be(archive, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    archive.send("s0", stream(np.random.default_rng(0), 200, 0, 1, streams.layer_names(LAYERS)), 64, end="finished")
    archive.compactor.compact()
    with archive.database.write() as connection:
        for each in retention.expired_streams(connection, 2e9):
            while retention.drop_raw_chunk(connection, *each):
                pass
        row = runs.get_run(connection, RUN)
    source = replay_source.source_of_recording(
        recording.recording_lines(archive.database, archive.archive, row, "finished")
    )
    trial = Simulation(Rules(), LAYERS)
    steps = []
    for take in source.chunks:
        trial.play(take)
        steps += take.samples.steps.tolist()
    trial.finish(is_over=True)
    assert source.raw_start_step is not None
    assert steps == list(range(source.raw_start_step, 200))
    said = list(rules_command.report_lines(source, {"mine": trial}, (steps[0], steps[-1])))
    assert said[1].startswith(f"Single samples before step {source.raw_start_step} are gone (GRADCANARY_RAW_DAYS)")
