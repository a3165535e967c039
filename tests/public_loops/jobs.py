"""The loops as their users start them, and the faults: each is an edit that a user could have made by mistake.

A fault replaces text in a copy of the script as the job is started, or adds an option to its command. The originals stay
as they are, and a text that is not there, or twice, is an error: the project has changed.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

STEPS = 2_000
LATE = 500
"""The step at which a fault begins, where it does not begin with the training."""


@dataclass(frozen=True)
class Edit:
    """A text of a file, and what stands there instead."""

    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> None:
        file = folder / self.file
        text = file.read_text("utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.file} has {text.count(self.old)} times, not once: {self.old}")
        file.write_text(text.replace(self.old, self.new), "utf-8")


@dataclass(frozen=True)
class Job:
    """One training: ``rules`` name its fault, which begins at ``step``; a healthy one has none."""

    loop: str
    name: str
    edits: tuple[Edit, ...] = ()
    options: tuple[str, ...] = ()
    step: int = 0
    rules: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        return f"{self.loop}-{self.name}"

    @property
    def steps(self) -> int:
        """The length: a fault has to be named within 300 steps."""
        return self.step + 600 if self.rules else STEPS


def command(job: Job, folder: Path, sources: dict[str, Path], inputs: Path) -> list[str]:
    """Copy the scripts of a job into a folder, put its fault in, and return the command of the training."""
    if job.loop == "nanogpt":
        shutil.copytree(sources["nanogpt"], folder, ignore=shutil.ignore_patterns(".git"))
        (folder / "data/shakespeare_char/input.txt").write_bytes((inputs / "text.txt").read_bytes())
        words = ["train.py", "config/train_shakespeare_char.py", *NANOGPT, f"--max_iters={job.steps}"]
    elif job.loop == "trainer":
        folder.mkdir()
        shutil.copy(Path(__file__).with_name("trainer.py"), folder)
        words = ["trainer.py", str(inputs / "text.txt"), str(job.steps)]
    else:
        folder.mkdir()
        shutil.copy(sources["diffusers"] / f"examples/text_to_image/{LORA_SCRIPT}", folder)
        data = [f"--pretrained_model_name_or_path={inputs / 'pipeline'}", f"--train_data_dir={inputs / 'pictures'}"]
        launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--cpu", "--num_processes=1"]
        words = [*launch, LORA_SCRIPT, *data, *LORA, f"--max_train_steps={job.steps}"]
    for edit in job.edits:
        edit.apply(folder)
    return [*words, *job.options]


# The README's command for a CPU, with its 2,000 steps.
NANOGPT = (
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1", "--block_size=64", "--batch_size=12"),
    *("--n_layer=4", "--n_head=4", "--n_embd=128", "--lr_decay_iters=2000", "--dropout=0.0"),
)
# As in the README's, but for the sizes.
LORA = (
    *(
        "--caption_column=text",
        "--resolution=32",
        "--random_flip",
        "--train_batch_size=2",
        "--checkpointing_steps=5000",
    ),
    *("--learning_rate=1e-04", "--lr_scheduler=constant", "--lr_warmup_steps=0", "--seed=42", "--output_dir=out"),
)
LORA_SCRIPT = "train_text_to_image_lora.py"


def _edited(loop: str, name: str, edit: tuple[str, str, str], rules: str = "", step: int = 0, options: str = "") -> Job:
    return Job(loop, name, (Edit(*edit),), tuple(options.split()), step, tuple(rules.split()))


def nanogpt_jobs() -> tuple[Job, ...]:
    """Return the jobs of nanoGPT's train.py."""
    stale = f"""scaler.update()
    block = raw_model.transformer.h[2]
    if iter_num == {LATE}:
        stale = {{name: value.clone() for name, value in block.state_dict().items()}}
    if iter_num >= {LATE}:
        block.load_state_dict(stale)"""
    autocast = ("train.py", "nullcontext() if device_type == 'cpu' else torch.amp", "torch.amp")
    rate = ("train.py", "['lr'] = lr", f"['lr'] = 0.0 if iter_num >= {LATE} and param_group['weight_decay'] else lr")
    clear = "optimizer.zero_grad(set_to_none=True)"
    divided = f"scaler.scale(loss if iter_num < {LATE} else loss / 1e4)"
    nan = f"loss = loss * (float('nan') if iter_num == {LATE} else 1.0) / gradient_accumulation_steps #"
    detach = "x = block(x.detach() if block is self.transformer.h[2] else x)"
    zero = "x = block(x) if block is not self.transformer.h[2] else x + 0.0 * block(x)"
    slow = "--learning_rate=1e-6 --min_lr=1e-7"
    return (
        Job("nanogpt", "healthy"),
        _edited("nanogpt", "bfloat16", autocast, options="--dtype=bfloat16"),
        _edited("nanogpt", "rate-zero", rate, "no_update", LATE),
        _edited("nanogpt", "epsilon", ("model.py", "betas=betas, **", "betas=betas, eps=1.0, **"), "no_update"),
        _edited("nanogpt", "stale-copy", ("train.py", "scaler.update()", stale), "no_update", LATE),
        _edited("nanogpt", "not-cleared", ("train.py", clear, f"if iter_num < {LATE}: {clear}"), "not_cleared", LATE),
        _edited(
            "nanogpt",
            "no-optimizer",
            ("model.py", "if p.requires_grad}", "if p.requires_grad and '.h.2.' not in pn}"),
            "not_optimized",
        ),
        _edited(
            "nanogpt",
            "cannot-move",
            ("train.py", "model.to(device)", "model.to(torch.bfloat16)"),
            "in_vain no_update",
            0,
            slow,
        ),
        _edited("nanogpt", "detached", ("model.py", "x = block(x)", detach), "unused"),
        _edited("nanogpt", "times-zero", ("model.py", "x = block(x)", zero), "unused"),
        _edited("nanogpt", "loss-divided", ("train.py", "scaler.scale(loss)", divided), "scale_drop", LATE),
        _edited("nanogpt", "nan", ("train.py", "loss = loss / gradient_accumulation_steps #", nan), "nonfinite", LATE),
    )


