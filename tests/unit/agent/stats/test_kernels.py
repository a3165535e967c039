"""The numbers of a sample against float64, at the edges of float32, and what a record is read as."""

import math
import random
import struct
import weakref
from collections.abc import Callable
from itertools import accumulate
from operator import itemgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from gradcanary import wire
from gradcanary.export.batches import StepRow
from gradcanary.export.reader import COUNTED_AFTER_NONFINITE, FLOAT32_MAX, Reader
from gradcanary.guard import Guard, reraise
from gradcanary.model.distributed import Rank
from gradcanary.model.layers import Layers
from gradcanary.stats import kernels
from gradcanary.stats.accumulation import Fp32Reference, low_bits
from gradcanary.stats.kernels import is_measurable, measure, min_max, norm_of
from gradcanary.stats.sampler import Sampler
from gradcanary.stats.samples import MEASURED, NONFINITE, PARTIAL, ZERO, Forecast, Kind, Part, parts_of, read
from gradcanary.stats.weights import Frozen, forecasts
from gradcanary.tracking.clear_detection import MODIFIED, REPLACED, UNCHANGED, GradientIdentity
from gradcanary.tracking.records import StepRecord

TINY, HUGE = 2.0**-149, FLOAT32_MAX
"""The smallest and the largest float32 above zero."""

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-(2.0**60), 2.0**60, width=32).map(lambda x: 0.0 if abs(x) < 2.0**-60 else x)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


def layers_of(parameters: list[torch.nn.Parameter]) -> Layers:
    described = tuple(
        wire.Layer(f"p{i}", tuple(each.shape), each.numel(), "float32", 0, None) for i, each in enumerate(parameters)
    )
    layer_set = wire.LayerSet(wire.layer_set_id(described), described)
    return Layers(
        tuple(map(weakref.ref, parameters)), (0,) * len(parameters), layer_set, None, declared=(None,) * len(parameters)
    )


def record_of(
    gradients: list[torch.Tensor], *parts: Part, scale: float | None = None, reader: Reader | None = None
) -> StepRecord:
    """Return the record of a window with these gradients, sampled as the reader wishes."""
    parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    layers = layers_of(parameters)
    request = (reader or Reader(None, reraise)).request
    carried = None if scale is None else torch.tensor(scale)
    sums = Fp32Reference(lambda _where, hook: hook, reraise)
    sampler = Sampler(range(len(layers)), layers.references, Rank(), reraise, sums)
    # Number 1: no sample in which the zeros of all layers are counted.
    sample = sampler.take(None, "accumulated", carried, unknown=(), number=1, request=request, is_partial=False)
    return StepRecord(
        layers=layers,
        step=7,
        time=0.0,
        micro_steps=1,
        skipped=0,
        samples=[sample],
        parts=[*parts, *([] if carried is None else [Part(Kind.LOSS_SCALE, carried)])],
        step_time_s=None,
        agent_share=0.0,
        every=1,
    )


def metrics_of(row: StepRow) -> dict[str, float]:
    return {name: value for (name, _), _, value in row.metrics}


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


# -- measure and read ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(DTYPES, st.lists(MODERATE, min_size=1, max_size=40)), min_size=1, max_size=6))
@settings(max_examples=60)
def test_norm_and_absmax_are_those_of_float64(given_gradients: list[tuple[torch.dtype, list[float]]]) -> None:
    """Mixed dtypes are measured in groups and come back under their own index."""
    tensors = {3 * i: torch.tensor(values).to(dtype) for i, (dtype, values) in enumerate(given_gradients)}
    finite = {i: tensor for i, tensor in tensors.items() if bool(torch.isfinite(tensor).all())}
    numbers = read(measure(finite, list(finite), list(finite)))
    for i, tensor in finite.items():
        exact = tensor.double()
        assert numbers.absmax[i] == float32(float(exact.abs().max()))
        assert numbers.norm[i] == pytest.approx(float(exact.square().sum().sqrt()), rel=1e-6)
        assert numbers.zeros[i] == int((tensor == 0).sum())
        assert numbers.nonfinite[i] == 0
    assert set(numbers.absmax) == set(numbers.norm) == set(finite)


