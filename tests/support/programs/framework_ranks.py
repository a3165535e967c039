"""One of two ranks that a framework trains with DistributedDataParallel, as ``torchrun`` starts them.

Run as a script: ``framework_ranks.py RANK PORT OUT URL...`` with a URL per kind; each rank writes the gradients that
its own passes brought, by kind, to a file in OUT.
"""

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import lightning.pytorch as pl
import torch
from accelerate import Accelerator
from torch import distributed, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import gradcanary
from gradcanary.lightning import GradientMonitor
from gradcanary.transformers import GradientCallback
from support.agent.micro_gradients import MicroGradients

RANKS, K, BATCHES, EPOCHS = 2, 2, 5, 2
COUNTS = [2, 2, 1, 2, 2, 1]


def seed() -> torch.Generator:
    torch.manual_seed(0)
    random.seed(0)
    return torch.Generator().manual_seed(1)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(drawn: torch.Generator) -> torch.utils.data.DataLoader:
    rows = [torch.randn(8, generator=drawn) * size for size in range(1, 2 * RANKS * BATCHES + 1)]
    return torch.utils.data.DataLoader(rows, batch_size=2)


def train_by_transformers(url: str | None, folder: str) -> tuple[nn.Module, MicroGradients]:
    drawn = seed()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes))
    tokens = [torch.randint(0, 32, (8,), generator=drawn) for _ in range(2 * RANKS * BATCHES)]
    told = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=K,
        num_train_epochs=EPOCHS,
        max_grad_norm=0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    micro = MicroGradients(model)
    data = [{"input_ids": each, "labels": each} for each in tokens]
    callbacks = [] if url is None else [GradientCallback(url=url, run="ranks")]
    Trainer(model, told, train_dataset=data, callbacks=callbacks).train()
    return model, micro


def train_by_accelerate(url: str | None, _: str) -> tuple[nn.Module, MicroGradients]:
    loader, model = batches(seed()), net()
    micro, accelerator = MicroGradients(model), Accelerator(gradient_accumulation_steps=K, cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with watched(url, wrapped, optimizer):
        for batch in (each for _ in range(EPOCHS) for each in loader):
            with accelerator.accumulate(wrapped):
                accelerator.backward(wrapped(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    return model, micro


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.loader, self.net = batches(seed()), net()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return self.loader


def train_by_lightning(url: str | None, folder: str) -> tuple[nn.Module, MicroGradients]:
    module = Module()
    micro = MicroGradients(module)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_epochs=EPOCHS,
        accumulate_grad_batches=K,
        callbacks=[] if url is None else [GradientMonitor(url=url, run="ranks")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module)
    return module, micro


@contextlib.contextmanager
def watched(url: str | None, *known: Any) -> Iterator[None]:
    with contextlib.nullcontext() if url is None else gradcanary.watch(*known, url=url, run="ranks"):
        yield


KINDS = {"transformers": train_by_transformers, "accelerate": train_by_accelerate, "lightning": train_by_lightning}


def main(rank: str, port: str, out: str, *urls: str) -> None:
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "WORLD_SIZE": str(RANKS)}
    os.environ.update(places, LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update(TORCHELASTIC_RUN_ID="one", GRADCANARY_LAUNCH="one")
    found = {}
    for (kind, train), url in zip(KINDS.items(), urls, strict=True):
        bare, _ = train(None, out)
        model, micro = train(url, out)
        assert all(map(torch.equal, model.state_dict().values(), bare.state_dict().values())), kind
        found[kind] = micro.windows(COUNTS)
    torch.save(found, Path(out) / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
