"""A file as rules see it: the framework whose words a fix takes, and what the file mentions."""

import pytest

from support.agent.checked import program


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import torch", "torch"),
        ("from accelerate import Accelerator", "accelerate"),
        ("import torch\nfrom transformers import Trainer, TrainingArguments", "trainer"),
        ("from transformers import AutoModel", "torch"),
        ("import pytorch_lightning as pl", "lightning"),
        ("from lightning import Fabric", "torch"),
    ],
)
def test_framework(text: str, framework: str) -> None:
    checked = program(text)
    assert checked.framework == framework
    assert checked.wording({"torch": "t", "trainer": "r"}) == {"trainer": "r"}.get(framework, "t")


def test_words_are_all_names_of_the_file() -> None:
    words = program("from a.b import c as d\ndef f(g, *, h=i.j): k(m=1)").words
    assert {"a", "b", "c"} <= program("import a.b\nfrom x import c").words | words
    assert {"g", "h", "i", "j", "k", "m"} <= words


def test_each_call_of_the_file_is_an_event_once() -> None:
    checked = program("def f():\n    a()\nclass A:\n    def g(self):\n        f()\nf()\nf()")
    assert sorted(event.node.lineno for event in checked.events()) == [2, 5, 6, 7]
