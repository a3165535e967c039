"""The answers for a run's page: what becomes of the run beside it."""

from typing import Any

import pytest

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Answer, Collector
from gradcanary_dashboard.collector.errors import NotFoundError
from support.api_answers import heatmap_answer, layer, run, run_list, series_answer


class Told(Collector):
    """A collector that loses the run ``other`` after it has told of it once."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.others = [run(run="other")]

    def run(self, run: str, part: str = "", **_query: Any) -> Answer:
        if run == "other":
            if not self.others:
                raise NotFoundError("no such run")
            return Answer(self.others.pop(), "1")
        return Answer(run_list() if run == "." else OWN[part], "1")

    def incidents(self, **_query: Any) -> Answer:
        return Answer({"incidents": [], "next": None}, "1")


OWN = {"": run(), "layers": {"layers": [layer(0)]}, "heatmap": heatmap_answer(1, 1), "series": series_answer({}, [1])}


@pytest.mark.parametrize("other", ["other", ".", "run", ""])
def test_a_run_is_shown_alone_if_that_beside_it_is_none_or_gone(other: str) -> None:
    data = run_data.load(Told(), "run", View(vs=other), None)
    assert (data.run["run"], data.other) == ("run", None)
