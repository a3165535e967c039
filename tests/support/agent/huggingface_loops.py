"""Tiny models, and Hugging Face's loops around them: their own file, because importing these takes many seconds."""

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from diffusers import UNet2DConditionModel
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import gradcanary
from gradcanary.transformers import GradientCallback
from support.agent.micro_gradients import BATCHES, EPOCHS, K, MicroGradients, handed_to, launched, left_behind
from support.agent.recorded import Recorded

MAX_NORM = 0.76
"""Of the Trainer, between the norms of its windows, so that some are clipped."""


@dataclass
class Trained:
    """What a training left, and what it said of itself."""

    left: str
    micro: MicroGradients
    losses: list[float]
    """Of each micro-step, as the loop had it before dividing by K."""
    history: list[dict[str, Any]]
    scales: list[float] = field(default_factory=list)
    """Of each micro-step, before its backward pass."""


def begin(given: str, collector: Recorded, *known: object) -> contextlib.AbstractContextManager[Any]:
    """Watch as somebody would who has these, or has nothing yet, or runs ``gradcanary run``; nobody watches nothing."""
    if given in ("nobody", "callback"):
        return contextlib.nullcontext()
    if given == "launcher":
        return launched(collector.url)
    return gradcanary.watch(*(known if given != "nothing" else ()), url=collector.url, run="hugging")


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


# -- the Trainer -----------------------------------------------------------------------------------------------------


def llama() -> LlamaForCausalLM:
    seed()
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    return LlamaForCausalLM(config)


def llama_with_lora() -> PeftModel:
    return get_peft_model(llama(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))


def sentences() -> list[dict[str, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 32, (8,), generator=drawn) for _ in range(2 * BATCHES)]
    return [{"input_ids": each, "labels": each} for each in tokens]


def trainer_of(
    model: nn.Module,
    folder: Path,
    optimizer: torch.optim.Optimizer | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **settings: object,
) -> Trainer:
    told = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": K,
        "num_train_epochs": EPOCHS,
        "max_grad_norm": MAX_NORM,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **settings,
    }
    arguments, data = TrainingArguments(**told), sentences()
    return Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data[:4],
        optimizers=(optimizer, None),
        callbacks=[*callbacks],
    )


def trained_by(trainer: Trainer, micro: MicroGradients, **words: object) -> Trained:
    trainer.train(**words)
    history = [said for said in trainer.state.log_history if "loss" in said]
    return Trained(left_behind(trainer.model, trainer.optimizer.optimizer), micro, [], history)


def train(given: str, collector: Recorded, model: nn.Module, folder: Path, **settings: object) -> Trained:
    micro = MicroGradients(model)
    callbacks = [GradientCallback(url=collector.url, run="hugging")] if given == "callback" else []
    with begin(given, collector, model):
        return trained_by(trainer_of(model, folder, callbacks=callbacks, **settings), micro)


class Waiting(TrainerCallback):
    """Waits at the end of a step, until what another thread does is done."""

    def __init__(self, waits: dict[int, Callable[[], None]]) -> None:
        self._waits = waits

    def on_step_end(self, _args: object, state: Any, _control: object, **_others: object) -> None:
        if state.global_step in self._waits:
            self._waits[state.global_step]()


class Reporter(TrainerCallback):
    """Keeps what reporters get."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, *_: object, logs: dict[str, Any], **_others: object) -> None:
        self.logs.append(dict(logs))


def entries(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the Trainer's log without what the callback adds, and without times."""
    return [
        {key: value for key, value in entry.items() if not key.startswith("gradcanary/") and "_per_" not in key}
        for entry in ({**entry, "train_runtime": 0, "eval_runtime": 0} for entry in trainer.state.log_history)
    ]


class Fp32Accumulators(TrainerCallback):
    """What somebody writes to have them in the Trainer, which makes its optimizer itself."""

    def __init__(self) -> None:
        self.handed: list[list[torch.Tensor]] = []

    def on_train_begin(self, *_: object, optimizer: torch.optim.Optimizer, **_others: object) -> None:
        self.open = gradcanary.fp32_accumulators(optimizer)
        self.handed = handed_to(optimizer.optimizer)

    def on_train_end(self, *_: object, **_others: object) -> None:
        self.open.close()


