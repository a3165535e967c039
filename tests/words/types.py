"""What a job is: a function that takes ``gradcanary.watch``, or something that does nothing, and a log."""

from collections.abc import Callable
from typing import TypeAlias

from words.log import Log

Watch: TypeAlias = Callable[..., object]
Train: TypeAlias = Callable[[Watch, Log], None]
