"""Two ranks under DistributedDataParallel: the first one sends what is left when both have been averaged.

The other one sends only what is not finite of its own gradients.

All kinds are trained by one pair of processes, watched and unwatched, which also compares the weights bit for bit.
"""

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest
import torch
from sqlalchemy import create_engine, select
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import gradcanary
from gradcanary_server.storage.schema import session
from support import PROGRAMS, warm
from support.agent.fixtures import complaints
from support.agent.ranks import finish
from support.agent.recorded import Recorded, recording, spooling
from support.agent.scripted import until
from support.collectors import Collector
from support.ports import free_port
from support.programs import data_parallel

SCRIPT = PROGRAMS / "data_parallel.py"
SICK, AGAIN = data_parallel.SICK, data_parallel.AGAIN
Norms = list[dict[str, float]]


@pytest.fixture(scope="module")
def trained(
    module_collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Recorded, Recorded, Norms]]:
    """What each rank sent and what the reference says, by kind."""
    out, port = tmp_path_factory.mktemp("ranks") / "read.json", str(free_port())
    with contextlib.ExitStack() as stack:
        kinds = data_parallel.KINDS
        recorded = [{kind: stack.enter_context(recording()) for kind in kinds} for _ in range(data_parallel.RANKS)]
        ranks = [
            warm.Process(warm.TRAINING, [str(SCRIPT), str(rank), port, str(out), *urls], spooling(out.parent))
            for rank, urls in enumerate(_urls(by_kind, module_collector) for by_kind in recorded)
        ]
        said = finish(ranks)
    assert "gradcanary" not in complaints("".join(said), incident_of="nonfinite")
    read = json.loads(out.read_text())
    return {kind: (recorded[0][kind], recorded[1][kind], read[kind]) for kind in kinds}


def _urls(recorded: dict[str, Recorded], collector: Collector) -> list[str]:
    return [collector.url if kind == "nan-told" else each.url for kind, each in recorded.items()]


@pytest.mark.loop(
    "DDP, with `no_sync`, bucket views, a static graph, unused parameters",
    caveat="verified with two processes; the first rank sends the mean of all. For 100 samples after a NaN the others "
    "send the steps and layers in which their own gradient was not finite, before the reduction, and without `no_sync` "
    "not since an earlier one: the incident names the rank as it comes back",
)
@pytest.mark.parametrize("kind", [kind for kind in data_parallel.KINDS if not kind.startswith("nan")])
def test_the_first_rank_sends_the_mean_of_all(trained: dict[str, tuple[Recorded, Recorded, Norms]], kind: str) -> None:
    recorded, other, read = trained[kind]
    steps = list(range(data_parallel.STEPS))
    assert [{(hello["rank"], hello["sharded"]) for hello in each.hellos[-1:]} for each in (recorded, other)] == [
        {(0, False)},
        {(1, False)},
    ]
    assert recorded.steps() == steps
    assert not other.batches
    sent, states = recorded.stat("norm"), recorded.states()
    for step in steps:
        measured = {name: value for name, value in sent[step].items() if states[step][name] == "measured"}
        assert measured == pytest.approx(read[step], rel=1e-2 if "compressed" in kind else 1e-5), step
        assert {states[step][name] for name in states[step].keys() - read[step].keys()} <= {"no_gradient"}
    assert recorded.per_step("micro_steps") == [data_parallel.micro_steps(kind)] * len(steps)
    assert recorded.per_step("skipped") == [0] * len(steps)
    assert recorded.phases("norm") == {"accumulated"}
    assert recorded.names[0] == "first.weight"


def test_a_reduction_in_float16_is_declared_and_shows(trained: dict[str, tuple[Recorded, Recorded, Norms]]) -> None:
    told = trained["synced-compressed"][0].accumulators()
    assert told["first.weight"] == told["last.weight"] == ("float16", "float32", "float16")
    assert trained["plain"][0].accumulators()["first.weight"] == (None, "float32", "float32")


@pytest.mark.loop("DDP, with `no_sync`, bucket views, a static graph, unused parameters")
@pytest.mark.parametrize("kind", ["nan", "nan-views", "nan-synced", "nan-synced-late"])
def test_a_nan_of_the_second_rank_is_seen_by_the_first_and_told_by_the_second(
    trained: dict[str, tuple[Recorded, Recorded, Norms]], kind: str
) -> None:
    """Also without ``no_sync``, where the second one's NaN is in every gradient from the next micro-step on."""
    recorded, other, read = trained[kind]
    assert recorded.steps() == list(range(data_parallel.STEPS))
    assert recorded.per_step("skipped") == [2 * (step in (SICK, AGAIN)) for step in recorded.steps()]
    for step, states in recorded.states().items():
        assert set(states.values()) == {"nonfinite" if step in (SICK, AGAIN) else "measured"}
        if step not in (SICK, AGAIN):
            assert recorded.stat("norm")[step] == pytest.approx(read[step], rel=1e-5)
    assert recorded.phases("nonfinite") == {"accumulated"}
    (batch,) = other.batches
    assert batch["steps"] == [AGAIN], "one sample later"
    assert {metric["name"] for metric in batch["metrics"]} == {"agent_share"}, "its loss is another one"
    assert set(other.states()[AGAIN].values()) == {"nonfinite"}
    assert {block["stat"] for block in batch["blocks"]} == {"nonfinite"}
    assert other.phases("nonfinite") == {"micro"}


