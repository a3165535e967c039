"""The answer table of the wire, on a real collector; after each bad request it still takes good ones."""

import base64
import contextlib
import gzip
import http.client
import json
import socket
import tracemalloc
import zlib
from dataclasses import replace

import httpx
import numpy as np
import pytest

from gradcanary import wire
from gradcanary_server import validation
from gradcanary_server.api import http as api_http
from gradcanary_server.errors import RequestError
from gradcanary_server.tsdb import batch
from support import streams

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def collector(module_collector):
    return module_collector


@pytest.fixture
def session(collector, request):
    return streams.Session(collector.url, run=f"run-{zlib.crc32(request.node.name.encode())}")


@pytest.fixture
def stream():
    return streams.Stream(streams.healthy(30, 6), loss=streams.falling_loss(30))


@pytest.fixture
def ready(session, stream):
    """A session whose hello and first batch are stored."""
    assert session.put_hello(stream.hello()).json()["status"] == "ok"
    assert session.post_batch(0, stream.batch(0, 10, change_records=True)).json()["status"] == "stored"
    yield session
    assert session.heartbeat().status_code == 200
    assert session.post_batch(999, stream.batch(29, 30)).json()["status"] == "stored"


def refused(answer, status, code, field=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "field"}
    assert error["code"] == code
    assert error["message"]
    if field is not None:
        assert error["field"] == field
    return True


def test_a_reply_tells_limits_and_next_seq(ready, stream):
    reply = ready.post_batch(1, stream.batch(10, 20))
    assert reply.json() == {
        "status": "stored",
        "next_seq": 2,
        "limits": {"max_body": 4 * 2**20, "max_points": 1_000_000, "max_layers": 20_000},
        "incidents": [],
        "spacing_s": 0.0,
        "has_other_layers": False,
    }
    assert wire.load_reply(reply.content).next_seq == 2


def test_a_known_batch_is_a_duplicate_and_stored_once(ready, stream):
    raw = wire.dump(stream.batch(10, 20))
    assert ready.post_batch(1, raw).json()["status"] == "stored"
    again = ready.post_batch(1, raw).json()
    assert (again["status"], again["next_seq"]) == ("duplicate", 2)


def test_a_known_seq_with_another_body_is_a_conflict(ready, stream):
    assert refused(ready.post_batch(0, stream.batch(10, 20)), 409, "conflict")


def test_a_seq_that_was_passed_over_is_superseded(ready, stream):
    assert ready.post_batch(5, stream.batch(10, 20)).json()["next_seq"] == 6
    assert refused(ready.post_batch(3, stream.batch(20, 25)), 409, "superseded")


def test_an_unknown_session(session, stream, ready):
    stranger = replace(session, session="stranger")
    assert refused(stranger.post_batch(0, stream.batch(0, 10)), 404, "unknown_session")
    assert refused(stranger.heartbeat(), 404, "unknown_session")
    assert refused(stranger.end(), 404, "unknown_session")
    assert refused(replace(session, run="no-such-run").post_batch(0, stream.batch(0, 10)), 404, "unknown_session")


def test_a_batch_before_its_layer_set_or_first_step(session, stream):
    bare = streams.hello(None, first_step=None, step_source=None, sharded=None)
    assert session.put_hello(bare).status_code == 200
    assert refused(session.post_batch(0, stream.batch(0, 10)), 409, "unknown_layer_set")
    assert session.put_hello(replace(bare, layer_sets=(stream.layers,))).status_code == 200
    assert refused(session.post_batch(0, stream.batch(0, 10)), 409, "unknown_layer_set", "first_step")
    assert session.put_hello(stream.hello()).status_code == 200
    assert session.post_batch(0, stream.batch(0, 10)).json()["status"] == "stored"


def test_a_hello_may_be_repeated_and_filled_but_not_changed(session, stream):
    assert session.put_hello(stream.hello(framework=None)).status_code == 200
    assert session.put_hello(stream.hello(framework="peft")).status_code == 200
    assert session.put_hello(stream.hello(framework="peft")).status_code == 200
    assert refused(session.put_hello(stream.hello(framework="trl")), 409, "conflict", "framework")
    assert refused(session.put_hello(stream.hello(launch="another")), 409, "conflict", "launch")


