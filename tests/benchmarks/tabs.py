"""Open tabs, without the browser: what a page asks each second, seen once in a real Chromium and asked again from here.

Chromium redraws ten pages a second for two cores and more, which on one machine nobody else would have; on the readers'
own machines that is their affair. Of a run that trains there is news each second, so each tab asks whether there is,
and for all that its page shows, as it did when it was seen.
"""

import json
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
import jobs
import pages
import servers
from playwright.sync_api import Browser, Request

ANSWERS = "/_dash-update-component"
EACH_S = 1.0
KEPT = ("accept", "accept-encoding", "content-type", "origin", "sec-fetch-site", "user-agent")


@dataclass(frozen=True)
class Question:
    """What a page asks each second: whether there is news, and then for it, each at its address."""

    news: str
    refresh: str
    headers: dict[str, str]
    body: str

    def instead(self, this: str, that: str) -> "Question":
        """Return the question with one name or address in place of another."""
        headers = {name: value.replace(this, that) for name, value in self.headers.items()}
        return Question(
            *(each.replace(this, that) for each in (self.news, self.refresh)), headers, self.body.replace(this, that)
        )


def questions(url: str, layers: int, runs: Sequence[str | None]) -> list[Question]:
    """Return what tabs ask of a collector: of a run each, None = of the list.

    They are seen at another collector, to which one training posts: where many do, Chromium would be in their way.
    """
    if not runs:
        return []
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-tabs-") as folder,
        pages.started() as browser,
        servers.collector(Path(folder) / "data") as calm,
        jobs.Jobs(calm.url, 1, layers),
    ):
        of_list, of_run = (_seen(browser, calm.url, path) for path in ("/", f"/runs/{jobs.run_name(0)}"))
    found = [of_list if run is None else of_run.instead(jobs.run_name(0), run) for run in runs]
    return [each.instead(calm.url, url) for each in found]


def _seen(browser: Browser, url: str, path: str) -> Question:
    """Open a page until it has asked for news of its own accord; return what it asked."""
    context = browser.new_context()
    context.set_default_timeout(120_000)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/_news?" in request.url else None)
    with page.expect_request(lambda request: bool(asked) and _is_refresh(request)) as refresh:
        page.goto(url + path, wait_until="commit")
    found = refresh.value
    headers = {name: value for name, value in found.all_headers().items() if name in KEPT}
    question = Question(asked[-1], found.url, headers, found.post_data or "")
    context.close()
    return question


def _is_refresh(request: Request) -> bool:
    if urlsplit(request.url).path != ANSWERS:
        return False
    changed: list[str] = json.loads(request.post_data or "{}")["changedPropIds"]
    return any(each.endswith("-heart.data-news") for each in changed)


class Tabs:
    """So many tabs, one for each question; ``answers_s`` is how long their refreshes took."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.answers_s: list[float] = []
        self.problems: list[str] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(each, number / len(questions) * EACH_S))
            for number, each in enumerate(questions)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, question: Question, after_s: float) -> None:
        due = time.monotonic() + after_s
        try:
            with httpx.Client(timeout=60, headers=question.headers) as client:
                while not self._stopping.wait(max(0.0, due - time.monotonic())):
                    self._ask(client, question)
                    due = max(due + EACH_S, time.monotonic())  # while an answer is awaited no page asks again
        except httpx.HTTPError as error:
            self.problems.append(f"{question.news}: {error!r}")

    def _ask(self, client: httpx.Client, question: Question) -> None:
        began = time.perf_counter()
        if client.get(question.news).raise_for_status().status_code == httpx.codes.OK:
            with client.stream("POST", question.refresh, content=question.body) as answer:
                answer.raise_for_status()
                for _ in answer.iter_raw():  # as it came: to inflate and read it is the browser's work
                    pass
            self.answers_s.append(time.perf_counter() - began)
