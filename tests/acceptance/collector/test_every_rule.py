"""One run with every fault, over HTTP into a real collector: an incident each, with words, a cause and a fix."""

from dataclasses import replace

import numpy as np

from gradcanary import wire
from support.streams import Session, Stream, collapsed, healthy

LAYERS, STEPS = 24, 256
LOST, EXPLODED, UNUSED, SUMMED, STOPPED, HALF, DROPPED, SEEN = range(4, 12)

SEVERITIES = {
    "vanished": "critical",
    "explosion": "warning",
    "unused": "information",
    "accumulation_loss": "critical",
    "accumulator": "information",
    "frozen": "critical",
    "fp16_underflow": "critical",
    "collapse": "critical",
}


def sparse(stat, phase, steps, layer, values):
    return wire.Block(stat, phase, tuple(steps), (layer,), wire.column("f", values))


def faults():
    """Every fault in a layer of its own, and the stats that a layer has at some steps only."""
    absmax = healthy(STEPS, LAYERS)
    absmax[150:, LOST] = np.nan  # no gradient
    absmax[160:, EXPLODED] *= 1e4
    absmax[:, UNUSED] = np.nan
    absmax[150:, DROPPED] = 0
    stream = Stream(absmax, loss=np.linspace(2, 1, STEPS), stored="bfloat16")
    batches = list(stream.batches())
    zeros = list(range(192, 256, 4))
    batches[0] = replace(
        batches[0],
        accumulators=(*batches[0].accumulators, wire.Accumulator((HALF,), None, "float32", "float16")),
        blocks=(*batches[0].blocks, sparse("zero_fraction", "accumulated", [8], HALF, [0.1])),
    )
    batches[1] = replace(
        batches[1], blocks=(*batches[1].blocks, sparse("frozen_fraction", None, [100], STOPPED, [0.3]))
    )
    batches[3] = replace(
        batches[3],
        blocks=(
            *batches[3].blocks,
            sparse("accumulation_error", "accumulated", [200], SUMMED, [0.22]),
            sparse("norm_ratio", "accumulated", [200], SUMMED, [0.79]),
            sparse("frozen_fraction", None, [200], STOPPED, [0.97]),
            sparse("zero_fraction", "accumulated", zeros, HALF, [0.95] * len(zeros)),
        ),
    )
    return stream, batches


def test_each_fault_is_an_incident_with_words_a_cause_and_a_fix(collector):
    stream, batches = faults()
    session = Session(collector.url)
    fact = wire.Fact("dead_config_key", "AdamW has no setting 'grad_dtype'.", (stream.names[SEEN],))
    session.put_hello(stream.hello(facts=(fact,))).raise_for_status()
    for seq, batch in enumerate(batches):
        session.post_batch(seq, batch).raise_for_status()
    found = {each["rule"]: each for each in collector.get("/api/v1/incidents").json()["incidents"]}
    assert {rule: each["severity"] for rule, each in found.items()} == SEVERITIES
    full = {rule: collector.get(f"/api/v1/incidents/{each['id']}").json() for rule, each in found.items()}
    named = {rule: [layer["layer"] for layer in each["layers"]] for rule, each in full.items()}
    alone = {"vanished": LOST, "explosion": EXPLODED, "unused": UNUSED, "accumulation_loss": SUMMED, "frozen": STOPPED}
    assert named == {
        **{rule: [layer] for rule, layer in alone.items()},
        "fp16_underflow": [HALF],
        "collapse": [DROPPED],
        "accumulator": list(range(LAYERS)),
    }
    assert found["vanished"]["summary"] == (
        "1 of 24 parameters (blocks.2.attn.lora_A.weight) lost its gradient at step 150: no gradient followed."
    )
    assert "lost 22 % of its gradient while it was summed" in found["accumulation_loss"]["summary"]
    assert "up to 22 % of the norm" in " ".join(found["accumulation_loss"]["likely_cause"]["evidence"])
    assert {each["fix"]["framework"] for each in found.values()} == {"peft"}
    assert all(each["fix"]["text"] and each["fix"]["code"] for each in found.values())
    assert found["vanished"]["likely_cause"]["code"] == "cut_off"
    assert found["accumulator"]["likely_cause"]["code"] == "low_precision_sum"
    assert found["explosion"]["id"] in found["vanished"]["likely_cause"]["incidents"]
    [row] = [each for each in collector.get("/api/v1/runs/run-1/layers").json()["layers"] if each["layer"] == LOST]
    assert row["rules"] == {"vanished": "firing", "accumulator": "info"}
    assert collector.get("/api/v1/runs/run-1").json()["firing"]["accumulator"] == 0


def test_a_learning_rate_that_jumped_before_is_told_with_the_cause(module_collector):
    stream, jumped = Stream(collapsed(200, LAYERS, (0, 3), 150)), 140
    session = Session(module_collector.url, run="jumped")
    session.put_hello(stream.hello()).raise_for_status()
    for seq, batch in enumerate(stream.batches()):
        rates = [1e-3 if step < jumped else 5e-6 for step in batch.steps]
        metric = wire.Metric("lr0", (), batch.steps, wire.column("d", rates))
        session.post_batch(seq, replace(batch, metrics=(metric,))).raise_for_status()
    (found,) = module_collector.get("/api/v1/incidents", run="jumped").json()["incidents"]
    cause = module_collector.get(f"/api/v1/incidents/{found['id']}").json()["likely_cause"]
    assert cause["code"] == "rate_jump"
    assert cause["evidence"] == [
        "the learning rate of parameter group 0 fell 200 times at step 140, from 0.001 to 5e-6"
    ]
