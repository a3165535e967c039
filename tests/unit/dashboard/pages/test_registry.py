"""The frame of every page."""

import pytest

from gradcanary_dashboard.pages.registry import PAGES, Page
from support.api_answers import text_of

PLACE = {"run": "run", "layer": "layer", "incident": "31", "endpoint": "3", "rule": "collapse"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_frame_has_a_heading_and_all_that_is_filled_and_asked(page: Page) -> None:
    said = text_of(page.frame(PLACE, {}))
    wanted = (*page.slots, f"{page.name}-page-state")
    assert [slot for slot in wanted if f'"id": "{slot}"' not in said] == []
    assert said.count('"type": "H1"') == 1
