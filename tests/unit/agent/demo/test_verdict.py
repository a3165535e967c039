"""The verdict of the headless demo passes what is right, and names each thing that is not."""

import base64
import copy
import json
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gradcanary import demo
from gradcanary.demo.verdict import COLLAPSED, Message, Runs, problems

RUNS = Runs("faulty", "twin")

OPENED_UNIX = 1_700_000_000.0

Answers = dict[str, Any]


def doubles(*values: float) -> dict[str, Any]:
    data = base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode()
    return {"dtype": "float64", "shape": [len(values)], "data": data}


def right() -> Answers:
    incident = {"id": 1, "run": "faulty", "rule": "collapse", "severity": "critical", "summary": "fell"}
    layers = [{"name": name, "since_step": 207} for name in sorted(COLLAPSED)]
    more = {"opened_step": 226, "opened": "2023-11-14T22:13:20Z", "likely_cause": {"code": "weight_decay"}}
    return {
        "/incidents?run=faulty": {"incidents": [incident]},
        "/incidents/1": {**incident, **more, "layers": layers},
        "/incidents?run=twin": {"incidents": []},
        "/runs/twin": {"step": 599},
        "/runs/faulty/metrics?name=loss&points=1000": {"metrics": [{"mean": doubles(3.0, float("nan"), 1.3)}]},
    }


def message(**changed: Any) -> Message:
    data = {"incident": 1, "run": "faulty", "worst": [{"name": name} for name in sorted(COLLAPSED)], **changed}
    return Message(OPENED_UNIX + 10, "msg_1_1", {"type": "gradient.collapse.opened", "data": data})


def test_verdict_passes_a_right_run() -> None:
    assert problems(right().__getitem__, RUNS, [message()]) == []


def test_information_is_quiet() -> None:
    answers = right()
    answers["/incidents?run=twin"]["incidents"] = [{"id": 2, "severity": "information", "summary": "converged"}]
    assert problems(answers.__getitem__, RUNS, [message()]) == []


def no_incident(answers: Answers) -> None:
    answers["/incidents?run=faulty"]["incidents"] = []


def another_incident(answers: Answers) -> None:
    answers["/incidents?run=faulty"]["incidents"].append({"id": 2, "rule": "nonfinite", "severity": "critical"})


def a_layer_too_few(answers: Answers) -> None:
    answers["/incidents/1"]["layers"].pop()


def a_layer_too_many(answers: Answers) -> None:
    answers["/incidents/1"]["layers"].append({"name": "blocks.2.lora_A.weight"})


def only_a_warning(answers: Answers) -> None:
    answers["/incidents/1"]["severity"] = "warning"


def innocent_cause(answers: Answers) -> None:
    answers["/incidents/1"]["likely_cause"] = {"code": "rate_jump"}


def late(answers: Answers) -> None:
    answers["/incidents/1"]["opened_step"] = 238


def before_the_fall(answers: Answers) -> None:
    answers["/incidents/1"]["opened_step"] = 150


def slow_webhook(answers: Answers) -> None:
    answers["/incidents/1"]["opened"] = "2023-11-14T22:13:00Z"


def noisy_twin(answers: Answers) -> None:
    answers["/incidents?run=twin"]["incidents"] = [{"id": 2, "severity": "warning", "summary": "a false one"}]


def short_twin(answers: Answers) -> None:
    answers["/runs/twin"]["step"] = 400


def rising_loss(answers: Answers) -> None:
    answers["/runs/faulty/metrics?name=loss&points=1000"]["metrics"][0]["mean"] = doubles(3.0, 2.9)


def no_loss(answers: Answers) -> None:
    answers["/runs/faulty/metrics?name=loss&points=1000"]["metrics"] = []


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (no_incident, "not one collapse"),
        (another_incident, "not one collapse"),
        (a_layer_too_few, "names"),
        (a_layer_too_many, "names"),
        (only_a_warning, "not critical"),
        (innocent_cause, "not the weight decay"),
        (late, "opened at step 238"),
        (before_the_fall, "opened at step 150"),
        (slow_webhook, "30 s after"),
        (noisy_twin, "not quiet"),
        (short_twin, "500 steps"),
        (rising_loss, "did not fall"),
        (no_loss, "did not fall"),
    ],
)
def test_verdict_names_each_wrong_thing(spoil: Callable[[Answers], None], word: str) -> None:
    answers = copy.deepcopy(right())
    spoil(answers)
    wrong = problems(answers.__getitem__, RUNS, [message()])
    assert len(wrong) == 1
    assert word in wrong[0]


@pytest.mark.parametrize(
    "messages",
    [[], [message(), message()], [message(incident=2)], [message(worst=[])]],
    ids=["none", "twice", "of another incident", "of no parameters"],
)
def test_webhooks_must_be_one_about_the_collapse(messages: list[Message]) -> None:
    assert len(problems(right().__getitem__, RUNS, messages)) == 1


def test_a_wrong_signature_is_named() -> None:
    assert "wrong signature" in problems(right().__getitem__, RUNS, [message()], refused=1)[0]


class Ended:
    """A training of the demo that has ended, or is still to be started."""

    def __init__(self, name: str, *_: object, **__: object) -> None:
        self.name, self.status = name, 0

    def close(self) -> None:
        """Nothing is left of it."""


@contextmanager
def answering(answers: Answers, *, may_read: bool) -> Iterator[str]:
    """Yield the address of a collector that gives these answers, or only says that it is there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/api/v1")
            is_forbidden = path != "/healthz" and not may_read
            body = json.dumps(answers.get(path, {"runs": [], "metrics": []})).encode()
            self.send_response(403 if is_forbidden else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("may_read", "spoil", "headless", "status", "line"),
    [
        (True, None, True, 0, demo.CAUGHT),
        (True, None, False, 0, demo.CAUGHT),
        (True, no_incident, False, 1, "wrong: lora-wrong-decay-0 has incidents of the rules []"),
        (False, None, False, 0, demo.NOT_READ),
        (False, None, True, 2, demo.NEEDS_READING),
    ],
)
def test_with_a_running_collector_it_judges_what_its_token_may_read(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    may_read: bool,
    spoil: Callable[[Answers], None] | None,
    headless: bool,
    status: int,
    line: str,
) -> None:
    monkeypatch.setattr(demo, "Training", Ended)
    monkeypatch.setattr(demo, "_interrupt_on_signals", lambda: None)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "0")
    answers = right()
    if spoil is not None:
        spoil(answers)
    renamed = json.dumps(answers).replace("faulty", "lora-wrong-decay-0").replace("twin", "lora-healthy-0")
    with answering(json.loads(renamed), may_read=may_read) as url:
        assert demo.run_with_collector(url, None, headless=headless) == status
    assert line in capsys.readouterr().out
