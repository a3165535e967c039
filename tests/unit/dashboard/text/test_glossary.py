"""The explanations of words."""

from gradcanary_dashboard.text.glossary import EXPLAINED, explain


def test_a_word_is_a_sentence_and_several_are_named() -> None:
    assert explain("K") == "Accumulation steps: the micro-steps whose gradients are summed for one optimizer step."
    stored, effective = explain("stored", "effective").split("\n")
    assert (stored, effective) == (f"stored: {EXPLAINED['stored']}", f"effective: {EXPLAINED['effective']}")
    assert all(text.endswith(".") for text in EXPLAINED.values())
