"""The blocks of docs/reference/python-client.md run as they are written, in their order, against a real collector."""

import re
from pathlib import Path

import numpy as np
import pytest

from support import streams

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "python-client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def absmax(module_collector, monkeypatch):
    monkeypatch.setenv("GRADCANARY_URL", module_collector.url)
    values = streams.collapsed(400, 4, [0, 2], 200)
    values[:, 3] = np.nan  # no gradient
    streams.Session(module_collector.url, run="sdxl-0412").send(streams.Stream(values, streams.falling_loss(400)))
    return values


def test_the_page_runs_as_written(module_collector, absmax, capsys):
    assert len(BLOCKS) == 11
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block.replace("http://127.0.0.1:8787", module_collector.url), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "sdxl-0412 live 399 0.2" in printed
    assert "critical collapse" in printed
    assert f"\n{module_collector.url}/runs/in-a-notebook\n" in printed
    (said,) = re.findall(r"# (There is no run .*)", BLOCKS[-1])
    assert said in printed
    np.testing.assert_array_equal(names["wide"].to_numpy()[:, :3], absmax[:, [0, 1, 2]])
    assert names["lowest"] == absmax[:, :3].min()
    assert set(names["gone"]["name"]) == {"blocks.1.attn.lora_B.weight"}
    assert len(names["first"].buckets.steps) == 101
    assert " ".join(names["frame"].columns) == "step bucket_steps time metric tags min mean max count nonfinite"
    assert names["worst"][0].number == 3
    assert names["incident"].members
    assert not names["client"].silences()
    assert names["client"].incident(names["incident"].id).acked.note == "restarting with weight_decay=0.01"
