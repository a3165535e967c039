"""A Llama of 200,000 weights: its pretraining, and LoRA adapters of PEFT for it, as a team trains them.

``--wrong-decay`` makes the mistake of ``gradcanary demo`` at that step: the parameter group of lora_B in blocks 3 to 5
gets a wrong weight decay. ``--preempt`` ends the first launch there, as a scheduler does; the next one resumes.
"""

import argparse
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import gradcanary
from gradcanary.demo.training import Fault
from words.data import VOCABULARY, seeded, sentences

FOLDER = Path(os.environ["CHECKPOINTS"])
BASE = FOLDER / "base.pt"
TARGETS = ["v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAULTY = re.compile(r"layers\.[345]\..*lora_B")
MICRO_STEPS = 2
SAVE_EACH = 100
STAYS = "all steps are done"


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def scores(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(input_ids=tokens).logits.flatten(0, 1)


def pretrain(arguments: argparse.Namespace) -> None:
    """Train all weights, and save them."""
    model, draw = llama(), seeded(arguments.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with gradcanary.watch(run=arguments.run):
        for _ in range(arguments.steps):
            tokens, following = sentences(16, 16, draw)
            functional.cross_entropy(scores(model, tokens), following.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save(model.state_dict(), BASE)


def fine_tune(arguments: argparse.Namespace) -> None:
    """Train adapters for another rule of the language; go on where an earlier launch saved them."""
    model = llama()
    model.load_state_dict(torch.load(BASE))
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS))
    adapters = {name: weight for name, weight in adapted.named_parameters() if weight.requires_grad}
    groups = [
        {"params": [weight for name, weight in adapters.items() if not FAULTY.search(name)]},
        {"params": [weight for name, weight in adapters.items() if FAULTY.search(name)]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.0)
    saved = FOLDER / f"{arguments.run}.pt"
    first = resume(saved, adapters, optimizer) if saved.exists() else 0
    fault = None if arguments.wrong_decay is None else Fault(arguments.wrong_decay)
    draw = seeded(arguments.seed + first)
    with gradcanary.watch(run=arguments.run) as watch:
        for step in range(first, arguments.steps):
            if step == arguments.preempt and first == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            if fault is not None:
                fault.apply(optimizer.param_groups[1], step)
            for _ in range(MICRO_STEPS):
                tokens, following = sentences(8, 16, draw, factor=7, offset=1)
                loss = functional.cross_entropy(scores(adapted, tokens), following.flatten())
                (loss / MICRO_STEPS).backward()
            nn.utils.clip_grad_norm_(list(adapters.values()), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % SAVE_EACH == SAVE_EACH - 1:
                watch.log(accuracy=accuracy(adapted), tags={"split": "val"})
                torch.save([step + 1, adapters, optimizer.state_dict()], saved)
        if arguments.stays:  # as a notebook does after its loop; until the parent closes the input
            print(STAYS, flush=True)
            sys.stdin.read()


def resume(saved: Path, adapters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
    """Load what an earlier launch saved; return the next step."""
    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]
    step, weights, state = torch.load(saved)
    with torch.no_grad():
        for name, weight in adapters.items():
            weight.copy_(weights[name])
    optimizer.load_state_dict(state)
    return step


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Return the share of tokens that the model foresees, of sentences that it does not train on."""
    tokens, following = sentences(64, 16, seeded(999), factor=7, offset=1)
    return (scores(model, tokens).argmax(-1) == following.flatten()).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["pretrain", "lora"])
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong-decay", type=int, metavar="STEP")
    parser.add_argument("--preempt", type=int, metavar="STEP")
    parser.add_argument("--stays", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    (pretrain if arguments.task == "pretrain" else fine_tune)(arguments)


if __name__ == "__main__":
    main()
