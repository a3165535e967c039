"""False findings of ``gradcanary check`` on public trainings: ``python tests/public_loops/check.py FOLDER [--wide]``.

FOLDER holds checkouts as ``owner/name``. The ten scripts are printed as a table for docs/how-to/check.md, then what was
found. A finding is true only where a person has read the code and listed it here; all others count as false. ``--wide``
checks every Python file of every checkout instead, and prints the findings of which none is judged.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "agent"))

from gradcanary.check.checker import check_source
from gradcanary.check.findings import Finding
from gradcanary.check.source import find_files

SCRIPTS = {
    "karpathy/nanoGPT": ["train.py"],
    "huggingface/diffusers": [
        "examples/text_to_image/train_text_to_image_lora_sdxl.py",
        "examples/dreambooth/train_dreambooth.py",
    ],
    "kohya-ss/sd-scripts": ["train_network.py"],
    "pytorch/examples": ["imagenet/main.py"],
    "pytorch/torchtune": ["recipes/lora_finetune_distributed.py"],
    "Lightning-AI/litgpt": ["litgpt/finetune/lora.py"],
    "huggingface/pytorch-image-models": ["train.py"],
    "huggingface/peft": ["examples/lora_dreambooth/train_dreambooth.py"],
    "ultralytics/yolov5": ["train.py"],
}

TRUE = {
    # lora_dropout is 0.05, and checkpoint_wrapper() gets preserve_rng_state=False
    ("Lightning-AI/litgpt", "litgpt/finetune/lora.py", "checkpoint_without_rng"),
}


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def find_in(path: Path) -> tuple[int, list[Finding]]:
    """Return the number of lines of a file, and its findings."""
    content = path.read_bytes()
    return content.count(b"\n"), check_source(str(path), content)


def print_ten(folder: Path) -> int:
    """Print the table of the ten scripts and return the number of false findings."""
    all_lines, all_false = 0, 0
    print("| script | lines | findings | false |\n| --- | --- | --- | --- |")
    for repository, paths in SCRIPTS.items():
        commit = commit_of(folder / repository)
        for path in paths:
            lines, found = find_in(folder / repository / path)
            false = [each for each in found if (repository, path, each.code) not in TRUE]
            print(f"| {repository}@{commit}:{path} | {lines:,} | {_cell(found)} | {len(false)} |")
            all_lines, all_false = all_lines + lines, all_false + len(false)
    print(f"\n{all_false} false findings in {all_lines:,} lines: {all_false / all_lines * 1_000:.2f} per 1,000 lines.")
    return all_false


def _cell(found: list[Finding]) -> str:
    return ", ".join(f"{each.code} (line {each.line})" for each in found) or "none"


def print_wide(folder: Path) -> None:
    """Print each finding in every Python file, and the number of lines."""
    files, lines = 0, 0
    for path in _python_files(folder):
        count, found = find_in(path)
        files, lines = files + 1, lines + count
        for each in found:
            print(f"{path.relative_to(folder)}:{each.line}: {each.code} {each.message}")
    for checkout in sorted(folder.glob("*/*")):
        print(f"{checkout.relative_to(folder)}@{commit_of(checkout)}")
    print(f"{files:,} files, {lines:,} lines.")


def _python_files(folder: Path) -> Iterator[Path]:
    return (path for checkout in sorted(folder.glob("*/*")) for path in find_files(checkout))


def main() -> int:
    """Return 1 if one of the ten scripts has a false finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="checkouts as owner/name")
    parser.add_argument("--wide", action="store_true", help="all Python files of all checkouts")
    arguments = parser.parse_args()
    if arguments.wide:
        print_wide(arguments.folder)
        return 0
    return int(print_ten(arguments.folder) > 0)


if __name__ == "__main__":
    sys.exit(main())