def test_late_is_known_with_the_first_step(session):
    """A resumed training is heard of before its first step. Its layers were low before anybody looked."""
    stream = streams.Stream(streams.healthy(60, 6, level=1e-6), first_step=12_000)
    assert session.put_hello(stream.hello(first_step=None, step_source=None)).status_code == 200
    assert session.put_hello(stream.hello(late=True)).status_code == 200
    assert refused(session.put_hello(stream.hello(late=False)), 409, "conflict", "late")
    assert session.post_batch(0, stream.batch(0, 60)).status_code == 200
    (found,) = httpx.get(f"{session.url}/api/v1/incidents", params={"run": session.run}).json()["incidents"]
    told = httpx.get(f"{session.url}/api/v1/incidents/{found['id']}").json()
    assert {layer["evidence"] for layer in told["layers"]} == {"joined_late"}


def test_another_protocol_is_426_whatever_else_the_hello_says(session, stream):
    for protocol, side in ((0, "where the training runs"), (2, "where the collector runs")):
        answer = session.put_hello(stream.hello(protocol=protocol))
        assert refused(answer, 426, "unknown_protocol")
        assert f"has protocol 1, the agent {protocol}: upgrade gradcanary {side}." in answer.json()["error"]["message"]
    future = json.dumps({"protocol": 7, "something": "new"}).encode()
    assert refused(httpx.put(session.path(), content=future, headers=JSON), 426, "unknown_protocol")


def changed(batch, **changes):
    """A batch as JSON with other values."""
    return json.dumps({**json.loads(wire.dump(batch)), **changes}).encode()


