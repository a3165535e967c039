"""Whatever the collector answers: the training goes on, and what can arrive arrives once and in order."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gradcanary
from gradcanary.attach.resident import AttachedWatch
from gradcanary.attach.target import describe_status
from gradcanary.export.spool import Spool
from gradcanary.settings import Settings
from support import warm
from support.agent.fixtures import complaints
from support.agent.scripted import Says, Told, Training, collector_that, once, refusal, reply, until
from support.effort import EFFORT
from support.ports import free_port


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Half seconds become hundredths."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.export.delivery.RETRY_S", (0.05, 0.2))
    monkeypatch.setattr("gradcanary.export.sender.LAST_RETRY_S", 0.05)


def brief(number: int, severity: str = "warning") -> dict[str, object]:
    return {
        "id": number,
        "rule": "collapse",
        "severity": severity,
        "state": "open",
        "opened_step": 3,
        "layers": 2,
        "summary": "2 of 4 parameters fell",
        "url": "http://x/1",
        "later": None,
    }


def trained(url: str, *chunks: int, pause=lambda: None, **arguments: object) -> gradcanary.Watch:
    """Train in chunks under a watch and close it."""
    training = Training()
    watch = gradcanary.watch(training.model, training.optimizer, url=url, run="told", **arguments)
    for chunk in chunks:
        training.steps(chunk)
        pause()
    watch.close()
    assert watch._session.guard.caught == 0
    return watch


def test_steps_arrive_in_order_and_the_end_says_so():
    with collector_that() as collector:
        trained(collector.url, 30, 30, pause=lambda: time.sleep(0.1))
        assert collector.steps() == list(range(60))
        assert collector.seqs() == list(range(len(collector.seqs())))
        assert len(collector.seqs()) > 1
        assert collector.heard[0].kind == "hello"
        assert collector.heard[-1].body == {"state": "finished", "last_step": 59, "error": None}
        assert not [thread for thread in threading.enumerate() if thread.name == "gradcanary-sender"]


@pytest.mark.parametrize(
    "says", [Says(404, refusal("unknown_session")), Says(409, refusal("unknown_layer_set"))], ids=["404", "409"]
)
def test_a_collector_that_does_not_know_us_hears_the_hello_and_the_batch_again(says):
    with collector_that(once("batches", says)) as collector:
        trained(collector.url, 20)
        kinds = [told.kind for told in collector.heard]
        refused = kinds.index("batches")
        assert kinds[refused : refused + 3] == ["batches", "hello", "batches"]
        first, again = collector.of("batches")[:2]
        assert (first.path, first.raw) == (again.path, again.raw)
        assert collector.heard[refused + 1].body == collector.heard[refused - 1].body
        assert collector.steps() == list(range(20))


def test_a_new_database_hears_the_accumulators_again():
    script = {"forgot": False}

    def answer(told: Told) -> Says:
        if told.kind == "batches" and told.seq == 1 and not script["forgot"]:
            script["forgot"] = True
            return Says(404, refusal("unknown_session"))
        return Says()

    with collector_that(answer) as collector:
        trained(collector.url, 5, 5, pause=lambda: until(lambda: collector.of("batches")) or time.sleep(0.1))
        before, after = collector.of("batches", accepted=True)[:2]
        assert script["forgot"]
        assert before.body["accumulators"] == after.body["accumulators"] != []


def test_a_forgotten_session_is_greeted_before_its_end():
    with collector_that(once("end", Says(404, refusal("unknown_session")))) as collector:
        trained(collector.url, 3)
        assert [told.kind for told in collector.heard][-3:] == ["end", "hello", "end"]


@pytest.mark.parametrize("status", [400, 409, 415, 422])
def test_a_refused_batch_is_set_aside_and_counted(status, capsys):
    with collector_that(once("batches", Says(status, refusal("conflict", "Other bytes.")))) as collector:
        trained(collector.url, 5, 5, pause=lambda: until(lambda: collector.of("batches")) or time.sleep(0.1))
        lost = len(collector.of("batches")[0].body["steps"])
        assert collector.steps() == list(range(lost, 10))
        assert collector.seqs()[0] == 1
        assert collector.of("batches")[-1].body["dropped_steps"] == lost
    assert capsys.readouterr().err.count("Other bytes.") == 1


def test_refusals_that_differ_are_said_once(capsys):
    """A reason may name the step: a line for each batch would fill the log, and the memory."""
    refused = []

    def script(told: Told) -> Says:
        if told.kind != "batches":
            return Says()
        refused.append(told.seq)
        return Says(400, refusal(message=f"step {len(refused)} {{again}}"))

    with collector_that(script) as collector:
        watch = trained(collector.url, *[5] * 4, pause=lambda: until(refused.__len__))
    assert len(set(refused)) > 1
    err = capsys.readouterr().err
    assert err.count("the collector refused a batch") == 1
    assert "step 1 {again}" in err
    assert len(watch._session.guard._reported) < 5


def test_a_collector_that_is_busy_hears_less_often_and_nothing_less():
    with collector_that(lambda _: Says(200, reply(spacing_s=0.4))) as collector:
        trained(collector.url, *(1,) * 150, pause=lambda: time.sleep(0.01))  # there is always more to be sent
        assert collector.steps() == list(range(150))
        sent = [told.at for told in collector.of("batches")][:-1]  # the last one is not waited for
        assert 2 < len(sent) <= (sent[-1] - sent[0]) / 0.4 + 2


@pytest.mark.parametrize("wish", [float("nan"), -1.0, 0])
def test_a_wish_that_is_none_holds_up_nothing(wish):
    steps = iter((5, 10, 15))
    with collector_that(lambda _: Says(200, reply(spacing_s=wish))) as collector:

        def heard() -> None:
            count = next(steps)
            until(lambda: len(collector.steps()) >= count - 1)  # the last one may still be under way

        trained(collector.url, 5, 5, 5, pause=heard)


def test_no_wish_holds_up_the_end():
    with collector_that(lambda _: Says(200, reply(spacing_s=1e9))) as collector:
        trained(collector.url, 5, 5, pause=lambda: until(lambda: collector.of("batches")))
        assert collector.steps() == list(range(10)), "in the seconds that a close waits for"


def test_410_stops(capsys):
    with collector_that(lambda told: Says(410, refusal()) if told.kind == "batches" else Says()) as collector:
        trained(collector.url, 5, 5, 5, pause=lambda: until(lambda: collector.of("batches")) or time.sleep(0.1))
        assert [told.kind for told in collector.heard] == ["hello", "batches"]
    said = complaints(capsys.readouterr().err)
    assert said == "gradcanary: this run was deleted in the collector; nothing more is sent\n"


def test_413_halves_and_the_halves_take_its_number_and_the_next(monkeypatch):
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 60)  # nothing goes out before the close

    def at_most_3(told: Told) -> Says:
        too_large = told.kind == "batches" and len(told.body["steps"]) > 3
        return Says(413, refusal("too_large")) if too_large else Says()

    with collector_that(at_most_3) as collector:
        trained(collector.url, 12)
        assert [len(told.body["steps"]) for told in collector.of("batches")][:3] == [12, 6, 3]
        assert [told.seq for told in collector.of("batches")][:3] == [0, 0, 0]
        assert collector.steps() == list(range(12))
        assert collector.seqs() == list(range(len(collector.seqs())))
        assert all(told.body["dropped_steps"] == 0 for told in collector.of("batches"))


def test_a_step_that_is_too_large_alone_is_lost_and_counted(capsys):
    def not_the_fourth(told: Told) -> Says:
        return Says(413, refusal("too_large")) if told.kind == "batches" and 3 in told.body["steps"] else Says()

    with collector_that(not_the_fourth) as collector:
        trained(collector.url, 8)
        assert collector.steps() == [0, 1, 2, 4, 5, 6, 7]
        assert collector.of("batches")[-1].body["dropped_steps"] == 1
    assert capsys.readouterr().err.count("too large") == 1


@pytest.mark.parametrize("kind", ["hello", "batches"])
@pytest.mark.parametrize(
    "says",
    [
        Says(500, b"<html>"),
        Says(503, b"", {"retry-after": "1"}),
        Says(408, refusal()),
        Says(429, refusal()),
        Says(200, b"<html>welcome to the hotel"),
        Says(200, b"[]"),
        Says(200, reply(limits=[])),
        Says(200, reply(({"id": []},))),
        Says(200, reply(next_seq=None)),
        Says(302, b"", {"location": "http://127.0.0.1:9/"}),
    ],
    ids=["500", "503", "408", "429", "html", "list", "no-limits", "odd-brief", "no-seq", "302"],
)
def test_unsettled_requests_are_repeated_byte_for_byte(kind, says):
    if kind == "batches" and says.status == 302:
        says = Says(308)
    with collector_that(once(kind, says, times=2)) as collector:
        trained(
            collector.url,
            5,
            5,
            pause=lambda: (
                until(lambda: len(collector.of("batches")) > 2)
                if kind == "batches"
                else until(lambda: collector.of("batches"))
            ),
        )
        told = collector.of(kind)
        assert told[0].raw == told[1].raw == told[2].raw or kind == "hello"
        if kind == "batches":
            assert [each.seq for each in told[:3]] == [0, 0, 0]
        arrived = [
            step
            for each in {told.seq: told for told in collector.of("batches")}.values()
            for step in each.body["steps"]
        ]
        assert arrived == list(range(10))
        assert collector.heard[-1].kind == "end"


def test_retry_after_is_waited_for(monkeypatch):
    monkeypatch.setattr("gradcanary.export.delivery.RETRY_S", (0.05, 60))
    with collector_that(once("batches", Says(503, b"", {"retry-after": "1"}))) as collector:
        trained(collector.url, 5, pause=lambda: until(lambda: len(collector.of("batches")) > 1))
        first, second = collector.of("batches")[:2]
        assert second.at - first.at >= 1


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (401, "refuses the token: set GRADCANARY_TOKEN to a valid one; 'gradcanary token create --scope ingest "),
        (403, "refuses the token"),
        (426, "Speak 2"),
    ],
)
def test_refusals_of_configuration_are_logged_once_and_retried(status, word, capsys):
    with collector_that(once("hello", Says(status, refusal("x", "Speak 2.")), times=3)) as collector:
        trained(collector.url, 5, pause=lambda: until(lambda: collector.of("batches")))
        assert collector.steps() == list(range(5))
    assert capsys.readouterr().err.count(word) == 1


def test_batches_that_another_version_does_not_take_are_kept_for_the_next_one(capsys):
    """A collector that is upgraded while a training runs knows its session, and may not know its batches."""
    says = Says(426, refusal("unknown_protocol", "Upgrade gradcanary where the training runs."))
    with collector_that(once("batches", says, times=3)) as collector:
        trained(collector.url, 5, 5, pause=lambda: until(lambda: collector.of("batches")))
        assert collector.steps() == list(range(10))
    line = "gradcanary: Upgrade gradcanary where the training runs. Here is gradcanary "
    assert capsys.readouterr().err.count(line) == 1


def test_refused_token_is_reported_to_attach():
    with collector_that(once("hello", Says(401, refusal("x", "Revoked.")), times=99)) as collector:
        training = Training()
        with AttachedWatch(Settings.resolve({}, url=collector.url, run="barred"), "barred") as watch:
            watch.begin()
            training.steps(5)
            until(lambda: watch.describe()["is_unauthorized"])
            said = {**watch.describe(), "optimizers": [], "held_s": 0.1, "for_s": None}
        told = [line for line in describe_status(said, 1, None) if line.startswith("  collector")]
    assert len(told) == 1
    assert "refuses the token" in told[0]


def test_a_collector_that_comes_later_gets_everything(capsys):
    url = f"http://127.0.0.1:{free_port()}"
    training = Training()
    with gradcanary.watch(training.model, training.optimizer, url=url, run="later") as watch:
        training.steps(100)
        until(lambda: watch._session.sender._delivery.failures > 1)
        with collector_that() as collector:
            watch._session.sender._transport._port = int(collector.url.rsplit(":", 1)[1])
            training.steps(50)
            until(lambda: len(collector.steps()) >= 149)
            watch.close()
            assert collector.steps() == list(range(150))
    assert capsys.readouterr().err.count("no collector at") == 1


def test_a_collector_that_hangs_costs_the_training_nothing_and_close_does_not_wait_for_it(monkeypatch):
    """A request that is waited for would take longer than a test may."""
    monkeypatch.setattr("gradcanary.export.transport.TIMEOUT_S", 3600.0)
    with collector_that(lambda _: Says(hang=True)) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="hangs")
        training.steps(50)
        until(lambda: collector.heard or watch._session.sender._began < time.monotonic() - 3)
        watch.close(timeout_s=0.3)
        assert not [thread for thread in threading.enumerate() if thread.name == "gradcanary-sender"]


def test_heartbeats_go_out_between_batches(monkeypatch):
    monkeypatch.setattr("gradcanary.export.sender.INTERVAL_S", 0.1)
    beats = []

    def is_heard() -> bool:
        beats[:] = collector.of("heartbeat")  # not those of the end, which closes the last window
        return len(beats) > 2

    with collector_that() as collector:
        trained(collector.url, 5, pause=lambda: until(is_heard))
        beat = beats[-1].body
        assert beat["step"] == 3, "the last window is open until the next one begins"
        assert beat["dropped_steps"] == 0
        assert 0 < beat["agent_share"] < 1


def test_a_forgotten_session_is_greeted_after_a_heartbeat(monkeypatch):
    monkeypatch.setattr("gradcanary.export.sender.INTERVAL_S", 0.1)
    with collector_that(once("heartbeat", Says(404, refusal("unknown_session")))) as collector:
        trained(collector.url, 5, pause=lambda: until(lambda: len(collector.of("hello")) > 1))


def test_alerts_come_once_on_the_sender_thread_and_their_errors_stay_there(caplog):
    heard = []

    def on_alert(alert: gradcanary.Alert) -> None:
        heard.append((alert.id, alert.severity, threading.current_thread().name))
        sys.exit("stop the training")

    severity = {"now": "warning"}
    with collector_that(lambda _: Says(body=reply((brief(7, severity["now"]), brief(8))))) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, on_alert=on_alert)
        for _ in range(3):
            training.steps(5)
            time.sleep(0.1)
        until(lambda: len(heard) == 2)
        severity["now"] = "critical"
        training.steps(5)
        until(lambda: len(heard) == 3)
        assert [alert.id for alert in watch.incidents] == [7, 8]
        watch.close()
        thread = "gradcanary-sender"
        assert heard == [(7, "warning", thread), (8, "warning", thread), (7, "critical", thread)]
        assert collector.heard[-1].kind == "end"
    assert watch._session.guard.caught == 3
    assert caplog.text.count("on_alert failed") == 1


def test_incidents_are_told_on_stderr_once_as_they_open_grow_worse_and_are_over(capsys):
    quiet = (
        {**brief(5, "warning"), "muted": True},
        brief(6, "information"),
        {**brief(8, "critical"), "acknowledged": True},
    )
    told = {"now": (*quiet, brief(7, "warning"))}
    with collector_that(lambda _: Says(body=reply(told["now"]))) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url)
        for now in ((brief(7, "warning"),), (brief(7, "critical"), brief(9, "warning")), (brief(9, "warning"),)):
            training.steps(5)
            until(lambda: [each.id for each in watch.incidents] == [each["id"] for each in told["now"]])
            told["now"] = now
        training.steps(5)
        until(lambda: [each.id for each in watch.incidents] == [9])
        told["now"] = ()  # as in the reply to the end, which closes them
        watch.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "#" in line]
    assert [line.partition(":")[2].split(": ")[0] for line in lines] == [
        " collapse (warning, #7)",
        " collapse (critical, #7)",
        " collapse (warning, #9)",
        " collapse (#7) is over. " + brief(7)["url"],
    ]


def test_an_incident_sets_a_flag_to_poll(monkeypatch):
    """Not the one that was open before, and not once it is acknowledged; the reason stays when the watch ends."""
    monkeypatch.setenv("GRADCANARY_STOP_ON", "critical")
    incidents = [brief(7, "critical")]

    def script(told: Told) -> Says:
        return Says(body=reply(() if told.kind == "end" else tuple(incidents)))

    with collector_that(script) as collector:
        training = Training()
        with gradcanary.watch(training.model, training.optimizer, url=collector.url) as watch:
            assert watch.stop_on == "critical"
            training.steps(2)
            until(lambda: watch.incidents)
            assert (watch.should_stop, watch.stop_reason) == (False, None)
            for change, expected in (
                ({}, True),
                ({"acknowledged": True}, False),
                ({"silenced": True}, False),
                ({}, True),
            ):
                incidents[1:] = [{**brief(8, "critical"), "do_first": "Lower the rate.", **change}]
                training.steps(1)
                until(lambda wanted=expected: watch.should_stop is wanted)
    assert watch.should_stop
    assert watch.stop_reason == ("collapse (critical, #8): 2 of 4 parameters fell Do first: Lower the rate. http://x/1")


def test_nothing_should_stop_if_the_collector_was_never_reached():
    training = Training()
    with gradcanary.watch(training.model, training.optimizer, url="http://127.0.0.1:9", stop_on="warning") as watch:
        training.steps(5)
        until(lambda: watch._session.sender.is_reachable is False)
        assert (watch.should_stop, watch.stop_reason) == (False, None)


def test_a_stop_that_was_asked_for_remains_while_the_collector_is_down(monkeypatch):
    """A loop may look at the flag later than the collector goes away."""
    monkeypatch.setattr("gradcanary.export.sender.QUIET_S", 0.02)
    answers = [Says(body=reply())]
    with collector_that(lambda _: answers[-1]) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, stop_on="critical")
        training.steps(2)
        until(lambda: collector.of("batches"))
        answers.append(Says(body=reply((brief(7, "critical"),))))
        training.steps(2)
        until(lambda: watch.should_stop)
        answers.append(Says(503))
        training.steps(2)
        until(lambda: watch._session.sender.is_reachable is False)
        assert watch.should_stop
        assert watch.stop_reason.startswith("collapse (critical, #7)")
        watch.close(timeout_s=0.1)


def test_alert_callback_may_close_the_watch():
    def on_alert(_: gradcanary.Alert) -> None:
        watch.close()

    with collector_that(lambda _: Says(body=reply((brief(7),)))) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, on_alert=on_alert)
        training.steps(5)
        until(lambda: collector.of("end"))
        training.steps(1)  # its pass removes the hooks: the thread of the alert must not
        assert watch._session.guard.caught == 0


def train_until(error: BaseException, watch: gradcanary.Watch, training: Training) -> None:
    with watch:
        training.steps(3)
        raise error


def test_an_exception_in_the_block_is_a_crash():
    class UntellableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for error, state, text in (
        (ZeroDivisionError("one\ntwo"), "crashed", "ZeroDivisionError: one two"),
        (UntellableError(), "crashed", "UntellableError"),
        (SystemExit(0), "finished", None),
        (SystemExit(3), "crashed", "SystemExit: exit status 3"),
        (KeyboardInterrupt(), "finished", "KeyboardInterrupt"),
    ):
        with collector_that() as collector:
            training = Training()
            watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="crash")
            with pytest.raises(type(error)):
                train_until(error, watch, training)
            body = collector.heard[-1].body
            crash = body.pop("crash", None)
            assert body == {"state": state, "last_step": 2, "error": text}
            assert (crash is not None) == (state == "crashed")
            assert crash is None or crash["frames"][0].endswith("in train_until")


def test_an_older_collector_gets_the_end_without_the_crash():
    def script(told: Told) -> Says:
        is_unknown = told.kind == "end" and "crash" in told.body
        return Says(422, refusal("invalid", "Unexpected keyword argument")) if is_unknown else Says()

    with collector_that(script) as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="crash")
        with pytest.raises(ValueError, match="bad"):
            train_until(ValueError("bad"), watch, training)
        (end,) = collector.of("end", accepted=True)
        assert end.body == {"state": "crashed", "last_step": 2, "error": "ValueError: bad"}


def test_a_collector_that_is_upgraded_gets_the_settings_with_the_next_hello():
    old = [True]

    def script(told: Told) -> Says:
        is_unknown = told.kind == "hello" and {"settings", "collapse_below"} & {*told.body} and old[0]
        return Says(422, refusal("invalid", "Unexpected keyword argument")) if is_unknown else Says()

    with collector_that(script) as collector:
        training = Training()
        with gradcanary.watch(
            training.model, training.optimizer, url=collector.url, run="upgraded", collapse_below=1e-5
        ):
            training.steps(3)
            until(lambda: collector.of("batches", accepted=True))
            assert not any("settings" in hello.body for hello in collector.of("hello", accepted=True))
            old[0] = False
            training.optimizer.param_groups[0]["weight_decay"] = 0.5
            training.steps(3)
        hello = collector.of("hello", accepted=True)[-1].body
        assert hello["environment"] is not None
        assert 0.5 in [setting["value"] for setting in hello["settings"]]
        assert hello["collapse_below"] == 1e-5


def test_the_message_of_a_crash_is_not_sent_where_a_setting_says_so(monkeypatch):
    monkeypatch.setenv("GRADCANARY_CRASH_MESSAGE", "0")
    with collector_that() as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url, run="crash")
        with pytest.raises(ValueError, match="a name"):
            train_until(ValueError("a name"), watch, training)
        assert "a name" not in collector.heard[-1].raw.decode()
        assert collector.heard[-1].body["crash"]["type"] == "ValueError"


@pytest.mark.parametrize("state", ["finished", "crashed"])
def test_a_close_in_a_handler_says_what_it_is_told(state):
    with collector_that() as collector:
        training = Training()
        watch = gradcanary.watch(training.model, training.optimizer, url=collector.url)
        training.steps(3)
        try:
            int("bad batch")
        except ValueError:
            watch.close(state)
        body = collector.heard[-1].body
        assert (body["state"], "crash" in body) == (state, state == "crashed")
        assert "crash" not in body or body["crash"]["message"].endswith("'bad batch'")


SCRIPT = """
import sys
sys.path.append({tests!r})
from support.agent.scripted import Training
{first}
import gradcanary
training = Training()
gradcanary.watch(url={url!r})
training.steps(5)
{last}
"""


def run_script(folder: Path, url: str, last: str, first: str = "") -> "subprocess.CompletedProcess[str]":
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[3]), url=url, first=first, last=last))
    return warm.run(warm.TRAINING, [str(script)], os.environ)


@pytest.mark.parametrize(
    ("last", "state", "error"),
    [
        ("", "finished", None),
        ("raise ValueError('bad batch')", "crashed", "ValueError: bad batch"),
    ],
)
def test_a_script_that_ends_says_how(tmp_path, last, state, error):
    with collector_that() as collector:
        done = run_script(tmp_path, collector.url, last)
        body = collector.heard[-1].body
        assert (body["state"], body["last_step"], body["error"]) == (state, 4, error)
        assert ("crash" in body) == (state == "crashed")
        assert collector.steps() == list(range(5))
        assert ("Traceback" in done.stderr) == (error is not None)


READS_SLOWLY = """
import contextlib
import datetime
import time
import torch
from gradcanary.export import transport
from gradcanary.export.reader import Reader

