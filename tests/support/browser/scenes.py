"""Runs that look like real ones, posted over the real wire: what the browser tests look at."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from support.streams import Session, Stream

MODULES = ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.up", "mlp.down")


def adapter_names(blocks: int) -> tuple[str, ...]:
    """Return the LoRA layers of a transformer in model order: lora_A and lora_B of six modules per block."""
    return tuple(
        f"blocks.{block}.{module}.lora_{factor}.weight"
        for block in range(blocks)
        for module in MODULES
        for factor in ("A", "B")
    )


def gradients(names: tuple[str, ...], steps: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Return healthy absmax [step][layer]: every layer at its own level, falling slowly, with noise of its own."""
    random = np.random.default_rng(seed)
    level = random.uniform(-3.1, -1.9, len(names))
    progress = np.arange(steps)[:, None] / steps
    slow = random.normal(0, 0.02, (steps, len(names))).cumsum(0) / np.sqrt(steps) * 3
    return (10 ** (level - 0.35 * progress + slow + random.normal(0, 0.09, (steps, len(names))))).astype(np.float32)


def falling_loss(steps: int, *, seed: int = 0, bump: int | None = None) -> NDArray[np.float64]:
    """Return a loss that falls with noise; with ``bump`` it rises a little there and falls again."""
    random = np.random.default_rng(seed)
    step = np.arange(steps)
    loss = 0.11 + 0.32 * np.exp(-step / (0.16 * steps)) + random.normal(0, 0.004, steps)
    if bump is not None:
        loss += 0.05 * np.exp(-((step - bump) ** 2) / 400.0) * (step >= bump)
    return loss


