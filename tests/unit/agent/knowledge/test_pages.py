"""The form of the pages of docs/knowledge, and how they are read."""

import re

import pytest

from gradcanary import knowledge
from gradcanary.knowledge import Page

PAGES = {page.name: page for page in knowledge.pages()}
SECTIONS = ["What it shows", "What to do", "What gradcanary does", "Sources"]
PAGE = Page(
    "swamping",
    knowledge.FOLDERS[1] / "swamping.md",
    "# A `sum`\n\nIt stops,\nsee [there](a.md).\n\n## What to do\n\n- One\n  long line.\n- `Two`.\n\n"
    "## Sources\n\nRules: `accumulation_loss`. Checks: none.\n",
)


def test_a_page_is_read_without_its_marks() -> None:
    assert (PAGE.title, PAGE.summary, PAGE.fix) == ("A sum", "It stops, see there.", "- One long line.\n- Two.")
    assert PAGE.rules == ["accumulation_loss"]


def test_ten_pages() -> None:
    assert " ".join(PAGES) == (
        "accumulator_dtypes checkpointing clipping fp16_range frozen_bf16_weights grad_scaler hidden_categories "
        "orthogonal_lora shrinking_schedule swamping"
    )


@pytest.mark.parametrize("name", PAGES)
def test_each_page_has_its_parts_and_is_short(name: str) -> None:
    page = PAGES[name]
    assert re.findall("^## (.*)$", page.text, re.MULTILINE) == SECTIONS
    assert len(re.findall("^```(?:python|text)$", page.text, re.MULTILINE)) == 2
    assert len(re.findall(r"^Rules: .+\. Checks: .+\.$", page.text, re.MULTILINE)) == 1
    assert 40 <= len(page.text.splitlines()) <= 80
    assert len(page.summary) < 500
    assert "https://" in page.text.partition("## Sources")[2] or "http://" in page.text.partition("## Sources")[2]


def test_a_rule_leads_to_its_page() -> None:
    page = knowledge.page_of("collapse")
    assert page is not None
    assert "collapse" in page.rules
    assert knowledge.page_of("silent") is None
