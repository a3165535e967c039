"""Open tabs, without the browser: what a page asks each second, asked from here.

Chromium redraws ten pages a second for two cores and more, which on one machine nobody else would have; on the readers'
own machines that is their affair. Of a run that trains there is news each second. The page of a run then asks for its
metrics, too: for the cards that are in sight.
"""

import json
import threading
import time
from collections.abc import Sequence
from typing import Self
from urllib.parse import quote

import httpx

EACH_S, LONGEST_S = 1.0, 5.0
"""A page asks each second; where its answer took longer it rests half as long, and not for ever."""

IN_SIGHT = 1
"""Cards of metrics that Chromium asks for in a window of 1,300 x 900 pixels."""

HEADERS = {"accept-encoding": "gzip, deflate, br", "sec-fetch-site": "same-origin"}


class Tab:
    """One page: of a run, None = the list."""

    def __init__(self, url: str, run: str | None) -> None:
        self._client = httpx.Client(base_url=url, timeout=60, headers=HEADERS)
        self._run, self._path = run, "/" if run is None else f"/runs/{quote(run)}"
        self._shown = ""
        self._cards: list[str] = []

    def ask(self) -> float | None:
        """Ask for news; return the seconds that took, None where there was none."""
        began = time.perf_counter()
        asked = {"path": self._path, "search": "", "shown": self._shown}
        answer = self._client.post("/_refresh", json=asked).raise_for_status()
        if answer.status_code == httpx.codes.NO_CONTENT:
            return None
        took, told = time.perf_counter() - began, json.loads(answer.content)
        slots = told["slots"]
        self._shown = slots[f"{told['page']}-page-state"]
        if "panels" in slots:
            keys = (attributes.get("data-key") for _, attributes, *_ in json.loads(slots["panels"]))
            self._cards = list(filter(None, keys))[:IN_SIGHT]
        if "metrics-state" in slots and self._cards:
            self._client.get(
                "/_metrics", params={"run": self._run, "search": "", "key": self._cards}
            ).raise_for_status()
        return took

    def close(self) -> None:
        self._client.close()


class Tabs:
    """So many tabs, each of a run or of the list; ``answers_s`` is how long their refreshes took."""

    def __init__(self, url: str, runs: Sequence[str | None]) -> None:
        self.answers_s: list[float] = []
        self.problems: list[str] = []
        self._url = url
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(run, number / len(runs) * EACH_S))
            for number, run in enumerate(runs)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, run: str | None, after_s: float) -> None:
        due, tab = time.monotonic() + after_s, Tab(self._url, run)
        try:
            while not self._stopping.wait(max(0.0, due - time.monotonic())):
                began = time.monotonic()
                took = tab.ask()
                if took is not None:
                    self.answers_s.append(took)
                due = began + max(EACH_S, min(LONGEST_S, 1.5 * (time.monotonic() - began)))
        except httpx.HTTPError as error:
            self.problems.append(f"{run or 'the list'}: {error!r}")
        finally:
            tab.close()