def collapse(steps: int = 1200, blocks: int = 12, at: int = 720, seed: int = 0) -> Stream:
    """Return a run whose lora_A in blocks 4 to 6 falls by three decades in twenty steps, sometimes to exact zero."""
    names = adapter_names(blocks)
    absmax = gradients(names, steps, seed=seed)
    bad = [place for place, name in enumerate(names) if name.split(".")[1] in "456" and "lora_A" in name]
    random = np.random.default_rng(seed + 1)
    for layer in bad:
        start = at + int(random.integers(0, 6))
        fall = np.clip((np.arange(steps) - start) / 20, 0, 1)
        absmax[:, layer] *= (10 ** (-3.3 * fall)).astype(np.float32)
    zero = random.random((steps, len(bad) // 3)) < 0.12
    zero[: at + 200] = False
    absmax[:, bad[::3]] = np.where(zero, 0, absmax[:, bad[::3]])
    return Stream(absmax, falling_loss(steps, seed=seed, bump=at), names=names, stored="bfloat16")


def quiet(steps: int = 1200, blocks: int = 12, seed: int = 3) -> Stream:
    """Return a healthy run of the same model."""
    names = adapter_names(blocks)
    return Stream(gradients(names, steps, seed=seed), falling_loss(steps, seed=seed), names=names)


def send(url: str, run: str, stream: Stream, *, ended: bool = False, missing: range | None = None) -> Session:
    """Post a stream as one session, leaving out the batches that begin in ``missing``; returns the open session."""
    session = Session(url, run=run, session=f"session-of-{run}")
    session.put_hello(stream.hello()).raise_for_status()
    kept = [batch for batch in stream.batches(40) if missing is None or batch.steps[0] not in missing]
    for seq, batch in enumerate(kept):
        session.post_batch(seq, batch).raise_for_status()
    if ended:
        session.end(last_step=int(stream.steps()[-1])).raise_for_status()
    return session


def pair(url: str, first: str, other: str, *, steps: int = 240) -> tuple[Session, Session]:
    """Post two runs of one model, the first with bfloat16 accumulators and a collapse, the other with float32 ones, and
    what a step of each takes; returns the open sessions. The other has a layer more."""
    streams = (collapse(steps=steps, blocks=7, at=steps // 2), collapse(steps=steps, blocks=7, at=steps - 1))
    absmax = streams[1].absmax
    absmax[-1] = absmax[-2]
    more = np.concatenate((absmax, absmax[:, :1]), axis=1)
    whole = Stream(more, falling_loss(steps), names=(*streams[1].names, HOSTILE))
    return (
        _costing(url, first, streams[0], step_time_s=0.2, peak_memory_bytes=10 * 2.0**30),
        _costing(url, other, whole, step_time_s=0.206, peak_memory_bytes=10.6 * 2.0**30),
    )


def evaluating(url: str, run: str, *, steps: int, step_time_s: float) -> None:
    """Post a run in which every tenth step takes 2 s, the others as long as is said."""
    session, stream = Session(url, run=run, session=f"session-of-{run}"), quiet(steps, blocks=1)
    session.put_hello(stream.hello()).raise_for_status()
    for seq, batch in enumerate(stream.batches(500)):
        took = [2.0 if step % 10 == 0 else step_time_s for step in batch.steps]
        metric = wire.Metric("step_time_s", (), batch.steps, wire.column("d", took))
        session.post_batch(seq, replace(batch, metrics=(*batch.metrics, metric))).raise_for_status()
    session.end(last_step=steps - 1).raise_for_status()


def _costing(url: str, run: str, stream: Stream, **costs: float) -> Session:
    session = Session(url, run=run, session=f"session-of-{run}")
    session.put_hello(stream.hello(**configuration(run, stream))).raise_for_status()
    for seq, batch in enumerate(stream.batches(40)):
        session.post_batch(seq, costing(batch, **costs)).raise_for_status()
    return session


def configuration(run: str, stream: Stream) -> dict[str, object]:
    """Return what an agent sends of a program and its optimizer, as parts of a hello; without bfloat16, no decay."""
    values = {"optimizer": "AdamW", "lr": stream.lr, "weight_decay": 0.01 if stream.stored == "bfloat16" else 0.0}
    return {
        "environment": wire.Environment(
            command=f"python train.py --batch 8 --name {run}",
            git_commit=40 * "a",
            git_dirty=False,
            host="node-7",
            gpus=("NVIDIA H100",),
            versions=(("python", "3.11.7"), ("torch", "2.13.0")),
            job=(),
        ),
        "settings": tuple(wire.Setting(0, None, (0,), name, value) for name, value in values.items()),
    }


def costing(batch: wire.Batch, **costs: float) -> wire.Batch:
    """Return a batch with metrics of these names that stay as they are."""
    count = len(batch.steps)
    more = [wire.Metric(name, (), batch.steps, wire.column("d", [value] * count)) for name, value in costs.items()]
    return replace(batch, metrics=(*batch.metrics, *more))


def with_every_stat(batch: wire.Batch, layers: int) -> wire.Batch:
    """Return a batch with all the stats an agent can send, of weights only for every fourth layer."""
    random = np.random.default_rng(batch.steps[0])
    few = tuple(range(0, layers, 4))

    def block(stat: str, phase: str | None, low: float, high: float, chosen: tuple[int, ...] | None) -> wire.Block:
        shape = (len(batch.steps), layers if chosen is None else len(chosen))
        values = random.uniform(low, high, shape).astype(np.float32)
        return wire.Block(stat, phase, batch.steps, chosen, wire.column("f", values.ravel().tolist()))

    more = (
        block("zero_fraction", "accumulated", 0.1, 0.12, None),
        block("update_ratio", None, 1e-3, 2e-3, few),
        block("weight_norm", None, 11.0, 11.2, few),
        block("accumulation_error", "accumulated", 3e-3, 5e-3, few),
        block("norm_ratio", "accumulated", 0.995, 1.0, few),
        block("frozen_fraction", None, 0.3, 0.4, few),
    )
    return replace(batch, blocks=(*batch.blocks, *more))


def resume(url: str, run: str, stream: Stream) -> Session:
    """Post 600 steps of a run that was started three times; returns the open third session.

    Launch 1 has steps 0 to 279, of which its agent dropped 120 to 159 and 200 to 239 were lost; launch 2 steps back
    to 260 and goes on to 399; launch 3 begins at 440.
    """
    layers = len(stream.names)
    for number, (begin, end) in enumerate(((0, 280), (260, 400), (440, 600)), start=1):
        session = Session(url, run=run, session=f"session-{number}-of-{run}")
        session.put_hello(stream.hello(launch=f"launch-{number}", first_step=begin)).raise_for_status()
        starts = [start for start in range(begin, end, 20) if start not in (120, 140, 200, 220)]
        for seq, start in enumerate(starts):
            dropped = 40 if number == 1 and start >= 160 else 0
            batch = replace(stream.batch(start, start + 20, change_records=seq == 0), dropped_steps=dropped)
            session.post_batch(seq, with_every_stat(batch, layers)).raise_for_status()
    return session


METRICS = {
    "total_norm": 1.2,
    "clip_factor": 0.8,
    "scaler_scale": 65536.0,
    "step_time_s": 0.163,
    "peak_memory_bytes": 2.35e10,
    "agent_share": 0.004,
}
CATEGORIES = ("bottles", "cans", "boxes")
PROVIDERS = ("a", "b")
HOSTILE = "<img src=x onerror=alert(3)>%{x}"


def with_metrics(batch: wire.Batch, hosts: int = 0) -> wire.Batch:
    """Return a batch with all that an agent measures by itself, and what a user logs each tenth step: scores by
    category and provider, a loss of the validation, one with a hostile name and tag, the load of so many hosts."""
    random = np.random.default_rng(batch.steps[0])
    tenth = tuple(step for step in batch.steps if step % 10 == 0)

    def logged(name: str, steps: tuple[int, ...], level: float, **tags: str) -> wire.Metric:
        values = level * (1 + 0.03 * random.standard_normal(len(steps)))
        return wire.Metric(name, tuple(sorted(tags.items())), steps, wire.column("d", values.tolist()))

    scores = [(category, provider) for category in CATEGORIES for provider in PROVIDERS]
    more = (
        *(logged(name, batch.steps, level) for name, level in METRICS.items()),
        *(
            logged("clip_score", tenth, 0.2 + 0.03 * place, category=category, provider=provider)
            for place, (category, provider) in enumerate(scores)
        ),
        logged("loss", tenth, 0.2, split="val"),
        logged(HOSTILE, tenth, 3.0, tag=HOSTILE),
        *(logged("gpu_load", tenth, 0.5 + 0.01 * host, host=f"node-{host:03}") for host in range(hosts)),
    )
    return replace(batch, metrics=(*batch.metrics, *more))


def log(url: str, run: str, steps: int = 400, blocks: int = 6) -> Session:
    """Post a healthy run with every stat and every metric, those of 30 hosts too; returns the open session."""
    return measured(url, run, quiet(steps=steps, blocks=blocks), hosts=30)


def measured(url: str, run: str, stream: Stream, hosts: int = 0) -> Session:
    """Post a stream with every stat and every metric, those of so many hosts too; returns the open session."""
    session = Session(url, run=run, session=f"session-of-{run}")
    session.put_hello(stream.hello()).raise_for_status()
    for seq, batch in enumerate(stream.batches(40)):
        whole = with_metrics(with_every_stat(batch, len(stream.names)), hosts=hosts)
        session.post_batch(seq, whole).raise_for_status()
    return session
