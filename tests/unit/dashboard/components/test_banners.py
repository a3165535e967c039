"""What stands above a page."""

from gradcanary_dashboard.address.runs import Listing
from gradcanary_dashboard.collector import endpoints as failing_endpoints
from gradcanary_dashboard.collector.client import Answer
from gradcanary_dashboard.components import banners
from gradcanary_dashboard.pages import runs as runs_page
from support.api_answers import run, run_list, text_of


def endpoint(**changes: object) -> dict[str, object]:
    made = {
        "id": 3,
        "name": "",
        "url": "https://hook.example/x",
        "state": "enabled",
        "since": "2026-11-20T10:00:00.000Z",
    }
    told = dict.fromkeys(("reason", "disabled_by", "failing_since", "last_failure", "last_error"))
    return {**made, **told, **changes}


def test_unreachable_endpoints_are_listed_above_the_runs() -> None:
    given_up = {"state": "disabled", "reason": "answered 410", "disabled_by": "failures"}
    failing = {"failing_since": "2026-11-20T10:00:00.000Z", "last_failure": "2026-11-20T10:11:00.000Z"}
    shown = [endpoint(**given_up), endpoint(**failing, last_error="answered 500", name="pager")]
    hidden = [
        endpoint(),
        endpoint(state="disabled", reason="disabled over HTTP", disabled_by="api"),
        endpoint(**{**failing, "last_failure": "2026-11-20T10:01:00.000Z"}),
    ]
    silent = failing_endpoints.load(Endpoints([*shown, *hidden]))
    assert silent == shown
    for runs in ([], [run()]):
        said = text_of(runs_page.fill(run_list(*runs), None, Listing(), silent)["runs"])
        assert "Messages do not reach 2 endpoints" in said
        assert (
            "is disabled since 2026-11-20 10:00 UTC: answered 410. Enable it: gradcanary endpoints set 3 --en" in said
        )
        assert "pager https://hook.example/x fails since 2026-11-20 10:00 UTC: answered 500" in said
    versions = {failing_endpoints.version(Endpoints(each)) for each in (hidden, shown, shown[:1])}
    assert len(versions) == 3
    assert banners.failing_endpoints([]) == []


class Endpoints:
    """As much of a collector as is asked for its endpoints."""

    def __init__(self, endpoints: list[dict[str, object]]) -> None:
        self._endpoints = endpoints

    def endpoints(self) -> Answer:
        return Answer({"endpoints": self._endpoints}, "")
