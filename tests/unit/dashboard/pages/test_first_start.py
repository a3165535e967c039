"""The page before the first run."""

from gradcanary_dashboard.pages import first_start
from support.api_answers import text_of


def first(url: str = "http://127.0.0.1:4711", *, asks_token: bool = False) -> str:
    return text_of(first_start.page(url, asks_token=asks_token))


def test_the_empty_state_names_the_collector_that_was_asked() -> None:
    said = first()
    assert "export GRADCANARY_URL=http://127.0.0.1:4711" in said
    assert "gradcanary run train.py" in said
    assert "gradcanary attach PID --url http://127.0.0.1:4711" in said
    assert "no agent seen" in said
    assert "GRADCANARY_TOKEN" not in said
    said = first("https://here.example", asks_token=True)
    assert "export GRADCANARY_URL=https://here.example GRADCANARY_TOKEN=gc_ingest_..." in said
    assert "gradcanary token create --scope ingest" in said


def test_the_empty_state_has_the_line_of_the_demo_to_copy() -> None:
    assert "\\ngradcanary demo --url http://127.0.0.1:4711" in first()
    said = first("https://here.example", asks_token=True)
    assert "\\nGRADCANARY_TOKEN=gc_ingest_... gradcanary demo --url https://here.example" in said
