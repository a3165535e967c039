"""The script of a user of Hugging Face's Trainer: a small random GPT-2 that learns the bytes of a text.

It knows nothing of gradcanary. ``python trainer.py TEXT STEPS``; loops.py puts faults into a copy of it.
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

LENGTH = 32

set_seed(0)
text = torch.tensor(list(Path(sys.argv[1]).read_bytes()))
rows = [{"input_ids": row, "labels": row} for row in text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4))
arguments = TrainingArguments(
    output_dir="out",
    max_steps=int(sys.argv[2]),
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    warmup_steps=100,
    logging_steps=50,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
