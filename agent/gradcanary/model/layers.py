"""Discovery of the layers of a watch: parameters, names, groups, and facts about them."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from gradcanary import facts, wire
from gradcanary.model import distributed
from gradcanary.model.declared_dtypes import dead_keys, declared
from gradcanary.model.parameters import (
    Location,
    ParameterRef,
    is_lazy,
    live_objects,
    locations,
    one_scan,
    parameters_of,
)
from gradcanary.settings import Settings

_WRAPPERS = {
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "module",
    ("torch.nn.parallel.data_parallel", "DataParallel"): "module",
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"): "_fsdp_wrapped_module",
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"): "_checkpoint_wrapped_module",
    ("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"): "module",
    ("megatron.core.transformer.module", "Float16Module"): "module",
    ("deepspeed.runtime.engine", "DeepSpeedEngine"): "module",
}
"""By module and name of a wrapper class (importing FSDP takes a second): the child that names leave out."""

_FRAMEWORKS = ("peft", "diffusers", "transformers", "lightning", "pytorch_lightning")


def _nothing() -> None:
    return None


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_LAYERS = 20_000


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of a session, in model order: the same index in all columns.

    References keep no parameter alive, so a watched model is freed as any other.

    - ``optimizers``: the position of the optimizer that steps each layer, None if there is none yet.
    - ``is_sharded``: other processes hold other parts; ``local_numel`` of a layer counts the part of this one.
    - ``has_shards``: some layers are DTensors, whose gradients are reduced before they can be measured.
    - ``owners``: the modules that hold the layers.
    - ``facts``: facts that explain their numbers.
    - ``declared``: the declared dtypes of their accumulators.
    - ``unsharded``: references to the unsharded parameters of offloaded shards, by layer. A hook on such a shard would
      make FSDP2 wait for each copy to the host.
    - ``frozen``: names of the parameters of the models that are no layers, as their requires_grad is False and no
      optimizer holds them; empty where the names or the whole model are not known. ``total`` counts both kinds.
    - ``unmeasured``: layers that are listed only: nothing clears the gradients of a parameter in no optimizer.
    """

    references: tuple[ParameterRef, ...]
    optimizers: tuple[int | None, ...]
    layer_set: wire.LayerSet
    framework: str | None
    is_sharded: bool = False
    has_shards: bool = False
    owners: tuple[weakref.ref[nn.Module], ...] = ()
    facts: tuple[wire.Fact, ...] = ()
    declared: tuple[str | None, ...] = ()
    unsharded: Mapping[int, Callable[[], nn.Parameter | None]] = field(default_factory=dict)
    unmeasured: frozenset[int] = frozenset()
    frozen: tuple[str, ...] = ()
    total: int = 0

    def __len__(self) -> int:
        return len(self.references)


@dataclass(frozen=True)
class _Origin:
    name: str
    module_class: str | None
    owner: weakref.ref[nn.Module] | None = None
    prefix: str = ""


