"""What holds for each page of the dashboard, those to come included."""

from collections.abc import Callable
from typing import Any

import addresses
import pytest
from looks import faults
from playwright.sync_api import Page

RUN = "lora-fell"
ARGUMENTS = {"run": RUN, "layer": "blocks.4.attn.q.lora_A.weight", "incident": "1", "endpoint": "1"}
ADDRESSES = {
    **addresses.of_each(ARGUMENTS, {"compare": f"?run={RUN}&run=lora-quiet"}),
    "runs, none": "/?text=nobody&state=live",
    "run, unknown": "/runs/no-such-run",
}


@pytest.mark.parametrize("path", ADDRESSES.values(), ids=ADDRESSES)
def test_a_page_is_there_for_everybody(shared: Any, open_page: Callable[..., Page], path: str) -> None:
    page = open_page(shared.url + path)
    assert faults(page) == []