def test_a_nan_of_the_first_rank_says_so_in_its_phase(
    trained: dict[str, tuple[Recorded, Recorded, Norms]],
) -> None:
    recorded, other, _ = trained["nan-first"]
    assert {step for step, states in recorded.states().items() if set(states.values()) == {"nonfinite"}} == {
        SICK,
        AGAIN,
    }
    assert recorded.phase_of("nonfinite") == {SICK: "accumulated", AGAIN: "micro"}
    assert not other.batches


def test_a_nan_in_the_weights_is_laid_to_no_rank(trained: dict[str, tuple[Recorded, Recorded, Norms]]) -> None:
    """The loop steps with it: from then on each rank has one of its own, whichever it came from."""
    recorded, other, _ = trained["nan-kept"]
    for step in range(SICK, data_parallel.STEPS):
        assert set(recorded.states()[step].values()) == {"nonfinite"}
    assert recorded.phases("nonfinite") == {"accumulated"}
    assert not other.batches


def test_each_rank_tells_of_its_own_where_both_have_one(
    trained: dict[str, tuple[Recorded, Recorded, Norms]],
) -> None:
    recorded, other, _ = trained["nan-each"]
    for step in (SICK, AGAIN):
        bad = {name for name, state in recorded.states()[step].items() if state == "nonfinite"}
        assert bad == {"first.bias", "last.bias"}, "the reduction brings both to both"
    assert recorded.stat("nonfinite") == {SICK: dict.fromkeys(bad, 1.0), AGAIN: {"first.bias": 32.0, "last.bias": 4.0}}
    told = [
        {
            recorded.names[layer]: block["phase"]
            for batch in each.batches
            for block in batch["blocks"]
            if block["stat"] == "nonfinite" and block["steps"] == [AGAIN]
            for layer in block["layers"]
        }
        for each in (recorded, other)
    ]
    assert told == [{"first.bias": "micro", "last.bias": "accumulated"}, {"last.bias": "micro"}]


@pytest.fixture
def group_of() -> Iterator[Callable[..., None]]:
    """Makes a process group in this process."""
    yield distributed.init_process_group
    if distributed.is_initialized():
        distributed.destroy_process_group()


def test_a_group_that_is_made_after_the_watch_is_known(group_of: Callable[..., None]) -> None:
    """Gradients that are cleared in place and reduced in each micro-step: what a reduction writes is no new window."""
    torch.manual_seed(0)
    model = data_parallel.Model("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as recorded, gradcanary.watch(model, optimizer, url=recorded.url, run="later", every=10):
        group_of("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        wrapped, losses = nn.parallel.DistributedDataParallel(model), []
        for step in range(22):
            losses.append(0.0)
            for micro_step in range(2):
                loss = wrapped(data_parallel.inputs(step, micro_step, 0)).square().mean()
                losses[-1] += float(loss.detach())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert recorded.metric("loss") == pytest.approx(dict(enumerate(losses)), rel=1e-6)
    assert recorded.steps() == [0, 10, 20]
    assert recorded.per_step("micro_steps") == [2] * 3
    assert recorded.phases("norm") == {"accumulated"}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        model(data_parallel.inputs(step, 0, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_rank_is_that_of_a_group_that_is_made_before_the_first_step(group_of: Callable[..., None]) -> None:
    model = data_parallel.Model("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as recorded, gradcanary.watch(model, optimizer, url=recorded.url, run="later"):
        group_of("fake", store=FakeStore(), rank=1, world_size=2)
        train(model, optimizer, range(3))
    assert {(hello["rank"], hello["world_size"]) for hello in recorded.hellos} == {(1, 2)}
    assert recorded.steps() == []


def test_a_group_that_is_made_too_late_for_the_rank_is_reported(
    group_of: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The session goes on as that of one process, and loses nothing."""
    model = data_parallel.Model("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as recorded, gradcanary.watch(model, optimizer, url=recorded.url, run="later"):
        train(model, optimizer, range(2))
        until(lambda: recorded.hellos)
        group_of("fake", store=FakeStore(), rank=1, world_size=2)
        train(model, optimizer, range(2, 5))
    assert {(hello["rank"], hello["world_size"], hello["first_step"]) for hello in recorded.hellos} == {(0, 1, 0)}
    assert len({hello["launch"] for hello in recorded.hellos}) == 1
    assert recorded.steps() == [*range(5)]
    assert [(end["state"], end["last_step"]) for end in recorded.ends] == [("finished", 4)]
    assert "late_process_group" in {fact["code"] for fact in recorded.hellos[-1]["facts"]}
    assert capsys.readouterr().err.count("after torch.distributed.init_process_group()") == 1


@pytest.mark.usefixtures("trained")
def test_the_incident_names_the_rank(module_collector: Collector) -> None:
    listed = module_collector.get("/api/v1/incidents", run="ranks-nan-told").json()["incidents"]
    (incident,) = (each["id"] for each in listed if each["rule"] == "nonfinite")
    layers = module_collector.get(f"/api/v1/incidents/{incident}").json()["layers"]
    assert {layer["rank"] for layer in layers if layer["layer"] is not None} == {1}


@pytest.mark.usefixtures("trained")
def test_replicas_are_not_admitted_as_ranks_with_layers_of_their_own(module_collector: Collector) -> None:
    run = module_collector.get("/api/v1/runs/ranks-nan-told").json()
    assert run["facts"] == []
    engine = create_engine(module_collector.store_url)
    with engine.connect() as connection:
        query = select(session.c.rank, session.c.is_primary, session.c.is_sharded).order_by(session.c.rank)
        assert connection.execute(query).all() == [(0, True, False), (1, False, False)]
    engine.dispose()