@given(DTYPES, st.integers(1, 300), st.integers(2, 5), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_small_gradients_of_one_shape_have_the_same_bits_as_alone(
    dtype: torch.dtype, elements: int, layers: int, draws: random.Random
) -> None:
    """They are measured together; whatever one of them holds, the others are as they were."""
    gradients = {}
    for layer in range(layers):
        generator = torch.Generator().manual_seed(draws.randrange(2**32))
        gradient = torch.randn(elements, 2, generator=generator).mul_(10.0 ** draws.randint(-30, 30)).to(dtype)
        gradient.view(-1)[draws.randrange(2 * elements)] = draws.choice([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
        gradients[layer] = gradient.T if draws.random() < 0.2 else gradient
    zeros, bad = ({layer for layer in gradients if draws.random() < 0.5} for _ in range(2))
    wide = {layer for layer in gradients if draws.random() < 0.2}
    together = read(measure(gradients, zeros, bad, wide))
    for layer, gradient in gradients.items():
        alone = read(measure({layer: gradient}, zeros & {layer}, bad & {layer}, wide & {layer}))
        for found, expected in zip(vars(together).values(), vars(alone).values(), strict=True):
            assert repr(found.get(layer)) == repr(expected.get(layer))


@given(st.lists(FLOATS | st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1, max_size=20), DTYPES)
@settings(max_examples=60)
def test_an_absmax_is_finite_exactly_where_every_element_is(values: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(values).to(dtype)
    numbers = read(measure({0: tensor}, [0], [0]))
    bad = int((~torch.isfinite(tensor)).sum())
    assert math.isfinite(numbers.absmax[0]) == (bad == 0)
    assert numbers.nonfinite[0] == bad
    assert numbers.zeros[0] == int((tensor == 0).sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_long_norm_of_low_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """torch sums in float32 lanes on a CPU: 6e-5 off here, where a sum in the dtype itself would be off by half."""
    same = torch.full((100_000,), 0.01, dtype=dtype)
    assert float(norm_of(same)) == pytest.approx(float(same.double().square().sum().sqrt()), rel=1e-4)


@given(st.lists(MODERATE, min_size=1, max_size=30), DTYPES)
@settings(max_examples=20)
def test_the_norm_of_one_is_the_norm_of_many_bit_for_bit(values: list[float], dtype: torch.dtype) -> None:
    """A clip is told from equal norms: measured in a group or alone must not differ."""
    tensor = torch.tensor(values).to(dtype)
    together = read(measure({0: torch.ones(3), 1: tensor, 2: torch.ones(5)}))
    alone = float(norm_of(tensor))
    assert together.norm[1] == alone or (math.isnan(alone) and math.isnan(together.norm[1]))


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.T,
    "strided": lambda tensor: tensor[:, ::2],
    "expanded": lambda tensor: tensor[:, :1].expand(tensor.shape),
}


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(DTYPES, st.sampled_from([*VIEWS]), st.integers(1, 9)), min_size=1),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
    st.booleans(),
)
@settings(max_examples=60)
def test_large_gradients_are_measured_in_pieces(
    given_gradients: dict[int, tuple[torch.dtype, str, int]], chunk: int, draws: random.Random, by_norm: bool
) -> None:
    """Whatever their strides: the numbers are those of float64, and as on a GPU the 0-norm may count."""
    gradients = {}
    for layer, (dtype, view, rows) in given_gradients.items():
        generator = torch.Generator().manual_seed(draws.randrange(2**32))
        gradient = torch.randn(rows, draws.randint(1, 9), generator=generator).to(dtype)
        gradient[torch.rand(gradient.shape, generator=generator) < 0.3] = draws.choice([0.0, 1.0, math.nan, -math.inf])
        gradients[layer] = VIEWS[view](gradient)
    wide = {layer for layer in gradients if draws.random() < 0.3}
    with pytest.MonkeyPatch.context() as small:
        small.setattr(kernels, "CHUNK", chunk)
        small.setattr(kernels, "FLOAT32_EXACT_INT", chunk + 1)
        small.setattr(kernels, "_is_counted_by_norm", lambda value: by_norm and value.is_floating_point())
        small.setattr(kernels, "MOST_PACKED", 0)
        numbers = read(measure(gradients, list(gradients), list(gradients), wide))
        alone = {layer: float(norm_of(gradient, in_float64=layer in wide)) for layer, gradient in gradients.items()}
    for layer, gradient in gradients.items():
        exact = gradient.double()
        assert numbers.zeros[layer] == int((exact == 0).sum())
        assert numbers.nonfinite[layer] == int((~exact.isfinite()).sum())
        assert repr(numbers.norm[layer]) == repr(alone[layer])
        if numbers.nonfinite[layer]:
            assert not math.isfinite(numbers.absmax[layer])
        else:
            assert numbers.absmax[layer] == float32(float(exact.abs().max()))
            assert numbers.norm[layer] == pytest.approx(float(exact.square().sum().sqrt()), rel=1e-6)


def test_zeros_of_small_gradients_are_counted_together_where_their_norms_are_not() -> None:
    """As on a GPU, where no norm is packed; here those in float64 are not."""
    drawn = torch.Generator().manual_seed(0)
    shapes = [(8, 5), (8, 5), (7,), (8, 5), (), (8, 5)]
    gradients = {i: torch.randn(shape, generator=drawn) for i, shape in enumerate(shapes)}
    gradients = {i: each * (torch.rand(each.shape, generator=drawn) > 0.4) for i, each in gradients.items()}
    gradients[5] = gradients[5].T.contiguous().T  # not in a row
    parts = [part for part in measure(gradients, gradients, in_float64=gradients) if part.kind is Kind.NONZERO]
    assert [[*part.layers] for part in parts] == [[0, 1, 3], [2, 4, 5]]
    counted = {layer: int(n) for part in parts for layer, n in zip(part.layers, part.value.tolist(), strict=True)}
    assert counted == {i: int((each != 0).sum()) for i, each in gradients.items()}


def test_a_gradient_that_torch_conjugates_later_is_measured_as_it_lies() -> None:
    """As of a weight that is used conjugated: torch sets a bit, and the parts of such a tensor cannot be viewed."""
    weight = torch.nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))
    (torch.randn(8, 8, dtype=torch.complex64) @ weight.conj()).abs().square().sum().backward()
    gradient = weight.grad
    assert gradient is not None
    assert gradient.is_conj()
    numbers, whole = (read(measure({0: each}, [0], [0])) for each in (gradient, gradient.resolve_conj()))
    assert numbers == whole
    assert float(norm_of(gradient)) == whole.norm[0]


