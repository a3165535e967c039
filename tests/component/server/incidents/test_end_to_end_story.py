"""The story: a LoRA of an image model trains well for 12,000 steps, then three of its blocks go quiet."""

import json

import numpy as np
import pytest
from sqlalchemy import select

from gradcanary_server.ingest.service import Ingest
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.types import LayerFacts
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import incident
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore
from support.server.clocks import URL, delivering, listen
from support.server.wired import batches, greeting
from support.traces import Trace, launch

AT, BLOCKS, KINDS = 12_000, 10, ("to_q", "to_k", "to_v")
FALLEN = (3, 4, 5)
STEP_S = 3.0
SPANS = ((1, 0, 1_000), (10, 1_000, 11_600), (1, 11_600, 12_200))
"""How often, from and to which step: all in the beginning, each tenth, and all again when there was time for it."""


def layers():
    names = [f"blocks.{block}.{kind}.lora_{half}" for block in range(BLOCKS) for kind in KINDS for half in "AB"]
    return tuple(LayerFacts(number, name, (8, 640), "float32", "Linear", 0) for number, name in enumerate(names))


def trace(every, begin, end, *, falls):
    """Gradients as such trainings have them: lora_A without any at first, a third of all small for ever, batches that
    differ, a slow decline; from step 12,000 on three blocks lose four decades within ten steps.
    """
    steps, count = np.arange(begin, end, every), len(layers())
    random = np.random.default_rng(begin + 1)
    own = np.tile([-4.4, -3.3, -4.2, -3.1, -3.6, -2.4], BLOCKS) + np.random.default_rng(0).normal(0, 0.25, count)
    level = own - 0.4 * np.minimum(steps / 6_000, 1)[:, None]
    level = level + random.normal(0, 0.15, (len(steps), 1)) + random.normal(0, 0.15, (len(steps), count))
    absmax = 10**level
    absmax[:, ::2][steps == 0] = 0
    if falls:
        blocks = np.array([int(each.name.split(".")[1]) for each in layers()])
        way = np.clip((steps - AT + 1) / 10, 0, 1)
        absmax[:, np.isin(blocks, FALLEN)] *= 10 ** (-4 * way)[:, None]
    loss = 0.12 * 10 ** (-0.1 * np.arange(begin, end) / AT) * random.lognormal(0, 0.3, end - begin)
    return Trace(absmax, every, begin, loss)


@pytest.mark.parametrize("falls", [True, False])
def test_the_story_is_one_message_within_thirty_steps_and_without_the_fall_none(new_store, receiver_factory, falls):
    store, receiver, sets = new_store(bare=True), receiver_factory(), LayerSetCache()
    listen(store, receiver)
    ingest = Ingest(store.database, Rules(), sets, Reader(BatchLog(sets), TileStore()), URL)
    of = launch(layers())
    ingest.hello("story", "s", greeting(of))
    parts = [trace(*span, falls=falls) for span in SPANS]
    bodies = [body for part in parts for body in batches(part, of, tuple(range(0, len(part.absmax), 64)))]
    with delivering(store):
        for seq, body in enumerate(bodies):
            assert ingest.batch("story", "s", seq, body).status == "stored"
            if json.loads(body)["steps"][-1] >= AT:
                store.database.wait(STEP_S * 64)
            else:
                store.database.ahead_s += STEP_S * 64
        store.database.wait(3_600)
    spoken = [row for row in store.rows(select(incident)) if row["severity"] != "information"]
    if not falls:
        assert (spoken, receiver.got) == ([], [])
        return
    [message], [row] = receiver.got, spoken
    assert message.type == "gradient.collapse.opened"
    assert row["opened_step"] <= AT + 30
    assert AT <= message.data["opened_step"] <= AT + 30
    fallen = [each["name"] for each in message.data["worst"]]
    assert {int(name.split(".")[1]) for name in fallen} <= set(FALLEN)
    assert message.data["counts"] == {"firing": 18, "ever": 18, "layers": 60}
    assert message.data["prefixes"] == ["blocks.3-5.*"]
