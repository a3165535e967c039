"""Synthetic sessions: what an agent would send, built from arrays, and posted as an agent posts it."""

import atexit
import functools
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import httpx
import numpy as np
from numpy.typing import NDArray

from gradcanary import wire

MEASURED, NO_GRADIENT, ZERO, NONFINITE = (
    wire.STATES.index(s) for s in ("measured", "no_gradient", "zero", "nonfinite")
)


def layer_names(count: int) -> tuple[str, ...]:
    """Names with siblings: blocks.0.attn.lora_A, blocks.0.attn.lora_B, blocks.1.attn.lora_A, ..."""
    return tuple(f"blocks.{i // 2}.attn.lora_{'AB'[i % 2]}.weight" for i in range(count))


def layer_set(names: Sequence[str], shape: tuple[int, ...] = (8, 64), dtype: str = "float32") -> wire.LayerSet:
    """A layer set with its right id."""
    numel = int(np.prod(shape))
    layers = tuple(wire.Layer(name, shape, numel, dtype, 0, "Linear") for name in names)
    return wire.LayerSet(wire.layer_set_id(layers), layers)


def hello(layers: wire.LayerSet | None, **changes: object) -> wire.Hello:
    """A hello of rank 0 of launch "launch-1" that begins at step 0."""
    plain = wire.Hello(
        protocol=wire.PROTOCOL,
        launch="launch-1",
        rank=0,
        world_size=1,
        sharded=False,
        first_step=0,
        step_source="given",
        late=False,
        agent="0.1.0",
        python="3.11",
        torch="2.13",
        framework="peft",
        optimizer="AdamW",
        interval_s=15.0,
        absmax_below=None,
        norm_below=None,
        layer_sets=() if layers is None else (layers,),
        facts=(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def states_of(absmax: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The state plane that goes with an absmax column: 0 is exact zero, inf non-finite, NaN no gradient."""
    state = np.full(absmax.shape, MEASURED, np.uint8)
    state[absmax == 0] = ZERO
    state[np.isinf(absmax)] = NONFINITE
    state[np.isnan(absmax)] = NO_GRADIENT
    return state


@dataclass
class Stream:
    """The measurements of one session: ``absmax`` is [step][layer]; steps begin at ``first_step`` and rise by 1."""

    absmax: NDArray[np.float32]
    loss: NDArray[np.float64] | None = None
    first_step: int = 0
    every: int = 1
    lr: float = 1e-3
    phase: str = "accumulated"
    stored: str = "float32"
    names: tuple[str, ...] = ()
    layers: wire.LayerSet = field(init=False)

    def __post_init__(self) -> None:
        self.absmax = np.asarray(self.absmax, np.float32)
        self.names = self.names or layer_names(self.absmax.shape[1])
        self.layers = layer_set(self.names)

    def steps(self) -> NDArray[np.int64]:
        return self.first_step + self.every * np.arange(len(self.absmax), dtype=np.int64)

    def hello(self, **changes: object) -> wire.Hello:
        return hello(self.layers, **{"first_step": self.first_step, **changes})

    def batch(self, begin: int, end: int, *, change_records: bool = False) -> wire.Batch:
        """The rows begin to end as one batch."""
        absmax = self.absmax[begin:end]
        state = states_of(absmax)
        steps = tuple(self.steps()[begin:end].tolist())
        finite = np.where(np.isfinite(absmax), absmax, np.nan).astype(np.float32)
        nonfinite = (state == NONFINITE).astype(np.float32)
        accumulator = wire.Accumulator(tuple(range(len(self.names))), None, self.stored, None)
        return wire.Batch(
            layer_set=self.layers.id,
            every=self.every,
            steps=steps,
            times=wire.column("d", [1.7e9 + step * 0.1 for step in steps]),
            micro_steps=(8,) * len(steps),
            skipped=(0,) * len(steps),
            clipped=(0,) * len(steps),
            state=wire.column("B", state.ravel().tolist()),
            blocks=(
                wire.Block("absmax", self.phase, steps, None, wire.column("f", finite.ravel().tolist())),
                wire.Block("norm", self.phase, steps, None, wire.column("f", (finite * 3).ravel().tolist())),
                wire.Block("nonfinite", self.phase, steps, None, wire.column("f", nonfinite.ravel().tolist())),
            ),
            accumulators=(accumulator,) if change_records else (),
            metrics=self._metrics(begin, end, steps),
            dropped_steps=0,
        )

    def _metrics(self, begin: int, end: int, steps: tuple[int, ...]) -> tuple[wire.Metric, ...]:
        lr = wire.Metric("lr0", (), steps, wire.column("d", [self.lr] * len(steps)))
        if self.loss is None:
            return (lr,)
        return (wire.Metric("loss", (), steps, wire.column("d", self.loss[begin:end].tolist())), lr)

    def batches(self, size: int = 64) -> Iterator[wire.Batch]:
        """The whole stream in batches of ``size`` steps."""
        for begin in range(0, len(self.absmax), size):
            yield self.batch(begin, min(begin + size, len(self.absmax)), change_records=begin == 0)


@functools.cache
def shared_client() -> httpx.Client:
    """One client for all sessions: making one costs 30 ms, and one that nobody closes is an error."""
    client = httpx.Client(timeout=60)
    atexit.register(client.close)
    return client


@dataclass
class Session:
    """One session at a collector; every method returns the answer as it came, refused or not."""

    url: str
    run: str = "run-1"
    session: str = "session-1"
    client: httpx.Client = field(default_factory=shared_client)

    def path(self, rest: str = "") -> str:
        return f"{self.url}/api/v1/runs/{self.run}/sessions/{self.session}{rest}"

    def put_hello(self, message: wire.Hello) -> httpx.Response:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return self.client.put(self.path(), content=gzip.compress(wire.dump(message)), headers=headers)

    def post(self, rest: str, message: object) -> httpx.Response:
        raw = message if isinstance(message, bytes) else wire.dump(message)
        return self.client.post(self.path(rest), content=raw, headers={"Content-Type": "application/json"})

    def post_batch(self, seq: int, message: object) -> httpx.Response:
        return self.post(f"/batches/{seq}", message)

    def heartbeat(self, step: int | None = None) -> httpx.Response:
        return self.post("/heartbeat", wire.Heartbeat(step, 0, 0, 0.008))

    def end(self, state: str = "finished", last_step: int | None = None) -> httpx.Response:
        return self.post("/end", wire.End(state, last_step, None))

    def send(self, stream: Stream, size: int = 64, **hello_changes: object) -> None:
        """Say hello and post the whole stream; raises when anything is refused."""
        self.put_hello(stream.hello(**hello_changes)).raise_for_status()
        for seq, batch in enumerate(stream.batches(size)):
            self.post_batch(seq, batch).raise_for_status()


def healthy(steps: int, layers: int, *, level: float = 1e-3, seed: int = 0) -> NDArray[np.float32]:
    """Gradients that wander within half a decade around ``level``."""
    noise = np.random.default_rng(seed).normal(0, 0.1, (steps, layers))
    return (level * 10**noise).astype(np.float32)


def collapsed(steps: int, layers: int, which: Sequence[int], at: int, *, factor: float = 1e-3) -> NDArray[np.float32]:
    """Healthy gradients, of which the layers ``which`` fall by ``factor`` at row ``at`` and stay there."""
    absmax = healthy(steps, layers)
    absmax[at:, list(which)] *= np.float32(factor)
    return absmax


def falling_loss(steps: int, *, start: float = 1.0, end: float = 0.2) -> NDArray[np.float64]:
    """A loss that falls evenly from start to end."""
    return np.linspace(start, end, steps)