def peak_of(work: Callable[[], object]) -> int:
    """Return the most bytes of tensors that work takes at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    changes: list[tuple[int, int]] = []
    left = [*profiled.profiler.kineto_results.experimental_event_tree()]
    while left:
        event = left.pop()
        left += event.children
        if hasattr(event.extra_fields, "alloc_size"):
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    return max(accumulate(change for _, change in sorted(changes, key=itemgetter(0))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("view", VIEWS)
def test_measuring_makes_no_copy_of_a_large_gradient(
    dtype: torch.dtype, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "CHUNK", 2**12)
    gradients = {0: VIEWS[view](torch.ones(2**9, 2**9, dtype=dtype))}
    for is_wide in (False, True):
        wide = [0] if is_wide else []
        assert peak_of(lambda wide=wide: measure(gradients, [0], [0], wide)) < 2**17, "not half a byte an element"
    assert peak_of(lambda: min_max(gradients[0])) < 2**17


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms_of_many_gradients_take_one_kernel_but_for_those_with_gaps(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of low precision; on a GPU one gradient with gaps sends all that are given with it to a kernel each."""
    together: list[int] = []
    really = torch._foreach_norm

    def taken(tensors: list[torch.Tensor], *given: object, **named: object) -> list[torch.Tensor]:
        assert all(each.is_contiguous() or each.T.is_contiguous() for each in tensors)
        together.append(len(tensors))
        return really(tensors, *given, **named)

    monkeypatch.setattr(torch, "_foreach_norm", taken)
    made = [torch.randn(7, 5 + place).to(dtype) for place in range(6)]
    gradients = {0: made[0], 1: made[1].T, 2: made[2][:, ::2], 3: made[3][:, :1].expand(7, 3), 4: made[4], 5: made[5]}
    numbers = read(measure(gradients, in_float64=[5]))
    assert together == [3]
    for layer, gradient in gradients.items():
        exact = float(gradient.double().square().sum().sqrt())
        assert numbers.norm[layer] == pytest.approx(exact, rel=1e-6)
        assert numbers.norm[layer] == float(norm_of(gradient, in_float64=layer == 5))