transport.TIMEOUT_S = 3600.0  # a request that is waited for would take longer than a test may
read, store = Reader.read, torch.distributed.HashStore()

def slowly(reader, record):
    with contextlib.suppress(RuntimeError):  # in torch and without the GIL, as where a tensor is read
        store.wait(["what nobody sets"], datetime.timedelta(milliseconds=50))
    return read(reader, record)

Reader.read = slowly
"""


@pytest.mark.parametrize("round_", range(EFFORT))
def test_a_script_ends_well_though_the_collector_hangs_and_much_is_unread(tmp_path, spool_folder, round_):
    """A thread that is in torch when Python ends takes the process down: its exit status would be 134."""
    last = "time.sleep(1); training.steps(600)"
    with collector_that(lambda _: Says(hang=True)) as collector:
        done = run_script(tmp_path, collector.url, last, first=READS_SLOWLY)
    assert done.returncode == 0, done.stderr
    lost, kept = re.findall(
        r"gradcanary: .*?(\d+) (?:sampled )?steps (?:could not be read|and the end are kept)", done.stderr
    )
    assert int(lost) + int(kept) == 605
    assert int(kept) > 5
    (path,) = spool_folder.glob("*.spool")
    with contextlib.closing(Spool.open(path)) as left:
        assert left.steps == int(kept)
        assert left.made == 605, "so sync reports those that are lost"
