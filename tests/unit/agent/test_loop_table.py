"""What docs/reference/training-loops.md says of training loops is what their tests say."""

from support.agent import loop_table


def test_the_table_is_that_of_the_tests() -> None:
    text = loop_table.DOCUMENT.read_text("utf-8")
    assert loop_table.BEGIN in text
    assert loop_table.written(text) == text, "`make loops` writes the table anew"