class NoTensorOfNumbers(TorchDispatchMode):
    """Refuses tensors that are made of Python's numbers, or copied to another device: both make a GPU's host wait."""

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, _types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        assert func is not torch.ops.aten.lift_fresh.default
        assert {each.device for each in (*args, made) if isinstance(each, torch.Tensor)} <= {torch.device("cpu")}
        return made


def test_sampling_makes_no_tensor_of_numbers() -> None:
    """Also where the script has set another default device: its tensors would be there."""
    gradients = {0: torch.ones(3), 1: torch.ones(2, dtype=torch.float16), 2: torch.eye(2).to_sparse()}
    with torch.device("meta"), NoTensorOfNumbers():
        measured = measure(gradients, list(gradients), list(gradients), in_float64=[0])
        measured += measure({3: torch.zeros(4, device="cpu")}, [3])
    assert read(measured).zeros == {0: 0, 1: 0, 2: 2, 3: 4}


def test_low_precision_measurement_makes_no_copy() -> None:
    weights = [
        torch.nn.Parameter(torch.ones(3000, dtype=torch.bfloat16)),
        torch.nn.Parameter(torch.ones(4, dtype=torch.float16)),
    ]
    optimizer, references = torch.optim.AdamW(weights), [weakref.ref(each) for each in weights]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    guard = Guard()
    shadows, frozen = Fp32Reference(guard.wrap, guard.catch), Frozen()
    for weight in weights:
        weight.grad = None
    shadows.begin(references, 0, 1)
    for _ in range(2):
        for weight in weights:
            (weight * 2).sum().backward()
    frozen.unchanged_fraction(0, 1, references, [True, True])
    with torch.device("meta"), NoTensorOfNumbers():
        assert low_bits({0: torch.ones(3000, device="cpu")})
        assert len(shadows.errors([2, 2])) == 2
        assert len(frozen.unchanged_fraction(50, 1, references, [True, True])) == 2
        assert len(forecasts(optimizer, references)) == 2


def test_readable_tensors() -> None:
    assert is_measurable(torch.ones(2))
    assert not is_measurable(torch.ones(0))
    assert is_measurable(torch.eye(2).to_sparse())

    class Shard(torch.Tensor):
        pass

    assert not is_measurable(torch.ones(2).as_subclass(Shard))
    assert read(measure({})).absmax == {}


# -- reading a record ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(FLOATS, min_size=1, max_size=10), min_size=1, max_size=4), st.sampled_from([None, 1.0, 65536.0])
)
@settings(max_examples=60)
def test_a_row_is_finite_and_its_norm_never_under_its_absmax(values: list[list[float]], scale: float | None) -> None:
    """A float32 L2 underflows under 1e-19 and overflows over 1e19; the row says something true there too."""
    row = Reader(None, reraise).read(record_of([torch.tensor(each) for each in values], scale=scale))
    assert row.states is not None
    for layer, each in enumerate(values):
        largest = max(map(abs, each))
        absmax, norm = row.columns["absmax"].values[layer], row.columns["norm"].values[layer]
        assert absmax == pytest.approx(min(largest / (scale or 1.0), HUGE), rel=1e-6, abs=TINY)
        assert row.states[layer] == (ZERO if largest == 0 else MEASURED)
        assert absmax <= norm <= HUGE