def trained_with_masters(folder: Path, resumed: Path | None = None) -> tuple[list[torch.Tensor], set[str]]:
    """Return the weights, and the names of a parameter's states."""
    model = llama().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    gradcanary.fp32_masters(optimizer)
    saving = {"save_strategy": "steps", "save_steps": 2} if resumed is None else {}
    trainer_of(model, folder, optimizer, **saving).train(resume_from_checkpoint=resumed and str(resumed))
    return [each.detach() for each in model.parameters()], set(optimizer.state_dict()["state"][0])


# -- loops of one's own, by Accelerate -------------------------------------------------------------------------------

LossOf = Callable[[nn.Module, Any], torch.Tensor]


class Overwriting(torch.optim.Optimizer):
    """Leaves the signs of the gradients in their place. Accelerate hands it a closure, which is None."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad.sign_(), alpha=-self.param_groups[0]["lr"])


def accelerate(
    given: str,
    collector: Recorded,
    task: tuple[nn.Module, Sequence[Any], LossOf],
    max_norm: float,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    scaler: torch.amp.GradScaler | None = None,
) -> Trained:
    """Train as Accelerate's documentation does; watched before or after it has prepared model and optimizer."""
    model, batches, loss_of = task
    micro, losses, scales = MicroGradients(model), [], []
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        gradient_accumulation_steps=K, cpu=True, mixed_precision="no" if scaler is None else "fp16"
    )
    if scaler is not None:  # Accelerate makes one for devices other than the CPU only
        accelerator.scaler, accelerator.native_amp = scaler, True
    optimizer = kind([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    watch = begin(given, collector, model, optimizer) if given != "prepared" else None
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    with watch or begin(given, collector, model, optimizer):
        for _ in range(EPOCHS):
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = loss_of(model, batch)
                    losses.append(float(loss.detach()))
                    scales += [] if scaler is None else [scaler.get_scale()]
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), max_norm)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
    return Trained(left_behind(model, optimizer.optimizer), micro, losses, [], scales)


def scaler(exponent: int) -> torch.amp.GradScaler:
    """Return one whose scale is soon too large."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**exponent, growth_interval=3)


def net() -> tuple[nn.Module, Sequence[Any], LossOf]:
    seed()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    batches = [torch.randn(4, 8) * size for size in range(1, BATCHES + 1)]
    return model, batches, lambda net, batch: net(batch).square().mean()


def accelerate_in_bfloat16() -> tuple[list[list[torch.Tensor]], MicroGradients]:
    """Return what the optimizer got, and what of."""
    model, batches, loss_of = net()
    model.to(torch.bfloat16)
    micro = MicroGradients(model)
    accelerator = Accelerator(gradient_accumulation_steps=K, cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader([each.to(torch.bfloat16) for each in batches], batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handed = handed_to(optimizer.optimizer)
    with gradcanary.fp32_accumulators(optimizer):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1e9)
                optimizer.step()
                optimizer.zero_grad()
    return handed, micro


def accelerate_with_masters(folder: Path, *, is_resumed: bool) -> list[torch.Tensor]:
    """Return the weights after twelve steps, saved after half of them, or taken up there."""
    model, batches, loss_of = net()
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.to(torch.bfloat16).parameters(), lr=1e-5)
    model, optimizer = accelerator.prepare(model, optimizer)
    gradcanary.fp32_masters(optimizer)
    if is_resumed:
        accelerator.load_state(str(folder))
    for step in range(6 if is_resumed else 0, 12):
        if step == 6 and not is_resumed:
            accelerator.save_state(str(folder))
        accelerator.backward(loss_of(model, batches[step % len(batches)].to(torch.bfloat16)))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach() for each in model.parameters()]


def unet_with_lora() -> tuple[nn.Module, Sequence[Any], LossOf]:
    seed()
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    unet.requires_grad_(requires_grad=False)
    unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    unet.enable_gradient_checkpointing()
    batches = [
        {
            "noisy": torch.randn(1, 2, 8, 8),
            "noise": torch.randn(1, 2, 8, 8),
            "prompt": torch.randn(1, 3, 8),
            "time": torch.tensor([10 * number]),
        }
        for number in range(BATCHES)
    ]
    return unet, batches, noise_loss


def noise_loss(unet: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    noise = unet(batch["noisy"], batch["time"], batch["prompt"]).sample
    return nn.functional.mse_loss(noise, batch["noise"])
