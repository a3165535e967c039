"""What `make docs` does to the documents before mkdocs reads them, and what it looks for in the site."""

from pathlib import Path

import pytest

from support.documents import site


def test_lists_are_indented_by_four_after_a_blank_line() -> None:
    text = "Two:\n- a\n  more\n\n  ```sh\n  run\n  ```\n- b\n  1. c\n     d\n\n    code\n"
    assert site.indent_lists(text) == (
        "Two:\n\n- a\n    more\n\n    ```sh\n    run\n    ```\n- b\n    1. c\n        d\n\n      code\n"
    )


def test_code_and_text_stay() -> None:
    text = "# A\n\n    code\n\n```\n- no item\n  1. none\n```\n\nEnd.\n"
    assert site.indent_lists(text) == text


def test_a_link_that_leaves_the_documents_becomes_words() -> None:
    names = {"docs/index.md", "docs/deploy/README.md"}
    text = "[b](index.md#x) [c](../tests/detection/) [d](deploy/) [e](https://example.org)\n"
    assert site.prepare("docs/index.md", text, names) == (
        "[b](index.md#x) c [d](deploy/README.md) [e](https://example.org)\n"
    )


@pytest.mark.parametrize(
    ("page", "is_foreign"),
    [
        ('<script src="https://cdn.example/a.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ("<style>a { background: url(https://cdn.example/a.png) }</style>", True),
        ('<a href="https://example.org">a link</a> <img src="../a.png"> <script src="js/a.js"></script>', False),
    ],
)
def test_what_a_page_would_load_from_another_host_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, is_foreign: bool
) -> None:
    monkeypatch.setattr(site, "SITE", tmp_path)
    (tmp_path / "page.html").write_text(page)
    assert bool(site.foreign_assets()) is is_foreign