def test_a_gradient_too_large_for_float32_is_finite_on_the_wire() -> None:
    row = Reader(None, reraise).read(
        record_of([torch.tensor([HUGE, HUGE]), torch.tensor([1e300], dtype=torch.float64)], scale=0.5)
    )
    assert row.columns["absmax"].values[0] == row.columns["norm"].values[0] == pytest.approx(HUGE)
    assert row.states == bytes([MEASURED, NONFINITE])  # past float32, it is no number that anybody trains with


def test_an_underflowed_scale_of_zero_divides_nothing() -> None:
    row = Reader(None, reraise).read(record_of([torch.tensor([2.0])], *parts_of([torch.tensor(3.0)], []), scale=0.0))
    assert row.columns["absmax"].values[0] == 2.0
    assert metrics_of(row)["loss"] == 3.0


def test_a_device_that_cannot_be_read_takes_no_other_along() -> None:
    """As one whose kernel has failed: here one that has no data."""
    failures: list[str] = []
    reader = Reader(None, lambda where, _: failures.append(where))
    gradients = [torch.ones(2), torch.ones(2, device="meta"), torch.ones(3)]
    record = record_of(gradients, reader=reader)
    dead, (sample,) = torch.ones(6, device="meta"), record.samples
    moved = {0: torch.tensor([1.0, 2.0, 1.0, 4.0]), 1: dead[:4], 2: torch.tensor([1.0, 3.0, 1.0, 4.0])}
    sample.add(Kind.UPDATE_NORMS, moved)
    sample.add(Kind.ACCUMULATION_ERROR, {0: torch.tensor([1.0, 1.0, 1.0, 3.0, 1.0, 4.0]), 1: dead, 2: torch.ones(6)})
    sample.add(Kind.FROZEN, {0: torch.tensor(0.25), 1: dead[0], 2: torch.tensor(0.5)})
    sample.parts.append(Part(Kind.LOW_BITS, dead.view(3, 2), [1]))
    sample.parts.append(Part(Kind.LOW_BITS, torch.tensor([[20, 20], [9, 0], [9, 0]]), [0, 2]))
    stuck = {0: torch.tensor(1.0), 1: dead[0], 2: torch.tensor(0.0)}
    sample.forecasts = [
        Forecast(
            "bfloat16",
            [Part(Kind.LEARNING_RATE, rate), *(Part(Kind.STUCK, share, (at,)) for at, share in shares.items())],
        )
        for rate, shares in ((1e-6, stuck), (dead[0], dict.fromkeys(range(3), dead[0])))
    ]
    row = reader.read(record)
    told = {
        stat: dict(zip(column.layers or (), column.values, strict=True))
        for stat, column in row.columns.items()
        if stat not in ("absmax", "norm")
    }
    assert told == {
        "update_ratio": {0: 0.5, 2: 0.75},
        "weight_norm": {0: 4.0, 2: 4.0},
        "accumulation_error": {0: 0.25, 2: 1.0},
        "norm_ratio": {0: 0.75, 2: 1.0},
        "frozen_fraction": {0: 0.25, 2: 0.5},
    }
    assert [each and each[2] for each in row.accumulators] == ["float32", None, None]
    assert [fact.layers for fact in reader.facts] == [("p0",)]
    assert list(row.states or b"") == [MEASURED, PARTIAL, MEASURED]
    absmax = row.columns["absmax"].values
    assert [absmax[0], absmax[2], math.isnan(absmax[1])] == [1.0, 1.0, True]
    assert "total_norm" not in metrics_of(row)
    assert set(failures) == {"reading float32 on meta"}
    assert len(failures) == 9, "each is counted"


