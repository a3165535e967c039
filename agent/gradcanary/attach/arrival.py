"""What comes into a process that is attached to: it has the gradcanary of who asks there, and lets a guest in.

Handed over as text, behind that of :mod:`gradcanary.attach.errand`, whose names it uses; nothing here is of gradcanary
before that is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from importlib import util
from typing import Any

from gradcanary.attach.errand import Errand


def load(package: str) -> bool:
    """Make the gradcanary of the one who attaches importable, and nothing else beside it; the path stays as it is.

    False where there is one already.
    """
    if "gradcanary" in sys.modules:
        return False
    file = os.path.join(package, "__init__.py")  # noqa: PTH118 -- likewise
    spec = util.spec_from_file_location("gradcanary", file, submodule_search_locations=[package])
    if spec is None or spec.loader is None:
        raise ImportError(f"no agent in {package}")
    sys.modules["gradcanary"] = module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        unload()
        raise
    return True


def unload() -> None:
    """Forget the modules: nobody has come in."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "gradcanary"]:
        del sys.modules[name]


def answer(folder: str, said: dict[str, Any]) -> None:
    """Leave what came of it for who waits."""
    written = os.path.join(folder, "answer.new")  # noqa: PTH118 -- likewise
    with open(written, "w", encoding="utf-8") as file:  # noqa: PTH123 -- likewise
        json.dump(said, file)
    os.replace(written, os.path.join(folder, "answer"))  # noqa: PTH105, PTH118 -- likewise


class Arrival:
    """A request that has come in, from its first try until a guest has moved in, or it is not wanted any more."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._guest: Any = None
        self._is_loaded = self._is_let_in = False

    def prepare(self) -> None:
        """Get all ready that takes time; last, take the request out of the gate: whoever is late finds none."""
        began = time.perf_counter()
        self._is_loaded = load(self._request["package"]) or self._is_loaded
        if self._guest is None:
            from gradcanary.attach.resident import Guest

            self._guest = Guest(self._request)
        self._guest.prepare()
        if not self._is_let_in:
            os.unlink(self._request["gate"])  # noqa: PTH108 -- likewise
            self._is_let_in = True
        self._guest.held_s += time.perf_counter() - began

    def move_in(self) -> None:
        self._guest.move_in()

    def is_wanted(self) -> bool:
        # A fork has a copy of what is queued.
        is_asked = self._is_let_in or (os.path.exists(self._request["gate"]) and self._is_waited_for())  # noqa: PTH110 -- likewise
        if os.getpid() == self._request["pid"] and is_asked:
            return True
        self.leave()
        return False

    def _is_waited_for(self) -> bool:
        """Say whether who asks is alive: one that was killed has left the gate open."""
        with suppress(OSError), open(f"/proc/{self._request['asker']}/stat", encoding="utf-8") as file:  # noqa: PTH123 -- likewise
            started: str = self._request["asker_started"]
            return file.read().rpartition(")")[2].split()[19] == started
        return False

    def leave(self) -> None:
        """Be gone as if never asked in."""
        if self._guest is not None:
            self._guest.leave()
            self._guest = None
        if self._is_loaded:
            unload()

    def report(self, place: str) -> None:
        with open(os.path.join(self._request["folder"], "place"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123 -- likewise
            file.write(place)

    def failed(self, error: Exception) -> None:
        self.leave()
        answer(self._request["folder"], {"error": f"{type(error).__name__}: {error}"})


def enter(request: dict[str, Any]) -> None:
    """Do what is asked for, as soon as it can be done; in a thread of its own."""
    came = Arrival(request)
    errand = Errand(
        request["package"],
        came.move_in,
        prepare=came.prepare,
        is_wanted=came.is_wanted,
        report=came.report,
        failed=came.failed,
    )
    try:
        errand.insist()
    except Exception as error:  # noqa: BLE001 -- whatever this Python lacks
        came.failed(error)
