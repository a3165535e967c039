"""The 24 jobs by name, and the command that runs one: ``python -m words.jobs NAME [--plain FACTS.json] [--run RUN]``.

With ``--plain`` the product is not imported, and the job's own numbers are written to the file.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from words import fault_jobs, healthy_jobs, setup_jobs
from words.log import Log
from words.types import Train, Watch

TRAININGS: tuple[Train, ...] = (
    healthy_jobs.healthy_finetune,
    healthy_jobs.healthy_gan,
    healthy_jobs.healthy_warmup,
    healthy_jobs.healthy_converged,
    healthy_jobs.healthy_teacher,
    healthy_jobs.healthy_cosine_end,
    setup_jobs.lr_times_6000,
    setup_jobs.weight_decay_1e5,
    setup_jobs.lora_b_not_optimized,
    setup_jobs.head_replaced,
    setup_jobs.gan_wrong_optimizer,
    setup_jobs.momentum_09999999,
    setup_jobs.bf16_clip_1e9,
    setup_jobs.bf16_small_lr,
    setup_jobs.scheduler_per_batch,
    fault_jobs.encoder_frozen,
    fault_jobs.exploding_rnn,
    fault_jobs.sigmoid_stack,
    fault_jobs.masked_entropy,
    fault_jobs.bf16_accumulation,
    fault_jobs.out_of_memory,
    fault_jobs.rate_of_a_group,
    fault_jobs.rate_put_back,
    fault_jobs.decay_of_a_group,
)
JOBS: dict[str, Train] = {train.__name__: train for train in TRAININGS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="words.jobs", description="Run one job, watched or plain.")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--plain", type=Path, metavar="FACTS", help="do not watch; write the job's numbers here")
    parser.add_argument("--run", help="name of the run (default: that of the job)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.plain)
    try:
        JOBS[arguments.job](ignore if arguments.plain else watch(arguments.run), log)
    finally:
        log.write()


def watch(name: str | None) -> Watch:
    """Return ``gradcanary.watch``, with another name of the run if one is given."""
    import gradcanary

    def named(*arguments: Any, run: str) -> object:
        return gradcanary.watch(*arguments, run=name or run)

    return named


def ignore(*_: object, **__: object) -> None:
    """Watch nothing."""


if __name__ == "__main__":
    main()
