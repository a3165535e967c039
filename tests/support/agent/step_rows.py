"""Rows of steps, as the agent puts them into batches."""

from array import array

from hypothesis import strategies as st

from gradcanary import wire
from gradcanary.export import batches
from gradcanary.export.batches import Column, StepRow
from support.agent.scripted import LIMITS

ROOMY = wire.Limits(**LIMITS)


SETS = [
    wire.LayerSet(name, tuple(wire.Layer(f"{name}.{i}", (2,), 2, "float32", 0, "Linear") for i in range(width)))
    for name, width in (("a", 3), ("b", 5))
]


PLAIN = (None, "float32", None)


ACCUMULATORS = [PLAIN, (None, "bfloat16", "bfloat16"), ("float32", "float32", "bfloat16")]


def row(
    step: int,
    layer_set: wire.LayerSet = SETS[0],
    *,
    sampled: bool = True,
    dtypes: batches.Dtypes = PLAIN,
    every: int = 1,
) -> StepRow:
    width = len(layer_set.layers)
    made = StepRow(
        layer_set, step, float(step), 2, 0, 0, bytes(width) if sampled else None, (dtypes,) * width, 0.01, every
    )
    if sampled:
        made.columns["absmax"] = Column("accumulated", None, array("f", [step + i / 8 for i in range(width)]))
        if step % 3 == 0:
            made.columns["zero_fraction"] = Column("accumulated", (1,), array("f", [0.5]))
    made.metrics.append((("loss", ()), step, step / 2))
    return made


@st.composite
def streams(draw: st.DrawFn) -> list[StepRow]:
    """Rows of rising steps, some not sampled, with a change of layers and one of the interval on the way."""
    kinds = draw(st.lists(st.tuples(st.booleans(), st.sampled_from(ACCUMULATORS)), min_size=1, max_size=90))
    change, wider = (draw(st.integers(0, len(kinds))) for _ in range(2))
    return [
        row(
            step,
            SETS[step >= change],
            sampled=sampled and (step < wider or step % 10 == 0),
            dtypes=dtypes,
            every=10 if step >= wider else 1,
        )
        for step, (sampled, dtypes) in enumerate(kinds)
    ]


def sampled_steps(rows: list[StepRow]) -> list[int]:
    return [each.step for each in rows if each.states is not None]