class Prefixes:
    """The prefixes of names by which the models of a session are told apart. A model keeps its first one."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], str]] = {}

    def of(self, root: nn.Module) -> str:
        """Return the prefix of a model, empty for the only one."""
        reference, prefix = self._known.get(id(root), (_nothing, ""))
        return prefix if reference() is root else ""

    def choose(self, roots: Sequence[nn.Module]) -> None:
        """Choose prefixes for new models: their classes, numbered where a class is there more than once."""
        self._known = {key: each for key, each in self._known.items() if each[0]() is not None}
        new = [root for root in roots if id(root) not in self._known]
        if len(roots) == 1 and new:
            self._known[id(new[0])] = weakref.ref(new[0]), ""
            return
        classes = [_class_of(_unwrapped(root)).__name__[:200] for root in new]
        taken = {prefix for _, prefix in self._known.values()}
        for root, name in zip(new, classes, strict=True):
            is_single = classes.count(name) == 1 and not any(each.startswith(name) for each in taken)
            numbered = (f"{name}{number}." for number in range(1, len(roots) + len(taken) + 2))
            prefix = f"{name}." if is_single else next(each for each in numbered if each not in taken)
            taken.add(prefix)
            self._known[id(root)] = weakref.ref(root), prefix


class Unheld(NamedTuple):
    """A trainable parameter of a module that no optimizer holds."""

    name: str
    reference: ParameterRef


class _Grouped(NamedTuple):
    """A parameter in an optimizer; groups are numbered over all optimizers. ``fallback`` names one without a module."""

    parameter: nn.Parameter
    optimizer: int
    group: int
    name: str | None
    fallback: str


def discover(
    optimizers: Sequence[torch.optim.Optimizer],
    model: nn.Module | None,
    settings: Settings,
    failed: Callable[[str, Exception], None],
    unheld: Sequence[Unheld] = (),
    prefixes: Prefixes | None = None,
) -> Layers:
    """Return the layers: all that the optimizers hold, the trainable rest of the model, and the ``unheld`` ones.

    The name of a layer comes from the first of these that has one: the model, ``param_groups[i]["param_names"]``, the
    modules found by one pass over the garbage collector's objects, and the position, as in ``group0.1``. ``prefixes``
    tell several models apart. ``failed`` gets errors that cost an optional part only.
    """
    grouped = _grouped(optimizers)
    others = {id(parameter): each for each in unheld if (parameter := each.reference()) is not None}
    roots = [model] if model is not None else _roots(optimizers, grouped, others)
    prefixes = Prefixes() if prefixes is None else prefixes
    prefixes.choose(roots if model is not None else _naming(roots, {*grouped, *others}))
    found = _origins(roots, prefixes)
    named = {
        key: (parameter, origin)
        for key, (parameter, origin) in found.items()
        if key in grouped or key in others or (model is not None and parameter.requires_grad)
    }
    for key, held in grouped.items():
        if key not in named or model is None:
            origin = named[key][1] if key in named else _Origin(held.fallback, None)
            given = None if held.name and key in named and _has_wrapper(held.name) else held.name
            name = f"{origin.prefix}{given}" if given else origin.name
            named[key] = (held.parameter, replace(origin, name=name))
    listed = set() if model is not None else others.keys() - grouped.keys()
    layers = _layers(named, grouped, locations(optimizers), settings, _framework(roots), listed)
    is_flat = any(_hidden_child(module) == "_fsdp_wrapped_module" for root in roots for module in root.modules())
    layers = replace(layers, facts=(*layers.facts, *((facts.FLAT,) if is_flat else ())))
    has_stage = _has_stage()
    layers = replace(layers, facts=(*layers.facts, *((facts.PIPELINE,) if has_stage else ())))
    if not (is_flat or has_stage or distributed.is_later_rank()):
        layers = _with_frozen(layers, found, named, settings)
    try:
        layers = _with_unsharded(layers)
    except Exception as error:  # noqa: BLE001 -- private names of torch: if they changed, the shards get the hooks
        failed("looking for offloaded shards", error)
    try:
        return _with_declared(layers, roots, optimizers)
    except Exception as error:  # noqa: BLE001 -- configs are foreign objects; the layers are useful without
        failed("looking for declared dtypes", error)
        return layers


def unheld_parameters(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module | None) -> list[Unheld]:
    """Return the trainable parameters of the model, or of all live modules, that no live optimizer holds.

    There are none if one of the ``optimizers`` holds only tensors of no module: it steps copies of the parameters. If
    some hold such tensors, those of float32 may be the master copies of parameters in low precision.
    """
    with one_scan():
        modules = live_objects(nn.Module)
        holders = [*optimizers, *live_objects(torch.optim.Optimizer)]
    found = _origins(_outermost(modules), is_careful=True)
    if any(not any(id(each) in found for each in parameters_of(optimizer)) for optimizer in optimizers):
        return []
    held = {id(each): each.dtype for optimizer in holders for each in parameters_of(optimizer)}
    has_masters = any(dtype is torch.float32 for key, dtype in held.items() if key not in found)
    of_model = found if model is None else _origins([model])
    return [
        Unheld(origin.name, ParameterRef(parameter, None, None if origin.owner is None else origin.owner()))
        for key, (parameter, origin) in of_model.items()
        if key not in held
        and parameter.requires_grad
        and parameter.is_leaf
        and _is_real(parameter)
        and not (has_masters and parameter.element_size() < 4)
    ]


def _has_stage() -> bool:
    """Return True if this process has a stage of a pipeline whose other stages are in other processes."""
    kind = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
    return kind is not None and any(stage.group_size > 1 for stage in live_objects(kind))


def _with_frozen(
    layers: Layers,
    found: Mapping[int, tuple[nn.Parameter, _Origin]],
    named: Mapping[int, tuple[nn.Parameter, _Origin]],
    settings: Settings,
) -> Layers:
    """Return the layers with the names of frozen parameters; ``found`` are those of the models."""
    chosen = {key: each for key, each in {**found, **named}.items() if _is_wanted(each[0], each[1].name, settings)}
    frozen = [origin.name for key, (each, origin) in chosen.items() if key not in named and not each.requires_grad]
    return replace(layers, frozen=tuple(unique(frozen)), total=len(chosen))


def _with_unsharded(layers: Layers) -> Layers:
    """Return the layers with references to unsharded parameters. Only shards on the host can be offloaded."""
    found = [reference() for reference in layers.references] if layers.has_shards else []
    ids = {id(each): layer for layer, each in enumerate(found) if each is not None and each.device.type == "cpu"}
    ways = distributed.unsharded_parameters(live_objects(nn.Module)) if ids else {}
    return replace(layers, unsharded={ids[key]: way for key, way in ways.items() if key in ids})


def _with_declared(layers: Layers, roots: Iterable[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> Layers:
    """Return the layers with the declared dtypes of their accumulators, and facts about declarations without effect."""
    ids = [id(reference()) for reference in layers.references]
    asked = declared(roots, optimizers)
    names = dict(zip(ids, (layer.name for layer in layers.layer_set.layers), strict=True))
    dead = dead_keys(optimizers, names)
    return replace(layers, declared=tuple(map(asked.get, ids)), facts=(*layers.facts, *dead))


def named_parameters(root: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Yield name, parameter and owner, in model order, without the additions of wrappers to the names."""
    seen: set[int] = set()
    left = [("", root)]
    while left:
        prefix, module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, parameter in module.named_parameters(recurse=False):
            yield f"{prefix}{name}", parameter, module
        hidden = _hidden_child(module)
        for name, child in reversed(list(module.named_children())):
            left.append((prefix if name == hidden else f"{prefix}{name}.", child))


