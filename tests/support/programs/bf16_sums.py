"""The gradients of bfloat16 weights, summed over 512 micro-steps that point the same way; ``--fp32``: in float32."""

import argparse

import torch
from torch.nn import functional

import gradcanary
from words.data import curves, seeded
from words.models import perceptron

MICRO_STEPS = 512
STEPS = 48
"""Sums are at issue here: from step 50 on weights and second moments in bfloat16 have their own rules."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--fp32", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(45)
    draw = seeded(45)
    model = perceptron(8, 32, 32, 32, 32, 1).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if arguments.fp32:
        gradcanary.fp32_accumulators(optimizer)
    with gradcanary.watch(run=arguments.run):
        for _ in range(STEPS):
            for _ in range(MICRO_STEPS):
                points, values = curves(4, draw)
                output = model(points.to(torch.bfloat16)).float()
                (functional.mse_loss(output, values + 5.0) / MICRO_STEPS).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
