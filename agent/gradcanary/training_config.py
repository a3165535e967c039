"""``TrainingConfig``: the settings of a training in one file, ``gradcanary.yaml``, and what is set up from them.

Each key has an effect. A setting that cannot be had for a model raises; it is never left out in silence.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gradcanary.remedies import LOST_IN_BFLOAT16
from gradcanary.settings import DEFAULT_EVERY, DEFAULT_URL, READERS, read_value, to_float
from gradcanary.wording import count

if TYPE_CHECKING:
    import torch
    import yaml
    from torch import nn

    from gradcanary.api import Watch

Value = TypeVar("Value")

FILE = "gradcanary.yaml"

HEAD = "# The settings of a training, for gradcanary.setup_training(); docs/how-to/setup-training.md.\n"

LOW_SUM = (
    f"TrainingConfig(accumulator_dtype='bfloat16'): a sum in bfloat16 loses {LOST_IN_BFLOAT16}; {{here}}. float32 "
    "takes 2 bytes per element more"
)

EXPONENT = re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
"""A number that YAML 1.1 reads as a text."""

OTHER_BASE = re.compile(r"[-+]?0[0-7_]+|.*:.*")
"""A number that YAML 1.1 reads in base 8 or 60, and YAML 1.2 does not."""

WORDS = ("float32", "bfloat16", "fp16", "bf16", "none", "auto")
"""Values that are written without quotes."""


def _key(default: object, read: Callable[[Any], Any], about: str) -> Any:  # noqa: ANN401 -- as dataclasses.field()
    """Return a field of the configuration: how a value is read, and its lines in the file."""
    return field(default=default, metadata={"read": read, "about": about})


def _one_of(*allowed: str) -> Callable[[object], object]:
    def read(given: object) -> object:
        if given not in allowed:
            raise ValueError(f"it must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return given

    return read


def _or_null(read: Callable[[Any], Any]) -> Callable[[object], object]:
    def checked(given: object) -> object:
        try:
            return None if given is None else read(given)
        except ValueError as error:
            raise ValueError(f"{error}, or null") from error

    return checked


def _count(given: object) -> object:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError("it must be a whole number, 1 or more")
    return given


def _switch(given: object) -> object:
    if not isinstance(given, bool):
        raise ValueError("it must be true or false")  # noqa: TRY004 -- as the other readers
    return given


def _decay(given: Any) -> float:  # noqa: ANN401 -- whatever a file holds
    decay = to_float(given)
    if not 0 <= decay < float("inf"):
        raise ValueError("it must be a number, 0 or more")
    return decay


def _bounds(given: Any) -> dict[str, dict[str, object]]:  # noqa: ANN401 -- whatever a file holds
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise TypeError('it must be a mapping, such as {"clip_score": {"below": 0.25}}')
    READERS["metrics"](given)
    return {name: dict(bounds) for name, bounds in given.items()}


_positive = READERS["absmax_below"]


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training. A wrong value raises ValueError with the key, the value and what is allowed.

    ``threshold`` is ``collapse_below`` of ``watch()``: a parameter whose gradient is under it is reported if it fell,
    or is far below that of similar parameters. The other keys are described by their comments in the file.
    """

    learning_rate: float = _key(1e-4, _positive, "Learning rate of AdamW: a number above 0.")
    weight_decay: float = _key(0.01, _decay, "Weight decay of AdamW, of all parameters: a number, 0 or more.")
    accumulation_steps: int = _key(
        1,
        _count,
        "Micro-steps (backward passes) of one optimizer step: a whole number, 1 or more.\n"
        "config.micro_steps(loader) says after which batch the optimizer steps.",
    )
    accumulator_dtype: Literal["float32", "bfloat16"] = _key(
        "float32",
        _one_of("float32", "bfloat16"),
        "The dtype that gradients of bfloat16 and float16 parameters are summed in: float32 or bfloat16.\n"
        "float32 is right. bfloat16 is for bfloat16 parameters only, and its sums lose a part of the gradient.\n"
        "Gradients of float32 parameters are summed in float32 anyway.",
    )
    master_weights: bool = _key(
        True,
        _switch,
        "Step bfloat16 and float16 parameters in float32 copies: true or false.\n"
        "Without copies most of these weights do not move at small learning rates. Copies and the states in float32\n"
        "take 8 bytes more of each such weight; float32 parameters need none. float16 ones cannot do without.",
    )
    mixed_precision: Literal["fp16", "bf16", "none"] = _key(
        "none",
        _one_of("fp16", "bf16", "none"),
        "The dtype that config.autocast(device) computes in: fp16, bf16 or none.\n"
        "fp16 needs config.scaler(device) as well, which does nothing for the others.",
    )
    threshold: float | None = _key(
        1e-4,
        _or_null(_positive),
        "Gradients under this number are looked at: a number above 0, or null for the number of the collector.\n"
        "A parameter there is reported if its gradient fell, or is far below that of similar parameters. One that was\n"
        "always so small is not.",
    )
    every: int | Literal["auto"] = _key(
        DEFAULT_EVERY,
        READERS["every"],
        "Steps from one sample to the next: auto, 1, 10, 100 or 1000.\n"
        "auto: each of the first 1,000 steps, then as often as 1 % of the step time allows.",
    )
    run: str | None = _key(
        None, _or_null(READERS["run"]), "Name of the run: a text, or null for one made of script and date."
    )
    url: str | None = _key(
        None, _or_null(READERS["url"]), f"Address of the collector, or null: GRADCANARY_URL, else {DEFAULT_URL}."
    )
    metrics: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict,
        hash=False,
        metadata={
            "read": _bounds,
            "about": "Bounds of the metrics that watch.log() stores, for each set of tags by itself.\n"
            "Each metric has below, above, falls_by, rises_by (shares of its own level), observations or severity.\n"
            "  clip_score: {below: 0.25, falls_by: 0.1}",
        },
    )

    def __post_init__(self) -> None:
        for key in fields(self):
            value = read_value(key.metadata["read"], getattr(self, key.name), f"TrainingConfig({key.name}=)")
            object.__setattr__(self, key.name, value)
        if self.accumulator_dtype == "bfloat16":
            steps = count(self.accumulation_steps, "micro-step")
            here = (
                "with one micro-step, as here, nothing is summed" if self.accumulation_steps == 1 else f"here {steps}"
            )
            warnings.warn(LOW_SUM.format(here=here), stacklevel=3)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str] = FILE) -> TrainingConfig:
        """Return the settings of a file; a key that it lacks has its default, a file without any is refused.

        Raises ValueError with line, key and what is allowed, FileNotFoundError, and ImportError without PyYAML.
        """
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist: 'gradcanary init {path}' writes one")
        readers = {key.name: key.metadata["read"] for key in fields(cls)}
        values: dict[str, Any] = {}
        for name, value, line in _read_yaml(path).parts():
            if name not in readers:
                near = "".join(f" (is it {each}?)" for each in difflib.get_close_matches(str(name), readers, 1))
                known = ", ".join(readers)
                raise ValueError(f"{path}, line {line}: unknown key {name!r}{near}; allowed are {known}")
            part = read_value(readers[name], value, f"{path}, line {line}: {name}")
            values[name] = {**values[name], **part} if name in values else part
        return cls(**values)

    def to_yaml(self, path: str | os.PathLike[str] = FILE) -> None:
        """Write the settings to a file, each with a comment; an existing file is replaced."""
        Path(path).write_text(self.as_yaml(), "utf-8")

    def as_yaml(self) -> str:
        """Return the text of the file."""
        parts = [HEAD]
        for key in fields(self):
            comment = "".join(f"# {line}\n" for line in key.metadata["about"].splitlines())
            parts.append(f"{comment}{key.name}: {_to_yaml(getattr(self, key.name))}\n")
        return "\n".join(parts)

    def micro_steps(self, batches: Iterable[Value]) -> Iterator[tuple[Value, bool]]:
        """Yield each batch, with True if the optimizer steps after it: each ``accumulation_steps``, and after the last.

        The last batch is known only of an iterable with a length, as a DataLoader over a list has.
        """
        total = length_hint(batches)
        for number, batch in enumerate(batches, 1):
            yield batch, number % self.accumulation_steps == 0 or number == total

    def autocast(self, device: str | torch.device) -> torch.autocast:
        """Return the context of a forward pass and its loss, in the precision of ``mixed_precision``."""
        import torch

        dtype = torch.float16 if self.mixed_precision == "fp16" else torch.bfloat16
        return torch.autocast(torch.device(device).type, dtype=dtype, enabled=self.mixed_precision != "none")

    def scaler(self, device: str | torch.device) -> torch.amp.GradScaler:
        """Return the gradient scaler of the training; it is disabled, and changes nothing, unless for fp16."""
        import torch

        return torch.amp.GradScaler(torch.device(device).type, enabled=self.mixed_precision == "fp16")


