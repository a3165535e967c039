"""What a batch changes beside incidents: facts that its measurements overrule."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from gradcanary import wire
from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings
from support.streams import Stream, healthy

STREAM = Stream(healthy(120, 6))
SESSION = "/api/v1/runs/one/sessions/a"
FORECAST = wire.Fact("bf16_weights_lr", "80 % of these weights are too coarse to change.", STREAM.names[:3])
OTHER = wire.Fact("bf16_moments", "They cannot decay.", STREAM.names[:3])
EARLIER = wire.Fact("bf16_weights_lr", "Another rate, of another launch.", STREAM.names[4:])


@pytest.mark.parametrize(
    ("shares", "is_overruled"), [((0.1, 0.2), True), ((0.9, 0.9), False), ((0.1, 0.9), False), ((), False)]
)
def test_measured_fractions_overrule_the_forecast(tmp_path, shares, is_overruled):
    headers = {"content-type": "application/json"}
    hello = wire.dump(STREAM.hello(facts=(FORECAST, OTHER, EARLIER)))
    with TestClient(
        create_app(Settings.from_env({}, data=tmp_path)), base_url="http://127.0.0.1", headers=headers
    ) as client:
        client.put(SESSION, content=hello).raise_for_status()
        batch = STREAM.batch(0, 120, change_records=True)
        if shares:
            measured = tuple(range(len(shares)))
            block = wire.Block("frozen_fraction", None, (100,), measured, wire.column("f", list(shares)))
            batch = replace(batch, blocks=(*batch.blocks, block))
        client.post(f"{SESSION}/batches/0", content=wire.dump(batch)).raise_for_status()
        left = [OTHER.text, EARLIER.text] if is_overruled else [FORECAST.text, OTHER.text, EARLIER.text]
        for _ in range(2):
            assert [fact["text"] for fact in client.get("/api/v1/runs/one").json()["facts"]] == left
            client.put(SESSION, content=hello).raise_for_status()  # an agent repeats its facts with each hello
