"""The loops as their users start them: the commands, and the trainings of jobs.toml."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

STEPS = 2_000
NANOGPT = "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1"
NANOGPT += " --block_size=32 --batch_size=8 --n_layer=4 --n_head=4 --n_embd=64 --lr_decay_iters=2000 --dropout=0.0"
"""Its README's command for a CPU, but for the sizes."""
LORA = "launch --cpu --num_processes=1 train_text_to_image_lora.py --caption_column=text --resolution=32 --random_flip"
LORA += " --train_batch_size=1 --checkpointing_steps=5000 --learning_rate=1e-04 --lr_scheduler=constant"
LORA += " --lr_warmup_steps=0 --seed=42 --output_dir=out"
"""Its README's command, but for the sizes."""


@dataclass(frozen=True)
class Job:
    """A table of jobs.toml."""

    name: str
    rules: Sequence[str] = ()
    step: int = 0
    file: str = ""
    old: str = ""
    new: str = ""
    options: Sequence[str] = ()

    @property
    def loop(self) -> str:
        return self.name.partition("-")[0]

    @property
    def steps(self) -> int:
        return self.step + 600 if self.rules else STEPS

    def edit(self, folder: Path) -> None:
        """Change the file; a text that is not there once is an error, for then the project has changed."""
        if not self.file:
            return
        text = (folder / self.file).read_text("utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.file} has {text.count(self.old)} times, not once: {self.old}")
        (folder / self.file).write_text(text.replace(self.old, self.new), "utf-8")


def read_jobs() -> list[Job]:
    """Return the trainings of jobs.toml."""
    tables = tomllib.loads(Path(__file__).with_name("jobs.toml").read_text("utf-8"))
    return [Job(name, **table) for name, table in tables.items()]


def lay_out(job: Job, folder: Path, sources: dict[str, Path], inputs: Path) -> list[str]:
    """Copy the scripts of a job into a new folder, put its fault in, and return the command of the training."""
    if job.loop == "nanogpt":
        shutil.copytree(sources["nanogpt"], folder, ignore=shutil.ignore_patterns(".git"))
        shutil.copy(inputs / "text.txt", folder / "data/shakespeare_char/input.txt")
        words = [*NANOGPT.split(), f"--max_iters={job.steps}"]
    elif job.loop == "trainer":
        folder.mkdir()
        shutil.copy(Path(__file__).with_name("trainer.py"), folder)
        words = ["trainer.py", str(inputs / "text.txt"), str(job.steps)]
    else:
        folder.mkdir()
        shutil.copy(sources["diffusers"] / "examples/text_to_image/train_text_to_image_lora.py", folder)
        data = [f"--pretrained_model_name_or_path={inputs / 'pipeline'}", f"--train_data_dir={inputs / 'pictures'}"]
        accelerate = str(Path(sys.executable).with_name("accelerate"))
        words = [accelerate, *LORA.split(), f"--max_train_steps={job.steps}", *data]
    job.edit(folder)
    return [*words, *job.options]
