"""``gradcanary doctor``; the package doctor does the work."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from gradcanary.cli import console

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands


def add_command(commands: Commands) -> None:
    """Add ``doctor``."""
    text = "check what would keep a training here from being seen: collector, token, clock, folder, torch, GPUs"
    command = commands.add_parser("doctor", help=text, description=f"{text}. In a job: srun gradcanary doctor")
    console.add_collector_options(command)
    command.add_argument("--json", action="store_true", help="print the findings as JSON: check, state, found, do")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from gradcanary import doctor

    return doctor.run(arguments.url, arguments.token, os.environ, as_json=arguments.json)
