"""What tests share; ``tests`` is on the path, so that it is imported as ``support.streams``.

| folder | holds |
|---|---|
| here | streams, traces, receivers, collectors, databases, waiting: for all suites |
| ``agent`` | trainings and the collectors that record them |
| ``server`` | stores, clocks, disks, faults |
| ``browser`` | Chromium, plots, scenes, screenshots and their trainings |
| ``release`` | the check of a release: its archives, and their use in empty environments |
| ``programs`` | scripts that a test or a picture starts as a process |
"""

from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
"""Each is started by its path."""
