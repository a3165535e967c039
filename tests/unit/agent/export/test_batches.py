"""Rows are cut, packed, halved and given up: nothing is lost unseen, and the order stays."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary.export import batches
from gradcanary.export.batches import StepRow, UnsentBatch
from gradcanary.export.outbox import Outbox, RetryQueue
from support.agent.step_rows import ROOMY, row, sampled_steps, streams


def boxed() -> Outbox:
    return Outbox(RetryQueue(None, pytest.fail))


def accumulators(bodies: list[dict]) -> dict[tuple[str, int], batches.Dtypes]:
    """Return what a collector believes after these batches: the last record of each layer."""
    known: dict[tuple[str, int], batches.Dtypes] = {}
    for body in bodies:
        for record in body["accumulators"]:
            dtypes = (record["declared"], record["stored"], record["effective"])
            known.update({(body["layer_set"], layer): dtypes for layer in record["layers"]})
    return known


@given(streams(), st.integers(1, 64), st.integers(1, 40), st.integers(20_000, 30_000))
def test_a_cut_takes_at_least_one_row_of_one_layer_set_and_keeps_the_limits(rows, max_steps, max_points, max_body):
    limits = wire.Limits(max_body=max_body, max_points=max_points, max_layers=9)
    count = batches.count_fitting(rows, limits, max_steps)
    assert 1 <= count <= min(max_steps, len(rows))
    batch = batches.build_batch(rows[:count])
    assert {(each.layer_set.id, each.every) for each in rows[:count]} == {(batch.layer_set, batch.every)}
    if count > 1:
        points = sum(len(wire.uncolumn("f", block.values)) for block in batch.blocks)
        assert points <= max_points
        assert len(wire.dump(batch)) <= max_body


@given(streams())
def test_a_batch_says_every_value_of_its_rows_once(rows):
    rows = rows[: batches.count_fitting(rows, ROOMY, 64)]
    batch = batches.build_batch(rows)
    assert list(batch.steps) == sampled_steps(rows)
    said = {}
    for block in batch.blocks:
        values = iter(wire.uncolumn("f", block.values))
        for step in block.steps:
            for layer in block.layers or range(len(rows[0].layer_set.layers)):
                assert (block.stat, step, layer) not in said
                said[block.stat, step, layer] = next(values)
        assert next(values, None) is None
    assert said == {
        (stat, each.step, layer): value
        for each in rows
        for stat, column in each.columns.items()
        for layer, value in zip(column.layers or range(99), column.values, strict=False)
    }
    [loss] = [metric for metric in batch.metrics if metric.name == "loss"]
    assert loss.steps == tuple(each.step for each in rows)


def test_a_batch_holds_no_more_series_than_a_collector_takes():
    rows = [row(step) for step in range(10)]
    for each in rows:
        each.metrics += [((f"m{i}", (("step", str(each.step)),)), each.step, 0.0) for i in range(300)]
    count = batches.count_fitting(rows, ROOMY, 64)
    assert count == 3
    assert len(batches.build_batch(rows[:count]).metrics) <= batches.MAX_SERIES


def without_dtypes(body: bytes) -> dict[str, Any]:
    return {**json.loads(body), "accumulators": None}


@given(streams(), st.data())
def test_steps_arrive_in_order_or_are_counted_for_any_answers(rows, data):
    box, bodies, seqs, taken, waiting = boxed(), [], [], [], list(rows)
    while waiting or not box.is_empty:
        for _ in range(data.draw(st.integers(1, 30)) if waiting else 0):
            if waiting:
                box.add(waiting.pop(0))
        while (parcel := box.next_batch(ROOMY)) is not None:
            assert box.next_batch(ROOMY) is parcel
            answer = data.draw(st.sampled_from(["taken", "taken", "halve", "aside", "repeat"]))
            if answer == "taken":
                body = json.loads(parcel.body)
                assert body["dropped_steps"] <= box.lost
                bodies.append(body)
                seqs.append(parcel.seq)
                taken += json.loads(parcel.body)["steps"]
                box.acked()
            elif answer == "halve":
                box.halve()
            elif answer == "aside":
                box.set_aside()
            else:
                box.resend_all()
                again = box.next_batch(ROOMY)
                assert (again.seq, without_dtypes(again.body)) == (parcel.seq, without_dtypes(parcel.body))
    assert taken == sorted(taken)
    assert len(taken) + box.lost == len(sampled_steps(rows))
    assert all(before < after for before, after in pairwise(seqs))
    assert [step for body in bodies for step in body["steps"]] == taken


@given(streams(), st.data())
def test_a_collector_knows_the_last_dtype_of_every_layer(rows, data):
    box, bodies, waiting = boxed(), [], list(rows)
    while waiting:
        for _ in range(data.draw(st.integers(1, 30))):
            if waiting:
                box.add(waiting.pop(0))
        while (parcel := box.next_batch(ROOMY)) is not None:
            if batches.halve_batch(UnsentBatch(batches.parse_batch(parcel.body), 0)) and data.draw(st.booleans()):
                box.halve()
                continue
            bodies.append(json.loads(parcel.body))
            box.acked()
    expected = {(each.layer_set.id, layer): told for each in rows for layer, told in enumerate(each.accumulators)}
    assert accumulators(bodies) == expected


def test_halves_take_the_number_of_the_refused_batch_and_the_next():
    box = boxed()
    for step in range(9):
        box.add(row(step))
    box.next_batch(ROOMY)
    assert box.halve()
    sent = []
    while (parcel := box.next_batch(ROOMY)) is not None:
        sent.append((parcel.seq, list(json.loads(parcel.body)["steps"])))
        box.acked()
    assert sent == [(0, [0, 1, 2, 3, 4]), (1, [5, 6, 7, 8])]


def test_a_repeat_tells_a_new_database_what_the_old_one_knew():
    box = boxed()
    box.add(row(0))
    first = box.next_batch(ROOMY)
    box.resend_all()
    assert box.next_batch(ROOMY) == first, "nothing was known: the same bytes"
    box.acked()
    box.add(row(1))
    assert json.loads(box.next_batch(ROOMY).body)["accumulators"] == []
    box.resend_all()
    assert json.loads(box.next_batch(ROOMY).body)["accumulators"] != []


def test_dropped_steps_are_reported_where_they_are_missing():
    box = boxed()
    for step in (0, 1, 2):
        box.add(row(step))
    box.count_dropped(4)
    box.add(row(7))
    assert json.loads(box.next_batch(ROOMY).body)["dropped_steps"] == 4
    box.acked()
    box.count_dropped(1)
    assert box.dropped_steps == box.lost == 5
    box.add(row(8))
    assert json.loads(box.next_batch(ROOMY).body)["dropped_steps"] == 4, "it was lost behind this one"
    box.acked()
    box.add(row(10, sampled=False))
    assert json.loads(box.next_batch(ROOMY).body)["dropped_steps"] == 4, "a batch without steps shows no gap"
    box.acked()
    box.add(row(11))
    assert json.loads(box.next_batch(ROOMY).body)["dropped_steps"] == 5
    box.discard_all()
    assert box.is_empty
    assert box.lost == 6


def test_after_a_loss_the_next_batch_tells_all_accumulators():
    box = boxed()
    told = []
    for step in range(4):
        box.add(row(step))
        told.append(json.loads(box.next_batch(ROOMY).body)["accumulators"] != [])
        if step == 1:
            box.set_aside()
        else:
            box.acked()
    assert told == [True, False, True, False]


def packed(rows: list[StepRow], made: int = 0) -> UnsentBatch:
    return UnsentBatch(batches.build_batch(rows[: batches.count_fitting(rows, ROOMY, 64)]), made)


def points(batch: wire.Batch) -> dict:
    """Return every value of a batch by stat, step and layer, and its states, times and counts by step."""
    found: dict = {}
    for block in batch.blocks:
        values = iter(wire.uncolumn("f", block.values))
        width = len(wire.uncolumn("B", batch.state)) // len(batch.steps)
        for step in block.steps:
            found.update({(block.stat, step, layer): next(values) for layer in block.layers or range(width)})
        assert next(values, None) is None
    for key, code in (("state", "B"), ("times", "d")):
        column = wire.uncolumn(code, getattr(batch, key))
        width = len(column) // len(batch.steps) if batch.steps else 0
        found.update({(key, step): list(column[i * width :][:width]) for i, step in enumerate(batch.steps)})
    for key in ("micro_steps", "skipped", "clipped"):
        found.update({(key, step): each for step, each in zip(batch.steps, getattr(batch, key), strict=True)})
    return found


def metric_points(batch: wire.Batch) -> list:
    return sorted(
        (metric.name, metric.tags, step, value)
        for metric in batch.metrics
        for step, value in zip(metric.steps, wire.uncolumn("d", metric.values), strict=True)
    )


@given(streams(), st.integers(0, 10**9))
def test_a_batch_survives_its_bytes_and_its_count_of_dropped_steps_is_the_last(rows, dropped):
    batch = packed(rows).batch
    body = wire.dump(batch)
    assert batches.parse_batch(body) == batch
    assert batches.set_dropped_steps(body, dropped) == wire.dump(replace(batch, dropped_steps=dropped))
    assert batches.set_dropped_steps(batches.set_dropped_steps(body, 7), 0) == body


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"blocks": 1}', b"\xff", b"[" * 100_000])
def test_invalid_stored_batches_are_rejected(body):
    with pytest.raises(ValueError, match=r"."):
        batches.parse_batch(body)


@given(streams(), st.integers(100, 109))
def test_halves_are_the_whole(rows, made):
    whole = packed(rows, made)
    halves = batches.halve_batch(whole)
    moments = {*whole.batch.steps, *(step for metric in whole.batch.metrics for step in metric.steps)}
    assert (halves is None) == (len(moments) == 1)
    if halves is None:
        return
    first, second = (half.batch for half in halves)
    assert first.steps + second.steps == whole.batch.steps
    assert points(first) | points(second) == points(whole.batch)
    assert sorted(metric_points(first) + metric_points(second)) == metric_points(whole.batch)
    assert abs(len(first.steps) - len(second.steps)) <= 1
    assert [half.made for half in halves] == [made - len(second.steps), made]
    if len(whole.batch.steps) > 1:
        assert all(step <= first.steps[-1] for _, _, step, _ in metric_points(first))