def test_nonfinite_elements_are_counted_for_five_more_samples() -> None:
    reader = Reader(None, reraise)
    bad, good = torch.tensor([1.0, math.nan, math.inf]), torch.ones(2)
    first = reader.read(record_of([good, bad], reader=reader))
    assert (first.columns["nonfinite"].layers, list(first.columns["nonfinite"].values)) == ((1,), [1.0])
    second = reader.read(record_of([good, bad], reader=reader))
    assert list(second.columns["nonfinite"].values) == [2.0]
    assert list(second.states or b"") == [MEASURED, NONFINITE]
    assert "total_norm" not in metrics_of(second)
    for left in range(COUNTED_AFTER_NONFINITE, 0, -1):
        assert reader.request.nonfinite == {1}, left
        reader.read(record_of([good, good], reader=reader))
    assert reader.request.nonfinite == frozenset()


def test_zeros_are_wished_of_low_layers_and_of_those_under_the_threshold() -> None:
    gradients = [torch.tensor([value, 0.0]) for value in (1.0, 2e-4, 0.5e-4, 0.0)]
    for threshold, low in ((None, {2, 3}), (1e-3, {1, 2, 3}), (1e-9, {2, 3})):
        reader = Reader(threshold, reraise)
        first = reader.read(record_of(gradients, reader=reader))
        assert "zero_fraction" not in first.columns
        assert reader.request.zeros == low
        second = reader.read(record_of(gradients, reader=reader))
        assert second.columns["zero_fraction"].layers == tuple(sorted(low))
        assert second.columns["zero_fraction"].values[-1] == 1.0


@pytest.mark.parametrize(("after", "clipped", "told"), [(0.5, 1, 0.5), (1.0, 0, 1.0), (2.0, 0, None), (0.0, 1, 0.0)])
def test_the_clip_factor_is_a_ratio_of_two_norms(after: float, clipped: int, told: float | None) -> None:
    """Larger at the step than at the sample is no clip: somebody added to the gradient."""
    gradient = torch.tensor([3.0, 4.0])
    row = Reader(None, reraise).read(record_of([gradient], Part(Kind.PROBE, norm_of(gradient * after), (0,))))
    assert row.clipped == clipped
    assert metrics_of(row).get("clip_factor") == (None if told is None else pytest.approx(told))
    assert metrics_of(row)["total_norm"] == pytest.approx(5.0)


def test_a_fused_optimizer_says_through_found_inf_that_it_skipped() -> None:
    reader = Reader(None, reraise)
    for found, skipped in ((0.0, 0), (1.0, 1)):
        assert reader.read(record_of([torch.ones(1)], Part(Kind.FOUND_INF, torch.tensor(found)))).skipped == skipped
    assert metrics_of(reader.read(record_of([torch.ones(1)])))["skipped_total"] == 1.0


# -- the identity --------------------------------------------------------------------------------------------------


def test_shard_reduced_later_is_new_only_without_a_gradient() -> None:
    """Before the first reduction of a window there is none, and none that the window before it has left."""
    weight = torch.nn.Parameter(torch.ones(3))
    identity = GradientIdentity()
    identity.mark(0, None)
    assert identity.change(None, is_reduced_later=True) == UNCHANGED
    weight.sum().backward()
    identity.mark(0, weight.grad)
    assert identity.change(weight.grad, is_reduced_later=True) == UNCHANGED
    assert identity.change(None, is_reduced_later=True) == REPLACED


def test_the_identity_tells_unchanged_from_modified_from_replaced() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    identity = GradientIdentity()
    assert identity.change(None) == REPLACED
    weight.sum().backward()
    identity.mark(0, weight.grad)
    assert identity.change(weight.grad) == UNCHANGED
    weight.sum().backward()
    assert identity.change(weight.grad, writes=1) == UNCHANGED
    assert identity.change(weight.grad) == MODIFIED
    identity.mark(0, weight.grad)
    weight.grad.zero_()
    assert identity.change(weight.grad) == MODIFIED
    weight.grad = None
    assert identity.change(weight.grad) == REPLACED
    weight.sum().backward()
    assert identity.change(weight.grad, writes=1) == REPLACED
