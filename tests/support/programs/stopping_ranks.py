"""One of two ranks that an incident stops: by the Trainer, Lightning and a loop, and where only rank 0 has it.

Run as a script: ``stopping_ranks.py RANK PORT OUT URL``; prints the last step of each training as JSON.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import framework_ranks as ranks
import lightning.pytorch as pl
import torch
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import gradcanary
from gradcanary.export import sender
from gradcanary.lightning import GradientMonitor
from gradcanary.transformers import GradientCallback
from support.agent.documented import example

STEPS, STOPPED = 20_000, {"absmax_below": 1e6, "stop_on": "critical"}
"""No training gets so far, and all layers are under the threshold."""


class Waiting(TrainerCallback):
    """Goes on once the training should stop."""

    def __init__(self, callback: GradientCallback) -> None:
        self._callback = callback

    def on_step_end(self, _args: object, state: Any, _control: object, **_others: object) -> None:
        end = time.monotonic() + 60
        while state.global_step == 40 and not self._callback.watch.should_stop:
            assert time.monotonic() < end
            time.sleep(0.01)


def train_by_transformers(folder: str, callbacks: list[TrainerCallback], steps: int) -> dict[str, Any]:
    drawn = ranks.seed()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes))
    tokens = [torch.randint(0, 32, (8,), generator=drawn) for _ in range(64)]
    told = TrainingArguments(
        folder,
        max_steps=steps,
        save_strategy="steps",
        save_steps=STEPS,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    data = [{"input_ids": each, "labels": each} for each in tokens]
    trainer = Trainer(model, told, train_dataset=data, callbacks=callbacks)
    trainer.train()
    verdicts = [entry for entry in trainer.state.log_history if "gradcanary/verdict" in entry]
    saved = Path(folder) / f"checkpoint-{trainer.state.global_step}" / f"rng_state_{os.environ['RANK']}.pth"
    return {"step": trainer.state.global_step, "is_saved": saved.exists(), "verdicts": len(verdicts)}


def train_by_lightning(url: str, folder: str) -> dict[str, Any]:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks.RANKS,
        strategy="ddp",
        max_steps=STEPS,
        accumulate_grad_batches=ranks.K,
        callbacks=[GradientMonitor(url=url, run="lightning", **STOPPED)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(ranks.Module())
    return {"step": trainer.global_step}


def train_by_the_documented_loop(url: str) -> dict[str, Any]:
    os.environ.update(GRADCANARY_URL=url, GRADCANARY_RUN="documented", GRADCANARY_ABSMAX_BELOW="1e6")
    ranks.seed()
    model = torch.nn.parallel.DistributedDataParallel(ranks.net())
    names = {
        "gradcanary": gradcanary,
        "torch": torch,
        "device": "cpu",
        "loader": (torch.randn(2, 8) for _ in range(STEPS)),
        "loss_of": lambda batch: model(batch).square().mean(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
    }
    exec(example("`stop_on`", 1), names)
    return {"step": names["step"]}


def main(rank: str, port: str, out: str, url: str) -> None:
    torch.set_num_threads(1)
    sender.FLUSH_S = sender.QUIET_S = sender.INTERVAL_S = 0.05
    places = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "WORLD_SIZE": str(ranks.RANKS)}
    os.environ.update(places, LOCAL_WORLD_SIZE=str(ranks.RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update(TORCHELASTIC_RUN_ID="one", GRADCANARY_LAUNCH="one")
    both = [GradientCallback(url=url, run="transformers", **STOPPED)]
    found = {"transformers": train_by_transformers(f"{out}/both", both, STEPS)}
    found["lightning"] = train_by_lightning(url, out)
    only = GradientCallback(url=url, run="only", **STOPPED)
    callbacks = [only, Waiting(only)] if rank == "0" else []
    found["only rank 0"] = train_by_transformers(f"{out}/only", callbacks, 80)
    found["documented"] = train_by_the_documented_loop(url)
    print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