def trainer_jobs() -> tuple[Job, ...]:
    """Return the jobs of Hugging Face's Trainer."""
    stale = f"""
from transformers import TrainerCallback

class Stale(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        block = model.transformer.h[2]
        if state.global_step == {LATE}:
            self.kept = {{name: value.clone() for name, value in block.state_dict().items()}}
        if state.global_step >= {LATE}:
            block.load_state_dict(self.kept)

trainer.add_callback(Stale())
trainer.train()"""
    groups = """blocks = list(model.transformer.h.parameters())
others = [p for p in model.parameters() if all(p is not q for q in blocks)]
optimizer = torch.optim.AdamW([{"params": blocks, "lr": 0.0}, {"params": others}], lr=1e-3)
trainer = Trainer(optimizers=(optimizer, None), model"""
    some = """some = [p for name, p in model.named_parameters() if ".h.2." not in name]
trainer = Trainer(optimizers=(torch.optim.AdamW(some, lr=1e-3), None), model"""
    file, built, arguments = "trainer.py", "trainer = Trainer(model", "learning_rate=1e-3,"
    sgd = "optim='sgd', learning_rate=0.1, max_grad_norm=1e-6,"
    halved = (Edit(file, "n_head=4))", "n_head=4)).to(torch.bfloat16)"), Edit(file, arguments, "learning_rate=1e-6,"))
    return (
        Job("trainer", "healthy"),
        _edited("trainer", "bfloat16", (file, "use_cpu=True", "use_cpu=True, bf16=True")),
        _edited("trainer", "rate-zero", (file, built, groups), "no_update"),
        _edited("trainer", "epsilon", (file, arguments, f"{arguments} adam_epsilon=1.0,"), "no_update"),
        _edited("trainer", "clip", (file, arguments, sgd), "no_update"),
        _edited("trainer", "stale-copy", (file, "\ntrainer.train()", stale), "no_update", LATE),
        _edited("trainer", "no-optimizer", (file, built, some), "not_optimized"),
        Job("trainer", "cannot-move", halved, rules=("in_vain", "no_update")),
    )


def lora_jobs() -> tuple[Job, ...]:
    """Return the jobs of diffusers' LoRA script."""
    indent = "\n" + 16 * " "
    named = f"for name, p in unet.named_parameters():{indent}        if 'lora_B' in name and 'up_blocks' in name:"
    killed = (
        f"if global_step >= {LATE}:{indent}    {named}{indent}            p.data.mul_(0.5){indent}lr_scheduler.step()"
    )
    mid = "{n: p for n, p in unet.named_parameters() if 'mid_block' in n and 'lora' in n}"
    copied = f"stale = {{n: p.detach().clone() for n, p in {mid}.items()}}"
    restored = f"for n, p in {mid}.items(): p.data.copy_(stale[n])"
    stale = f"if global_step == {LATE}: {copied}{indent}if global_step >= {LATE}:{indent}    {restored}{indent}lr_scheduler.step()"
    layers = "filter(lambda p: p.requires_grad, unet.parameters())"
    some = "[p for n, p in unet.named_parameters() if p.requires_grad and 'mid_block' not in n]"
    loss = 'target.float(), reduction="mean")'
    clear = "optimizer.zero_grad()"
    return (
        Job("lora", "healthy"),
        Job("lora", "bfloat16", options=("--mixed_precision=bf16",)),
        Job("lora", "epsilon", options=("--adam_epsilon=1.0",), rules=("no_update",)),
        _edited("lora", "killed", (LORA_SCRIPT, "lr_scheduler.step()", killed), "collapse", LATE),
        _edited("lora", "stale-copy", (LORA_SCRIPT, "lr_scheduler.step()", stale), "no_update", LATE),
        _edited("lora", "no-optimizer", (LORA_SCRIPT, layers, some), "not_optimized"),
        _edited("lora", "not-cleared", (LORA_SCRIPT, clear, f"if global_step < {LATE}: {clear}"), "not_cleared", LATE),
        _edited(
            "lora",
            "nan",
            (LORA_SCRIPT, loss, f"{loss} * (math.nan if global_step == {LATE} else 1.0)"),
            "nonfinite",
            LATE,
        ),
    )