def create_stable_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters of a model, in one group, stable for bfloat16 and float16 ones.

    Their gradients are summed in ``config.accumulator_dtype``, and they are stepped in float32 if
    ``config.master_weights`` is True. ``accumulators`` and ``masters`` of the optimizer are the handles of
    ``fp32_accumulators()`` and ``fp32_masters()``, which end with the optimizer or by ``close()``; they are None where
    nothing was attached. Raises ValueError on a model without trainable parameters, on bfloat16 sums of parameters of
    another dtype, on float16 weights without ``master_weights``, and where these two do.
    """
    import torch
    from torch import nn

    from gradcanary.fp32_copies import fp32_masters
    from gradcanary.fp32_sums import fp32_accumulators
    from gradcanary.stats.kernels import LOW_PRECISION

    if not isinstance(model, nn.Module):
        raise TypeError(f"create_stable_optimizer({type(model).__name__}): it takes a torch.nn.Module")
    trainable = _trainable(model)
    dtypes = {parameter.dtype for parameter in trainable}
    is_float32 = config.accumulator_dtype == "float32"
    if not is_float32 and (others := dtypes - {torch.bfloat16}):
        raise ValueError(
            f"accumulator_dtype is bfloat16, and the model has trainable parameters of {', '.join(map(str, others))}: "
            "torch sums gradients in the dtype of their parameter. Set accumulator_dtype: float32"
        )
    if not config.master_weights and torch.float16 in dtypes:
        raise ValueError(
            "master_weights is false, and the model has trainable parameters of torch.float16: AdamW's eps, 1e-8, is "
            "zero in float16, and its steps become infinite. Set master_weights: true"
        )
    optimizer: Any = torch.optim.AdamW(trainable, lr=config.learning_rate, weight_decay=config.weight_decay)
    has_low = bool(dtypes & {*LOW_PRECISION})
    optimizer.accumulators = fp32_accumulators(optimizer) if has_low and is_float32 else None
    optimizer.masters = fp32_masters(optimizer) if has_low and config.master_weights else None
    return optimizer  # type: ignore[no-any-return]  # Any for its two attributes


def setup_training(model: nn.Module, config: TrainingConfig) -> tuple[torch.optim.AdamW, Watch]:
    """Return the optimizer of :func:`create_stable_optimizer`, and the watch of its training."""
    from gradcanary.api import watch

    optimizer = create_stable_optimizer(model, config)
    opened = watch(
        model,
        optimizer,
        run=config.run,
        url=config.url,
        every=config.every,
        collapse_below=config.threshold,
        metrics=config.metrics,
    )
    return optimizer, opened


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    parameters = list(model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        found = (
            f"none of its {count(len(parameters), 'parameter')} is trainable" if parameters else "it has no parameters"
        )
        raise ValueError(
            f"create_stable_optimizer({type(model).__name__}): {found}. Call requires_grad_(True) on those to train, "
            "or add adapters first (peft.get_peft_model)"
        )
    return trainable


class _Mapping(dict[Any, Any]):
    """A mapping of a file, with the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}

    def parts(self) -> Iterator[tuple[Any, Any, int]]:
        """Yield the keys with values and lines; a mapping below comes in parts, of one of its keys each."""
        for key, value in self.items():
            if isinstance(value, _Mapping) and value:
                yield from ((key, {below: value[below]}, line) for below, line in value.lines.items())
            else:
                yield key, value, self.lines[key]


