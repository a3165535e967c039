"""gradcanary watches the gradients of a PyTorch training, and says which layers stopped learning.

import gradcanary
gradcanary.watch()
"""

from gradcanary.version import __version__
from gradcanary.watching import Alert, Watch, watch

__all__ = ["Alert", "Watch", "__version__", "watch"]
