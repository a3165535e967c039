"""Caches: bounded by bytes, all of them by one setting, and without effect on any answer."""

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server import caches
from gradcanary_server.app import create_app
from gradcanary_server.caches import ENTRY_BYTES, MIB, Cache
from gradcanary_server.settings import Settings
from gradcanary_server.tsdb import batch as tsdb_batch
from support.streams import Stream, collapsed


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60), st.integers(0, 8), st.integers(0, 8))
def test_cache_keeps_the_latest_up_to_its_bytes(uses, room, later):
    cache, model = Cache(room * ENTRY_BYTES, lambda kept: kept * ENTRY_BYTES), {}

    def shrink(most):
        while sum(1 + kept for kept in model.values()) > most:
            del model[next(iter(model))]

    for key, size in uses:
        found = cache.get(key)
        assert found == model.get(key)
        kept = model.pop(key, size)
        model[key] = kept
        if found is None:
            assert cache.keep(key, size) == size
        shrink(room)
    cache.resize(later * ENTRY_BYTES)
    shrink(later)
    assert {key: cache.get(key) for key in range(10)} == {key: model.get(key) for key in range(10)}


def test_a_value_of_the_same_key_takes_the_place_of_the_earlier_one():
    cache = Cache(3 * ENTRY_BYTES, lambda kept: kept * ENTRY_BYTES)
    for size in (2, 1, 2, 0, 2):
        cache.keep("a", size)
    assert cache.get("a") == 2
    cache.keep("b", 0)
    assert (cache.get("a"), cache.get("b")) == (None, 0)


@pytest.mark.parametrize("megabytes", [1, 7, caches.DEFAULT_MB, 2**20])
def test_all_caches_together_take_no_more_than_the_setting(megabytes):
    shares = caches.split_cache_budget(megabytes * MIB)
    assert 0.99 * megabytes * MIB <= sum(shares) <= megabytes * MIB
    assert sum(caches.split_cache_budget(shares.backtests)) <= shares.backtests


PICTURES = ("", "/layers", "/heatmap", "/series?layer=0", "/metrics")
SHOWN = ("step", "state", "layers", "cells", "steps", "series", "metrics", "open_incidents")
"""Of their answers: what no clock and no number of an incident is in."""


def test_a_collector_with_little_memory_answers_the_same_and_decodes_again(tmp_path, monkeypatch):
    stream, decode, decoded = Stream(collapsed(120, 400, range(4), 60)), tsdb_batch.decode_batch, []
    monkeypatch.setattr(tsdb_batch, "decode_batch", lambda batch: decoded.append(1) or decode(batch))
    found, again = {}, {}
    for given_mb in ("", "1"):
        settings = Settings.from_env({"GRADCANARY_CACHE_MB": given_mb}, data=tmp_path / f"with-{given_mb}")
        settings.data.mkdir()
        app = create_app(settings)
        with TestClient(app, base_url="http://localhost", headers={"Content-Type": "application/json"}) as client:
            path = "/api/v1/runs/run/sessions/s"
            client.put(path, content=wire.dump(stream.hello())).raise_for_status()
            for seq, batch in enumerate(stream.batches(20)):
                client.post(f"{path}/batches/{seq}", content=wire.dump(batch)).raise_for_status()
            client.get("/api/v1/runs/run/heatmap").raise_for_status()
            decoded.clear()
            answers = [client.get(f"/api/v1/runs/run{rest}").json() for rest in PICTURES]
            again[given_mb] = len(decoded)
            found[given_mb] = [{key: kept for key, kept in answer.items() if key in SHOWN} for answer in answers]
    assert found["1"] == found[""]
    assert all(found["1"])
    assert again[""] == 0
    assert again["1"] > 0