def _loader() -> type[yaml.SafeLoader]:
    """Return a loader of mappings with line numbers that refuses what is read in more than one way."""
    import yaml

    class Loader(yaml.SafeLoader):
        """``1e-5`` is a number here, which YAML 1.1 reads as a text, and a date is a text: it may name a run."""

    def refuse(node: yaml.Node, problem: str, fix: str) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark, note=fix)

    def mapping(loader: Loader, node: yaml.MappingNode) -> _Mapping:
        found = _Mapping()
        for key, value in node.value:
            name = loader.construct_object(key, deep=True)
            if not isinstance(name, str):
                written = key.value if isinstance(key, yaml.ScalarNode) else name
                raise refuse(key, f"the key {written} is not a text", "put it in quotes")
            if name in found:
                raise refuse(key, f"the key {name!r} is also in line {found.lines[name]}", "delete one of them")
            if value.tag.endswith((":int", ":float")) and OTHER_BASE.fullmatch(str(value.value)):
                problem = f"{name} is {value.value}, which YAML 1.1 reads in base 8 or 60"
                raise refuse(value, problem, "write a decimal number, or a text in quotes")
            found[name], found.lines[name] = loader.construct_object(value, deep=True), key.start_mark.line + 1
        return found

    def text(loader: Loader, node: yaml.ScalarNode) -> str:
        return loader.construct_scalar(node)

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    Loader.add_constructor("tag:yaml.org,2002:timestamp", text)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))
    return Loader


def _read_yaml(path: str | os.PathLike[str]) -> _Mapping:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(f"PyYAML is needed to read {path}: pip install pyyaml") from error
    try:
        found = yaml.load(Path(path).read_text("utf-8"), _loader())  # noqa: S506 -- a SafeLoader with line numbers
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        fix = error.note or "a line is 'key: value', without a space before the key"
        raise ValueError(f"{path}{line}: {error.problem}; {fix}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        words = str(error).replace("<unicode string>", str(path))
        raise ValueError(f"{path} is not YAML: {words}") from None
    if found is not None and not isinstance(found, _Mapping):
        raise ValueError(f"{path} is {found!r:.200}: it must have lines of 'key: value'")
    if not found:
        raise ValueError(f"{path} has no settings: 'gradcanary init {path} --force' writes all, with their defaults")
    return found


def _to_yaml(value: object) -> str:
    """Return a value as YAML 1.1 reads it: an exponent needs a point."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_to_yaml(name)}: {_to_yaml(below)}" for name, below in value.items()) + "}"
    if not isinstance(value, str):
        return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))
    if value in WORDS:
        return value
    quoted = (each if each.isprintable() and each not in '"\\' else f"\\U{ord(each):08x}" for each in value)
    return f'"{"".join(quoted)}"'