def _class_of(module: nn.Module) -> type:
    """Return the class that the user wrote: FSDP2 derives one of its own from it."""
    kinds = type(module).__mro__
    is_wrapped = len(kinds) > 2 and kinds[1].__name__ == "FSDPModule"
    return kinds[2] if is_wrapped else kinds[0]


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside of wrappers."""
    while (name := _hidden_child(module)) is not None and isinstance(child := getattr(module, name, None), nn.Module):
        module = child
    return module


def _hidden_child(module: nn.Module) -> str | None:
    for kind in type(module).__mro__:
        if (child := _WRAPPERS.get((kind.__module__, kind.__name__))) is not None:
            return child
    return None


def _has_wrapper(name: str) -> bool:
    return any(part in _WRAPPERS.values() for part in name.split("."))


def _grouped(optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, _Grouped]:
    """Return the parameters of all optimizers by id."""
    grouped: dict[int, _Grouped] = {}
    groups = [(number, group) for number, optimizer in enumerate(optimizers) for group in optimizer.param_groups]
    for number, (optimizer, group) in enumerate(groups):
        names: Iterable[Any] = group.get("param_names") or [None] * len(group["params"])
        for position, (parameter, name) in enumerate(zip(group["params"], names, strict=False)):
            held = _Grouped(parameter, optimizer, number, name, f"group{number}.{position}")
            grouped.setdefault(id(parameter), held)
    return grouped


def _roots(
    optimizers: Sequence[torch.optim.Optimizer], grouped: dict[int, _Grouped], others: Mapping[int, Unheld]
) -> list[nn.Module]:
    """Return the outermost modules that hold the parameters, the one with most of them first."""
    names = [held.name for held in grouped.values() if held.name]
    are_enough = len({*names}) == len(grouped) and not any(map(_has_wrapper, names))
    if not optimizers or (are_enough and not others):
        return []
    roots = _outermost(live_objects(nn.Module))
    held = {id(module): _held(module, {*grouped, *others}) for module in roots}
    return sorted((module for module in roots if held[id(module)]), key=lambda module: -held[id(module)])


def _naming(roots: Sequence[nn.Module], ids: Collection[int]) -> list[nn.Module]:
    """Return the models that name a parameter of these ids."""
    naming, seen = [], set[int]()
    for root in roots:
        own = {id(parameter) for _, parameter, _ in _known_parameters(root)}.intersection(ids)
        if own - seen:
            naming.append(root)
            seen |= own
    return naming


def _outermost(modules: Sequence[nn.Module]) -> list[nn.Module]:
    inner = {id(child) for module in modules for child in _children(module)}
    return [module for module in modules if id(module) not in inner]


def _children(module: nn.Module) -> list[nn.Module | None]:
    held = module.__dict__.get("_modules")  # missing if __init__ has not run
    return list(held.values()) if isinstance(held, dict) else []


def _held(root: nn.Module, ids: Collection[int]) -> int:
    return sum(id(parameter) in ids for _, parameter, _ in _known_parameters(root))


def _known_parameters(root: nn.Module) -> list[tuple[str, nn.Parameter, nn.Module]]:
    try:
        return list(named_parameters(root))
    except Exception:  # noqa: BLE001 -- any module of the process, maybe one whose __init__ raised
        return []


def _origins(
    roots: Iterable[nn.Module], prefixes: Prefixes | None = None, *, is_careful: bool = False
) -> dict[int, tuple[nn.Parameter, _Origin]]:
    """Return the parameters by id, with their names; ``is_careful`` if the modules may be any of the process."""
    found: dict[int, tuple[nn.Parameter, _Origin]] = {}
    for root in roots:
        prefix = "" if prefixes is None else prefixes.of(root)
        for name, parameter, owner in _known_parameters(root) if is_careful else named_parameters(root):
            origin = _Origin(f"{prefix}{name}", _class_of(owner).__name__[:200], weakref.ref(owner), prefix)
            found.setdefault(id(parameter), (parameter, origin))
    return found


def _layers(
    named: dict[int, tuple[nn.Parameter, _Origin]],
    grouped: dict[int, _Grouped],
    found: dict[int, Location],
    settings: Settings,
    framework: str | None,
    listed: Collection[int],
) -> Layers:
    wanted = [(p, origin) for p, origin in named.values() if _is_wanted(p, origin.name, settings)]
    able = [(p, origin) for p, origin in wanted if not is_lazy(p.device)]
    chosen = able[:_MAX_LAYERS]
    names = unique(origin.name for _, origin in chosen)
    groups = [grouped.get(id(parameter)) for parameter, _ in chosen]
    sizes = [p.numel() for p, _ in chosen]
    is_sharded = any(distributed.is_sharded(p) for p, _ in chosen)
    if is_sharded:
        is_first = torch.distributed.get_rank() == 0
        sizes = [distributed.owned_numel(p, is_first=is_first) for p, _ in chosen]
    layers = tuple(
        wire.Layer(name, tuple(p.shape), size, dtype_name(p.dtype), held and held.group, origin.module_class)
        for name, (p, origin), held, size in zip(names, chosen, groups, sizes, strict=True)
    )
    return Layers(
        references=tuple(
            ParameterRef(parameter, found.get(id(parameter)), None if origin.owner is None else origin.owner())
            for parameter, origin in chosen
        ),
        optimizers=tuple(held and held.optimizer for held in groups),
        layer_set=wire.LayerSet(wire.layer_set_id(layers), layers),
        declared=(None,) * len(layers),
        framework=framework,
        is_sharded=is_sharded and any(sizes),
        facts=(
            *((facts.SHARDED,) if is_sharded and any(sizes) else ()),
            *((facts.LAZY_DEVICE,) if len(able) < len(wanted) else ()),
            *((facts.too_many_layers(len(able), _MAX_LAYERS),) if len(chosen) < len(able) else ()),
        ),
        has_shards=any(distributed.is_dtensor(p) for p, _ in chosen),
        owners=tuple(dict.fromkeys(origin.owner for _, origin in chosen if origin.owner is not None)),
        unmeasured=frozenset(layer for layer, (parameter, _) in enumerate(chosen) if id(parameter) in listed),
    )


def _is_wanted(parameter: nn.Parameter, name: str, settings: Settings) -> bool:
    return _is_real(parameter) and is_chosen(name, settings)


def _is_real(parameter: nn.Parameter) -> bool:
    return not (nn.parameter.is_lazy(parameter) or parameter.is_meta or parameter.numel() == 0)


def is_chosen(name: str, settings: Settings) -> bool:
    """Return True if include and exclude leave a layer of this name."""
    included = settings.include is None or settings.include.search(name) is not None
    return included and (settings.exclude is None or settings.exclude.search(name) is None)


def unique(names: Iterable[str]) -> list[str]:
    """Return names as the wire takes them: printable, at most 500 characters, equal ones with #2, #3."""
    taken: set[str] = set()
    result = []
    for name in names:
        plain = _UNPRINTABLE.sub("?", name)[: wire.MAX_NAME] or "?"
        free, number = plain, 1
        while free in taken:
            number += 1
            free = f"{plain[: wire.MAX_NAME - 8]}#{number}"
        taken.add(free)
        result.append(free)
    return result


def dtype_name(dtype: torch.dtype) -> str:
    """Return the wire's name of a dtype: ``bfloat16``, not ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def _framework(roots: Iterable[nn.Module]) -> str | None:
    owners = {kind.__module__.partition(".")[0] for root in roots for kind in type(root).__mro__}
    return next((framework for framework in _FRAMEWORKS if framework in owners), None)