BAD_BATCHES = {
    "a string for an int": ({"every": "1"}, 422, "every"),
    "a float for a step": ({"steps": [10.5]}, 422, "steps.0"),
    "true for an int": ({"dropped_steps": True}, 422, "dropped_steps"),
    "an int beyond int64": ({"dropped_steps": 2**70}, 422, "dropped_steps"),
    "a negative step": ({"steps": [-1, *range(11, 20)]}, 422, "steps"),
    "steps that fall": ({"steps": list(range(19, 9, -1))}, 422, "steps"),
    "steps that were there before": ({"steps": list(range(5, 15)), "blocks": []}, 422, "steps"),
    "an unknown key": ({"surprise": 1}, 422, "surprise"),
    "an interval that nobody uses": ({"every": 7}, 422, "every"),
    "truncated base64": ({"state": "AAA"}, 422, "state"),
    "no base64": ({"times": "%%%%"}, 422, "times"),
    "base64 in lines": ({"state": base64.encodebytes(b"\0" * 60).decode()}, 422, "state"),
    "a state plane of another size": ({"state": base64.b64encode(b"\0" * 61).decode()}, 422, "state"),
    "a state plane of another layer set": (
        {"state": base64.b64encode(b"\1" * 70).decode(), "blocks": []},
        422,
        "state",
    ),
    "a state that does not exist": ({"state": base64.b64encode(b"\6" * 60).decode()}, 422, "state"),
    "too few micro steps": ({"micro_steps": [1]}, 422, "micro_steps"),
    "skipped by nobody": ({"skipped": [3] * 10}, 422, "skipped"),
    "clipped twice": ({"clipped": [2] * 10}, 422, "clipped"),
    "another layer set": ({"layer_set": "0" * 16}, 409, "layer_set"),
    "an accumulator beyond the layers": (
        {"accumulators": [{"layers": [6], "declared": None, "stored": "float32", "effective": None}]},
        422,
        "accumulators.0.layers",
    ),
    "a NUL in a metric name": (
        {"metrics": [{"name": "lo\0ss", "tags": [], "steps": [], "values": ""}]},
        422,
        "metrics.0.name",
    ),
    "a lone surrogate": ({"metrics": [{"name": "\ud800", "tags": [], "steps": [], "values": ""}]}, 400, None),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_batch_that_breaks_the_wire(ready, stream, case):
    changes, status, field = BAD_BATCHES[case]
    answer = ready.post_batch(1, changed(stream.batch(10, 20), **changes))
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["field"] == field


def block(values, **changes):
    steps = tuple(range(10, 20))
    plain = {"stat": "absmax", "phase": "accumulated", "steps": steps, "layers": None}
    return {**plain, "values": wire.column("f", np.ravel(values).tolist()), **changes}


BAD_BLOCKS = {
    "an infinity": [block(np.full(60, np.inf))],
    "a NaN that no state explains": [block(np.full(60, np.nan))],
    "a negative absmax": [block(np.full(60, -1.0))],
    "too few values": [block(np.ones(59))],
    "an unknown stat": [block(np.ones(60), stat="median")],
    "an unknown phase": [block(np.ones(60), phase="later")],
    "an absmax without a phase": [block(np.ones(60), phase=None)],
    "a step of another batch": [block(np.ones(6), steps=(20,))],
    "a layer beyond the set": [block(np.ones(10), layers=(6,))],
    "a layer twice": [block(np.ones(20), layers=(1, 1))],
    "a stat, step and layer twice": [block(np.ones(60)), block(np.ones(10), layers=(3,))],
}


@pytest.mark.parametrize("case", BAD_BLOCKS)
def test_a_block_that_breaks_the_wire(ready, stream, case):
    answer = ready.post_batch(1, changed(stream.batch(10, 20), blocks=BAD_BLOCKS[case]))
    assert refused(answer, 422, "invalid")
    assert answer.json()["error"]["field"].startswith("blocks.")


def test_a_nan_that_its_state_explains_and_an_infinite_loss_are_fine(ready, stream):
    absmax = streams.healthy(10, 6)
    absmax[3, 2], absmax[4, 1] = np.nan, np.inf
    odd = streams.Stream(absmax, loss=np.full(10, np.inf), first_step=10)
    assert ready.post_batch(1, odd.batch(0, 10)).json()["status"] == "stored"


NO_JSON = {
    "a literal NaN": (b'{"step": 1, "spooled_bytes": 0, "dropped_steps": 0, "agent_share": NaN}', 422),
    "an infinity": (b'{"step": 1, "spooled_bytes": 0, "dropped_steps": 0, "agent_share": 1e999}', 422),
    "no JSON": (b"{", 400),
    "nothing": (b"", 400),
    "a list": (b"[]", 422),
    "bytes that are no UTF-8": (b'{"step": "\xff"}', 400),
    "nested for ever": (b"[" * 100_000, 400),
    "a million objects": (b'{"steps":[' + b"{}," * 1_000_000 + b"{}]}", 422),
    "a million errors": (b'{"steps":[' + b'"",' * 1_000_000 + b'""]}', 422),
}


@pytest.mark.parametrize("case", NO_JSON)
def test_a_body_that_is_no_message(ready, case):
    raw, status = NO_JSON[case]
    for path in ("/batches/1", "/heartbeat", "/end"):
        answer = ready.post(path, raw)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["code"] in ("invalid", "invalid_json")


def test_the_longest_and_the_largest_of_everything(ready):
    last = validation.MAX_STEP
    wide = tuple(chr(0x1F400 + number) * wire.MAX_NAME for number in range(3))
    stream = streams.Stream(streams.healthy(2, 3), first_step=last - 1, names=wide, stored="d" * 40)
    facts = (wire.Fact("c" * 100, "\n" * validation.MAX_TEXT, wide),)
    words = dict.fromkeys(("agent", "python", "torch", "framework", "optimizer"), "w" * 100)
    other = replace(ready, run="r" * 100, session="s" * 64)
    hello = stream.hello(launch="l" * 64, facts=facts, absmax_below=1e308, collapse_below=1e308, **words)
    assert other.put_hello(hello).status_code == 200
    random = np.random.default_rng(0)
    tags = tuple((f"{number:03}", "".join(map(chr, random.integers(97, 123, 190)))) for number in range(9))
    metric = wire.Metric("\U0001f424" * 200, tags, (last,), wire.column("d", [1e308]))
    batch = replace(stream.batch(0, 2, change_records=True), metrics=(metric,), dropped_steps=last)
    for _ in range(2):
        assert other.post_batch(last, batch).json()["next_seq"] == last + 1
    told = other.client.get(f"{ready.url}/api/v1/runs/{other.run}").json()
    assert told["step"] == told["sessions"][0]["last_step"] == told["sessions"][0]["dropped_steps"] == last
    assert told["metrics"] == [{"name": metric.name, "tags": dict(tags), "last": 1e308}]
    layers = other.client.get(f"{ready.url}/api/v1/runs/{other.run}/layers").json()["layers"]
    assert [layer["name"] for layer in layers] == list(wide)
    assert other.heartbeat(last).status_code == 200
    assert other.end(last_step=last).status_code == 200


BAD_LAYERS = {
    "a NUL in a name": {"name": "a\0b"},
    "a line end in a name": {"name": "a\nb"},
    "no name": {"name": ""},
    "a name of 501 characters": {"name": "x" * 501},
    "a negative size": {"shape": (-1,)},
    "a size beyond int64": {"local_numel": 2**63},
    "a long dtype": {"param_dtype": "f" * 41},
}


@pytest.mark.parametrize("case", BAD_LAYERS)
def test_a_layer_that_breaks_the_wire(ready, stream, case):
    layers = (replace(stream.layers.layers[0], **BAD_LAYERS[case]),)
    hello = streams.hello(wire.LayerSet(wire.layer_set_id(layers), layers))
    assert refused(replace(ready, session="other").put_hello(hello), 422, "invalid")


ENVIRONMENT = wire.Environment("python train.py", None, None, "host", (), (), ())
BESIDE = wire.TrackerRun("wandb", "toy/1", "toy", None, None)
BAD_HELLOS = {
    "an unknown tracker": {"environment": replace(ENVIRONMENT, trackers=(replace(BESIDE, tracker="other"),))},
    "runs of trackers without end": {"environment": replace(ENVIRONMENT, trackers=(BESIDE,) * 65)},
    "an address without end": {"environment": replace(ENVIRONMENT, trackers=(replace(BESIDE, url="h" * 501),))},
    "a command of two lines": {"environment": replace(ENVIRONMENT, command="a\nb")},
    "a list without end": {"environment": replace(ENVIRONMENT, gpus=("gpu",) * 65)},
    "a setting of no step": {"settings": (wire.Setting(-1, None, (0,), "eps", 1e-8),)},
    "settings without end": {"settings": (wire.Setting(0, None, (0,), "eps", 1e-8),) * 1_001},
    "a launch that is no id": {"launch": "../etc"},
    "a rank beyond the world": {"rank": 1},
    "no heartbeat": {"interval_s": 0.0},
    "an unknown source": {"step_source": "guessed"},
    "a negative threshold": {"absmax_below": -1.0},
    "no threshold": {"collapse_below": 0.0},
    "a beginning before 1970": {"started": -1.0},
    "a control character": {"torch": "2.13\x1b[31m"},
    "a wrong hash": {"layer_sets": (wire.LayerSet("0" * 16, streams.layer_set(["a"]).layers),)},
    "equal names": {"layer_sets": (streams.layer_set(["a", "a"]),)},
    "no layers": {"layer_sets": (streams.layer_set([]),)},
    "too many layers": {"layer_sets": (streams.layer_set([str(i) for i in range(20_001)]),)},
}


@pytest.mark.parametrize("case", BAD_HELLOS)
def test_a_hello_that_breaks_the_wire(ready, stream, case):
    answer = replace(ready, session="other").put_hello(stream.hello(**BAD_HELLOS[case]))
    assert refused(answer, 422, "invalid")


@pytest.mark.parametrize(
    ("run_name", "session_id"), [(".hidden", "s"), ("a" * 101, "s"), ("a%20b", "s"), ("a", "s" * 65)]
)
def test_names_in_the_path(ready, stream, run_name, session_id):
    stranger = streams.Session(ready.url, run=run_name, session=session_id)
    assert refused(stranger.put_hello(stream.hello()), 422, "invalid")
    assert refused(stranger.heartbeat(), 422, "invalid")


@pytest.mark.parametrize("seq", ["-1", "x", str(2**31)])
def test_a_seq_that_is_none(ready, stream, seq):
    assert refused(ready.post(f"/batches/{seq}", stream.batch(10, 20)), 422, "invalid", "seq")


def test_other_content(ready, stream):
    raw = wire.dump(stream.batch(10, 20))
    path = ready.path("/batches/1")
    assert refused(httpx.post(path, content=raw), 415, "unsupported_media_type")
    assert refused(httpx.post(path, content=raw, headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type")
    packed = {**JSON, "Content-Encoding": "gzip"}
    assert refused(httpx.post(path, content=gzip.compress(raw), headers=packed), 415, "unsupported_encoding")
    assert refused(
        httpx.put(ready.path(), content=raw, headers={**JSON, "Content-Encoding": "br"}), 415, "unsupported_encoding"
    )


def test_gzip_that_is_none_or_not_whole(ready, stream):
    headers = {**JSON, "Content-Encoding": "gzip"}
    whole = gzip.compress(wire.dump(stream.hello()))
    for raw in (b"plain", whole[:-9], whole + b"more"):
        assert refused(httpx.put(ready.path(), content=raw, headers=headers), 400, "invalid_gzip")


def test_a_gzip_bomb(ready):
    headers = {**JSON, "Content-Encoding": "gzip"}
    bomb = gzip.compress(b" " * 400_000_000, 9)
    assert len(bomb) < 2**20
    assert refused(httpx.put(ready.path(), content=bomb, headers=headers, timeout=30), 413, "too_large")


def test_a_body_of_errors_is_read_up_to_the_first_of_each_list():
    with pytest.raises(RequestError) as refusal:
        batch.parse_batch(NO_JSON["a million errors"][0])
    assert refusal.value.__cause__.error_count() < 50


def test_a_gzip_bomb_never_becomes_its_size():
    bomb = gzip.compress(b" " * 400_000_000, 9)
    tracemalloc.start()
    with pytest.raises(RequestError, match="inflated"):
        api_http.inflate(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * api_http.MAX_INFLATED_BYTES


def test_100_mb_declared_and_not_declared(ready):
    def parts():
        for _ in range(100):
            yield b"x" * 1_000_000

    # The agent's client, unlike httpx, reads no answer when it could not send all of its body.
    url = httpx.URL(ready.path("/batches/1"))
    with contextlib.closing(http.client.HTTPConnection(url.host, url.port, timeout=60)) as declared:
        declared.request("POST", url.path, b"x" * 100_000_000, JSON)
        answer = declared.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (413, "too_large")
    assert refused(httpx.post(ready.path("/batches/1"), content=parts(), headers=JSON, timeout=60), 413, "too_large")


def test_a_body_that_is_too_large_by_its_length_is_not_waited_for(ready, collector):
    with socket.create_connection(("127.0.0.1", collector.port), 10) as sender:
        head = [
            f"POST {httpx.URL(ready.path('/heartbeat')).path} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
        ]
        sender.sendall("\r\n".join([*head, "Content-Length: 5000000", "", ""]).encode())
        sender.sendall(b"x" * 5_000_000)
        assert sender.recv(100).startswith(b"HTTP/1.1 413")


def test_too_many_points(ready):
    wide = streams.Stream(streams.healthy(1, 20_000), first_step=100, names=tuple(f"l{i}" for i in range(20_000)))
    other = replace(ready, session="wide")
    assert other.put_hello(wide.hello(launch="wide")).status_code == 200
    many = tuple(range(100, 151))
    plane = base64.b64encode(b"\1" * (51 * 20_000)).decode()
    small = {"times": wire.column("d", [0.0] * 51), "micro_steps": [1] * 51, "skipped": [0] * 51, "clipped": [0] * 51}
    answer = other.post_batch(0, changed(wide.batch(0, 1), steps=many, state=plane, blocks=[], **small))
    assert refused(answer, 413, "too_large")


def test_paths_that_are_not_served(ready, collector):
    assert refused(collector.get("/api/v1/nothing"), 404, "not_found")
    assert refused(collector.get("/api/nothing/at/all"), 404, "not_found")
    assert refused(httpx.post(collector.url + "/api/v1/runs"), 405, "method_not_allowed")
    assert refused(httpx.get(ready.path("/heartbeat")), 405, "method_not_allowed")
    assert collector.get("/healthz").json() == {"status": "ok"}
