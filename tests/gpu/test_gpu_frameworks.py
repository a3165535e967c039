"""Frameworks as people train with them on GPUs: weights are the same to the bit, norms those of their own clips.

The total norm of each step is held against what the framework's own clip computes. What frameworks warn of is theirs:
their versions come with the machine.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradcanary
from support.agent.gpu_steps import DEVICE, norms_of
from support.agent.recorded import Recorded

pytestmark = pytest.mark.filterwarnings("default")

STEPS, MICRO_STEPS, MAX_NORM = 8, 2, 0.5
IS_CUDA = DEVICE.type == "cuda"
CLOSE = 2e-5
"""Relative, of a norm over all layers: the frameworks sum in float32, in an order of their own."""

Norms = list[float]
Train = Callable[[Path], tuple[nn.Module, Norms]]


@pytest.fixture(autouse=True)
def no_compiled_code_is_left() -> Iterator[None]:
    yield
    torch.compiler.reset()


def batches(*shape: int) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=drawn) for _ in range(STEPS * MICRO_STEPS)]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def transformers(folder: Path) -> tuple[nn.Module, Norms]:
    """The Trainer on a Llama with LoRA, in bfloat16, with gradient checkpointing."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 16, "attn_implementation": "eager"}
    model = get_peft_model(
        LlamaForCausalLM(LlamaConfig(**sizes, **heads)), LoraConfig(r=4, target_modules="all-linear")
    )
    drawn = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 32, (8,), generator=drawn) for _ in range(4 * STEPS)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_STEPS,
        max_steps=STEPS,
        max_grad_norm=MAX_NORM,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=IS_CUDA,
        use_cpu=not IS_CUDA,
        gradient_checkpointing=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": each, "labels": each} for each in tokens])
    trainer.train()
    return model, [said["grad_norm"] for said in trainer.state.log_history if "grad_norm" in said]


def accelerate(folder: Path) -> tuple[nn.Module, Norms]:
    """A loop by Accelerate's documentation in float16, whose GradScaler it makes itself."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        gradient_accumulation_steps=MICRO_STEPS, mixed_precision="fp16" if IS_CUDA else "no", cpu=not IS_CUDA
    )
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(batches(4, 8), batch_size=None)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    norms = []
    for batch in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(batch).float().square().mean())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(prepared.parameters(), MAX_NORM))
            optimizer.step()
            optimizer.zero_grad()
    return model, [float(each) for each in norms]


def lightning(precision: str) -> Train:
    """Return a training by Lightning's Trainer in a precision."""

    def train(folder: Path) -> tuple[nn.Module, Norms]:
        import lightning.pytorch as pl

        norms: Norms = []

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = net()

            def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
                loss: Tensor = self.net(batch).float().square().mean()
                return loss

            def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
                norms.append(math.hypot(*norms_of(self.net).values()))

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

            def train_dataloader(self) -> object:
                return torch.utils.data.DataLoader(batches(4, 8), batch_size=None)

        module = Module()
        pl.Trainer(
            accelerator="gpu" if IS_CUDA else "cpu",
            devices=1,
            precision=precision if IS_CUDA else "32-true",
            max_epochs=1,
            accumulate_grad_batches=MICRO_STEPS,
            gradient_clip_val=MAX_NORM,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(module)
        return module, norms

    return train


def compiled(mode: str) -> Train:
    """Return a loop whose model is compiled; reduce-overhead replays CUDA graphs."""

    def train(folder: Path) -> tuple[nn.Module, Norms]:
        model = net().to(DEVICE)
        fast = torch.compile(model, mode=mode)
        # A replayed graph writes its gradients where the last ones were: they cannot be added to those.
        return model, trained(model, lambda x: fast(x), micro_steps=MICRO_STEPS if mode == "default" else 1)

    return train


def checkpointed(folder: Path) -> tuple[nn.Module, Norms]:
    """A loop that computes activations again in its backward pass."""
    model = net().to(DEVICE)
    return model, trained(model, lambda x: checkpoint(model, x, use_reentrant=False))


def trained(model: nn.Module, forward: Callable[[Tensor], Tensor], micro_steps: int = MICRO_STEPS) -> Norms:
    """Train a model under bfloat16 autocast, and return what ``clip_grad_norm_`` computed."""
    optimizer, norms = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for number, batch in enumerate(batches(4, 8)[: STEPS * micro_steps], 1):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = forward(batch.to(DEVICE)).float().square().mean()
        loss.backward()
        if number % micro_steps == 0:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
            optimizer.step()
            optimizer.zero_grad()
    return [float(each) for each in norms]


TRAININGS: dict[str, Train] = {
    "transformers, bfloat16": transformers,
    "accelerate, float16": accelerate,
    "lightning, 16-mixed": lightning("16-mixed"),
    "lightning, bf16-mixed": lightning("bf16-mixed"),
    "torch.compile": compiled("default"),
    "torch.compile, reduce-overhead": compiled("reduce-overhead"),
    "checkpoint": checkpointed,
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_framework_trains_as_without_us(collector: Recorded, tmp_path: Path, name: str) -> None:
    def run(*, is_watched: bool) -> tuple[list[bytes], Norms]:
        watch = gradcanary.watch(url=collector.url, run="framework", every=1) if is_watched else None
        with watch or nullcontext():
            model, norms = TRAININGS[name](tmp_path)
        if watch is not None:
            assert watch._session.guard.caught == watch._session._queue.dropped == 0, watch._session.guard.facts
        return [each.detach().cpu().numpy().tobytes() for each in model.parameters()], norms

    run(is_watched=False)  # what is compiled, chosen and cached in a process is there before both
    bare, watched = run(is_watched=False), run(is_watched=True)
    assert watched == bare
    norms, phases = watched[1], collector.phase_of("norm")
    assert len(norms) == len(phases) == STEPS
    sent = {step: math.hypot(*layers.values()) for step, layers in collector.stat("norm").items()}
    finite = {step: norm for step, norm in enumerate(norms) if math.isfinite(norm)}
    # An optimizer that nobody told of is found at its first step, after the clip.
    before_clip = {step: norm for step, norm in finite.items() if step or phases[step] == "accumulated"}
    assert len(before_clip) > STEPS // 2
    assert {step: sent[step] for step in before_clip} == pytest.approx(before_clip, rel=CLOSE)
    states = {step: set(layers.values()) for step, layers in collector.states().items()}
    assert all("nonfinite" in states[step] for step in range(STEPS) if step not in finite)
