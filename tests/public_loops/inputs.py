"""What the loops train on: text that lies on each machine, and small random models and pictures that are made here."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from PIL import Image, ImageDraw
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

TEXT_BYTES = 1_000_000
PICTURES = 64
PIXELS = 32
COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("ellipse", "rectangle")


def write_all(folder: Path) -> None:
    """Write the inputs of all loops into a new folder."""
    folder.mkdir(parents=True)
    write_text(folder / "text.txt")
    write_pictures(folder / "pictures")
    write_pipeline(folder / "pipeline")


def write_text(file: Path) -> None:
    """Write a text: the sources of Python's standard library."""
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)[:TEXT_BYTES]
    file.write_text(text.decode("ascii", "ignore"), "ascii")


def write_pictures(folder: Path) -> None:
    """Write a folder of pictures with captions, as the ``imagefolder`` of Hugging Face's datasets reads it."""
    folder.mkdir()
    captions = []
    for number in range(PICTURES):
        colour, shape = COLOURS[number % len(COLOURS)], SHAPES[number // len(COLOURS) % len(SHAPES)]
        picture = Image.new("RGB", (PIXELS, PIXELS), "white")
        left = number % 15
        getattr(ImageDraw.Draw(picture), shape)((left, left, left + 16, left + 16), fill=colour)
        picture.save(folder / f"{number}.png")
        captions.append(json.dumps({"file_name": f"{number}.png", "text": f"a {colour} {shape}"}))
    (folder / "metadata.jsonl").write_text("\n".join(captions))


def write_pipeline(folder: Path) -> None:
    """Save a Stable Diffusion pipeline with small random models: what the LoRA script calls a pretrained model."""
    torch.manual_seed(0)
    signs = [chr(code) for code in range(33, 127)]
    names = [*signs, *(f"{sign}</w>" for sign in signs), "<|startoftext|>", "<|endoftext|>"]
    tokens = {name: number for number, name in enumerate(names)}
    width = 32
    text_config = CLIPTextConfig(
        vocab_size=len(tokens),
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=tokens["<|startoftext|>"],
        eos_token_id=tokens["<|endoftext|>"],
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=width,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 16, 16),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
    )
    parts: dict[str, Any] = {
        "tokenizer": CLIPTokenizer(tokens, [], model_max_length=16),
        "text_encoder": CLIPTextModel(text_config),
        "vae": vae,
        "unet": unet,
        "scheduler": DDPMScheduler(),
    }
    for name, part in parts.items():
        part.save_pretrained(folder / name)
