"""Runs as a Python process starts under ``gradcanary run``: waits for torch, then runs the user's own file.

It is read by every Python that the command starts, of any version and with any packages, and most of them never
train: so its syntax is that of Python 2 and 3, it loads nothing before torch is there, and it never imports torch.
"""

import os
import sys

FOLDER = os.path.dirname(__file__)


class TorchWaiter(object):
    """A finder that finds nothing itself: it calls :func:`watch` after the import of torch, and is gone then."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of torch by the finders after this one; None for any other module."""
        if name != "torch" or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self._call_after_import(spec.loader)
                return spec
        return None

    def _call_after_import(self, loader):
        """Wrap the import of this loader object; it is as it was afterwards."""
        execute = getattr(loader, "exec_module", None)

        def exec_module(module):
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            watch()

        try:
            loader.exec_module = exec_module
        except Exception as error:
            print_error(error)


def watch():
    """Watch this process, which has torch now; an error is one line on stderr."""
    try:
        if sys.version_info < (3, 10):
            raise RuntimeError("gradcanary needs Python 3.10 or newer")
        find_agent()
        from gradcanary.api import watch_when_training

        watch_when_training()
    except Exception as error:
        print_error(error)


def find_agent():
    """Make the launcher's agent importable if this Python has none; nothing else of its environment."""
    from importlib import util

    spec = util.find_spec("gradcanary")
    if spec is not None and spec.origin is not None:  # without an origin it is some folder of that name
        return
    package = os.path.dirname(FOLDER)
    spec = util.spec_from_file_location(
        "gradcanary", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    sys.modules["gradcanary"] = module = util.module_from_spec(spec)
    spec.loader.exec_module(module)


def restore_carried_variables():
    """Set the agent's variables if a launcher passed on only those that begin with PYTHON."""
    carried = os.environ.get("PYTHON_GRADCANARY", "")
    if not carried or "GRADCANARY_WATCH" in os.environ:
        return
    try:
        from binascii import a2b_base64

        for pair in a2b_base64(carried).split(b"\0"):
            name, _, value = pair.partition(b"=")
            os.environ.setdefault(os.fsdecode(name), os.fsdecode(value))
    except Exception as error:
        print_error(error)


def print_error(error):
    try:
        sys.stderr.write("gradcanary: this process is not watched (%s: %s)\n" % (type(error).__name__, error))
    except Exception:
        pass


def run_users_sitecustomize():
    """Import the user's file that this one hides, as if this one had never been on the path; its errors are raised."""
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401


if sys.version_info >= (3, 4):
    restore_carried_variables()
    if os.environ.get("GRADCANARY_WATCH") == "1":
        if "torch" in sys.modules:
            watch()
        else:
            sys.meta_path.insert(0, TorchWaiter())
run_users_sitecustomize()
