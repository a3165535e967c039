"""What to do about a training of which nothing comes, as :mod:`gradcanary.remedy_words`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

_RESTART = (
    "Look at how the process ended: the scheduler's record (sacct, kubectl describe pod), dmesg for 'Out of memory', "
    "the end of its log. Start it again from its last checkpoint under the same run name."
)
_STANDSTILL = (
    "See where every rank stands with py-spy dump: the one whose stack differs is the one that the others wait for. "
    "If it evaluates for so long, raise stalled.after_s in rules.yaml."
)

_STACKS = "py-spy dump --pid PID   # on every rank"

TEXTS: Mapping[str, str] = {"restart": _RESTART, "standstill": _STANDSTILL}

WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "restart": {
        "pytorch": (
            "",
            "model.load_state_dict(torch.load('last.pt')['model']); gradcanary.watch(run='NAME', step=...)",
        ),
        "transformers": ("", "trainer.train(resume_from_checkpoint=True)"),
        "accelerate": ("", "accelerator.load_state('checkpoints/last')"),
        "lightning": ("", "trainer.fit(model, ckpt_path='last')"),
        "deepspeed": ("", "model_engine.load_checkpoint('checkpoints')"),
        "fsdp": ("Each rank loads its shard.", "torch.distributed.checkpoint.load(state_dict, checkpoint_id='last')"),
        "peft": ("", "PeftModel.from_pretrained(model, 'last-adapter', is_trainable=True)"),
        "diffusers": ("", "--resume_from_checkpoint=latest"),
    },
    "standstill": {
        "pytorch": ("A timeout ends a collective that hangs.", f"init_process_group(timeout=...)\n{_STACKS}"),
        "transformers": (
            "It evaluates and saves between two steps; ddp_timeout ends a collective that hangs.",
            f"TrainingArguments(ddp_timeout=600, eval_steps=...)\n{_STACKS}",
        ),
        "accelerate": (
            "A timeout ends a collective that hangs.",
            f"Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=10))])\n{_STACKS}",
        ),
        "lightning": (
            "It validates between two steps; a timeout ends a collective that hangs.",
            f"Trainer(strategy=DDPStrategy(timeout=timedelta(minutes=10)), limit_val_batches=...)\n{_STACKS}",
        ),
        "deepspeed": (
            "A timeout ends a collective that hangs.",
            f"deepspeed.init_distributed(timeout=timedelta(minutes=10))\n{_STACKS}",
        ),
        "fsdp": (
            "All ranks must take part in each forward pass, also in an evaluation.",
            f"init_process_group(timeout=...)\n{_STACKS}",
        ),
        "peft": ("", _STACKS),
        "diffusers": (
            "The training scripts make validation images between two steps.",
            f"--validation_epochs=...\n{_STACKS}",
        ),
    },
}
