"""What holds for each page of the dashboard, those to come included, on a collector that people have used."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import httpx
import pytest
from playwright.sync_api import Page, expect

from support.browser import addresses, scenes
from support.browser.looks import faults
from support.collectors import Collector
from support.receivers import Receiver, status

RUN, HUSHED, QUIET, PAIR = "lora-fell", "lora-hushed", "lora-quiet", ("lora-bf16", "lora-fp32")
ARGUMENTS = {"run": RUN, "layer": "blocks.4.attn.q.lora_A.weight", "incident": "2", "endpoint": "1", "rule": "collapse"}
ADDRESSES = {
    **addresses.of_each(ARGUMENTS, {"compare": f"?run={PAIR[0]}&run={PAIR[1]}"}),
    "runs, none": "/?text=nobody&state=live",
    "runs, archive": "/?archived=1",
    "run, unknown": "/runs/no-such-run",
}
RULES = "version: 1\npace: {wait_s: 0.1, interval_s: 600}\n"


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a collector that holds one of everything that pages show.

    There are an open incident of which somebody was told, and acked it; one of which the message fails; one that is
    silenced; a run with every metric, two that compare, one in the archive; an endpoint and a token.
    """
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    receiver = Receiver(status(200), *[status(500)] * 100)
    networks = {"GRADCANARY_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    collector = Collector(tmp_path_factory.mktemp("lived-in"), ("--rules", str(rules)), networks).start()
    with httpx.Client(base_url=f"{collector.url}/api/v1", timeout=30, trust_env=False) as api:
        fill(api, collector.url, receiver)
    yield collector.url
    collector.kill()
    receiver.close()


def fill(api: httpx.Client, url: str, receiver: Receiver) -> None:
    def made(path: str, **body: object) -> None:
        api.post(path, json=body).raise_for_status()

    tomorrow = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
    made("/endpoints", url=receiver.url, name="on call")
    made("/tokens", name="cluster", scope="ingest")
    made("/silences", run="lora-h*", rule="collapse", match="attn", until=tomorrow, by="ada", note="a new data loader")

    scenes.measured(url, RUN, scenes.collapse(steps=240, blocks=7, at=140))
    receiver.wait(1)
    made(f"/incidents/{ARGUMENTS['incident']}/ack", by="ada", note="restarting with a lower learning rate")
    scenes.send(url, HUSHED, scenes.collapse(steps=140, blocks=7, at=100))
    scenes.pair(url, *PAIR)
    receiver.wait(2)  # and the second message fails again and again
    scenes.send(url, QUIET, scenes.quiet(steps=40, blocks=2), ended=True)
    api.patch(f"/runs/{QUIET}", json={"archived": True, "tags": ["sdxl"], "note": "as it shall be"}).raise_for_status()
    opened = api.get("/incidents", params={"state": "open", "rule": "collapse"}).json()["incidents"]
    known = {each["run"]: (each["acked"] is not None, each["silenced"] is not None) for each in opened}
    assert known == {RUN: (True, False), HUSHED: (False, True), PAIR[0]: (False, False)}


@pytest.mark.parametrize("path", ADDRESSES.values(), ids=ADDRESSES)
def test_a_page_is_there_for_everybody(lived_in: str, open_page: Callable[..., Page], path: str) -> None:
    page = open_page(lived_in + path)
    assert faults(page) == []


@pytest.mark.parametrize("asked", ["ack", "silence"])
def test_a_dialog_about_an_incident_is_there_for_everybody(
    lived_in: str, open_page: Callable[..., Page], asked: str
) -> None:
    page = open_page(f"{lived_in}/incidents/{ARGUMENTS['incident']}")
    page.locator(f"[data-do={asked}]").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Your name")).to_be_visible()
    assert faults(page) == []
    expect(dialog.get_by_label("Your name")).to_be_visible()
