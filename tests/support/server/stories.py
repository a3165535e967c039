"""Runs to draw at random: launches that overlap, leave holes, and change the interval on the way."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from support import streams
from support.server.archives import LAYERS, decoded


@dataclass(frozen=True)
class Part:
    """So many samples at one interval; ``seed`` says which."""

    first: int
    every: int
    steps: int
    seed: int


@dataclass(frozen=True)
class Told:
    """A launch, as its only session tells of it, in batches of ``size`` steps."""

    parts: tuple[Part, ...]
    size: int = 64
    end: str | None = "finished"

    @cached_property
    def streams(self):
        return [stream(np.random.default_rng(each.seed), each.steps, each.first, each.every) for each in self.parts]

    def span(self):
        """The first and the last step that it measured."""
        last = self.parts[-1]
        return self.parts[0].first, last.first + (last.steps - 1) * last.every


def stream(rng, steps, first, every):
    """Measurements over all orders of magnitude, with zeros, layers without a gradient, and infinities."""
    absmax = (10 ** rng.uniform(-12, 3, (steps, LAYERS))).astype(np.float32)
    absmax[rng.random(absmax.shape) < 0.05] = 0
    absmax[rng.random(absmax.shape) < 0.05] = np.nan
    absmax[rng.random(absmax.shape) < 0.05] = np.inf
    loss = rng.normal(size=steps)
    loss[rng.random(steps) < 0.05] = rng.choice([np.nan, np.inf, -np.inf])
    return streams.Stream(absmax, loss, first_step=first, every=every)


@st.composite
def launches(draw, longest=120, intervals=(1, 1, 10, 100)):
    """Launches of up to three intervals, one after the other, of up to ``longest`` samples each."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        at, parts = draw(st.integers(0, 400)), []
        for every in draw(st.lists(st.sampled_from(intervals), min_size=1, max_size=3)):
            first, steps = -(-at // every) * every, draw(st.integers(1, longest))
            parts.append(Part(first, every, steps, draw(st.integers(0, 2**32 - 1))))
            at = first + (steps - 1) * every + 1 + draw(st.sampled_from([0, 0, 90]))
        made.append(Told(tuple(parts), draw(st.sampled_from([5, 30, 64])), draw(st.sampled_from([None, "finished"]))))
    return made


def send(store, story, size=None):
    """Send it to a store that is empty then; ``size``: in batches of so many steps, whatever it says."""
    store.clear()
    for number, told in enumerate(story):
        seq = 0
        for each in told.streams:
            end = told.end if each is told.streams[-1] else None
            store.send(f"s{number}", each, size or told.size, first_seq=seq, end=end)
            seq += -(-len(each.absmax) // (size or told.size))


def counted(story, begin=0, end=2**31, raw_start=None):
    """Every sample that counts between two steps, both included: {step: absmax of each such sample [layer]}.

    A later launch hides what it went over again. ``raw_start`` tells, by the place of a launch and its interval, before
    which step single samples are gone: there all of an aggregate of eight counts where one of its samples does.
    """
    found = {}
    for place, told in enumerate(story):
        hidden = [later.span() for later in story[place + 1 :]]
        for each in told.streams:
            raw, width = (raw_start or {}).get((place, each.every), 0), 8 * each.every
            steps = each.steps().tolist()

            def is_seen(step, hidden=hidden):
                return begin <= step <= end and not any(low <= step <= high for low, high in hidden)

            low, high = told.span()
            for step, values in zip(steps, each.absmax, strict=True):
                aggregate = range(step // width * width, (step // width + 1) * width, each.every)
                of = [at for at in aggregate if low <= at <= high] if step < raw else [step]
                if any(map(is_seen, of)):
                    found.setdefault(step, []).append(values)
    return found


def expected(samples, width, start, layer):
    """What a bucket must hold of a layer: its finite values in float64, and how many are not finite."""
    values = [float(row[layer]) for step, rows in samples.items() if start <= step < start + width for row in rows]
    return [value for value in values if np.isfinite(value)], sum(np.isinf(value) for value in values)


def widths_of(answer):
    """Return the width of each bucket, which ends where the next span begins, and that of its whole span."""
    starts, uniform = decoded(answer["steps"]), {"step": 0, "bucket_steps": answer["bucket_steps"]}
    spans = answer["spans"] or [uniform]
    assert answer["bucket_steps"] == min(span["bucket_steps"] for span in spans)
    of_span = np.array([span["bucket_steps"] for span in spans])
    numbers = np.searchsorted([span["step"] for span in spans], starts, side="right") - 1
    assert (starts % of_span[numbers] == 0).all()
    ends = np.append([span["step"] for span in spans[1:]], np.inf)[numbers]
    return np.minimum(of_span[numbers], ends - starts), of_span[numbers]


def assert_counted(line, bucket, samples, width, start, layer, rough):
    """Hold a bucket of a series against the samples that count, whose envelope it may exceed by ``rough``."""
    finite, nonfinite = expected(samples, width, start, layer)
    assert line["count"][bucket] == len(finite)
    assert line["nonfinite"][bucket] == nonfinite
    drawn = [line[name][bucket] for name in ("min", "mean", "max")]
    if not finite:
        assert np.isnan(drawn).all()
        return
    assert min(finite) * (1 - rough) <= drawn[0] <= min(finite)
    assert max(finite) <= drawn[2] <= max(finite) * (1 + rough)
    np.testing.assert_allclose(drawn[1], np.mean(finite), rtol=1e-6 + rough)
