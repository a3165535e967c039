"""``gradcanary sync`` delivers what trainings left: from a terminal, killed in its middle, into whatever answers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gradcanary.export import spool, sync
from gradcanary.export.spool import Progress, Spool
from support.agent.scripted import Says, Told, collector_that, once, refusal
from support.agent.spooled_trainings import WAIT_S, arrived, kept, next_seq, synced, training, until
from support.collectors import Collector

STEPS = 400
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """What the collector has of a training that nothing happened to, with its next_seq."""
    folder = tmp_path_factory.mktemp("undisturbed")
    collector = Collector(folder / "data").start()
    with training(collector.url, STEPS, folder / "spool", flush=60) as trained:
        trained.ended()
    found = kept(collector), next_seq(collector)
    collector.kill()
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a training that nobody listened to, and what it said; the tests work on copies."""
    folder = tmp_path_factory.mktemp("left") / "spool"
    with training(NOBODY, STEPS, folder, flush=60) as trained:
        trained.ended()
    return folder, trained.errors


@pytest.fixture
def left(ended: tuple[Path, str], spool_folder: Path) -> Path:
    shutil.copytree(ended[0], spool_folder)
    return spool_folder


def until_it_rests(folder: Path) -> None:
    """Wait until the only spool has not grown for a second: its training holds, and all it said is in it."""
    until(lambda: files(folder))
    size, since = 0, time.monotonic()
    while time.monotonic() < since + 1:
        now = sum(file.stat().st_size for file in folder.glob("*/*"))
        if size != now:
            size, since = now, time.monotonic()
        time.sleep(0.05)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_training_that_ended_alone_says_what_to_type(ended):
    folder, errors = ended
    last = errors.strip().splitlines()[-1]
    assert f"{STEPS} sampled steps and the end are kept: gradcanary sync {folder / files(folder)[0]}" in last
    assert len(files(folder)) == 1
    assert (folder / files(folder)[0]).stat().st_mode & 0o077 == 0


def test_sync_of_an_older_launch_does_not_disturb_the_live_one(left, collector, tmp_path):
    with training(collector.url, 600, tmp_path / "other", hold=300) as trained:
        trained.until_step(300)
        until(lambda: (collector.get("/api/v1/runs/spooled").json().get("step") or 0) >= 290)
        assert synced(left, "--url", collector.url).returncode == 0
        during = collector.get("/api/v1/runs/spooled").json()
        assert 290 <= during["step"] < 300
        assert [each["state"] for each in during["sessions"]] == ["finished", "live"]
        trained.go_on()
        trained.ended()
    after = kept(collector)
    assert (after["state"], after["step"]) == ("finished", 599)


def test_waiting_files_are_reported_but_not_those_of_live_processes(left, collector):
    shutil.copytree(left / files(left)[0], left / "another.spool")
    (left / "begun.spool").touch()
    with (
        closing(Spool.create(left, "lives", "s", NOBODY, b"{}", Progress())),
        training(collector.url, 20, hold=10) as trained,
    ):
        until(lambda: collector.get("/api/v1/runs/spooled").status_code == 200)
        trained.go_on()
        trained.ended()
    said = [line for line in trained.errors.splitlines() if "earlier" in line]
    assert said == [f"gradcanary: 2 earlier sessions wait here to be sent: gradcanary sync {left}"]


@pytest.mark.parametrize(
    ("environ", "is_told"),
    [
        ({"LOCAL_RANK": "0", "RANK": "8"}, True),
        ({"SLURM_LOCALID": "1"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
    ],
)
def test_waiting_files_are_reported_by_one_process_per_machine(left, environ, is_told):
    before, said = contents(left), []
    spool.report_unsent({"GRADCANARY_SPOOL": str(left), **environ}, said.append)
    assert said == [f"1 earlier session waits here to be sent: gradcanary sync {left}"] * is_told
    assert contents(left) == before


@pytest.mark.parametrize("clean", ["begin", "sync"])
def test_a_folder_whose_process_was_killed_as_it_made_or_deleted_it_is_removed(tmp_path, clean):
    for name in ("old.s.spool.new", "old.s.spool.gone", "just.s.spool.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "acked").write_bytes(bytes(40))
    for name in ("old.s.spool.new", "old.s.spool.gone"):
        os.utime(tmp_path / name, (0, 0))
    if clean == "begin":
        spool.report_unsent({"GRADCANARY_SPOOL": str(tmp_path)}, pytest.fail)
    else:
        assert sync.find_spools([tmp_path]) == []
    assert files(tmp_path) == ["just.s.spool.new"]


def test_a_user_without_a_home_has_nothing_that_waits(monkeypatch):
    def nobody(_uid: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    spool.report_unsent({}, pytest.fail)


def test_sync_delivers_as_if_nothing_had_happened(left, collector, undisturbed):
    done = synced(left, "--url", collector.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{STEPS} sampled steps sent to {collector.url}" in done.stdout
    assert (kept(collector), next_seq(collector)) == undisturbed
    assert files(left) == []
    again = synced("--url", collector.url)  # the folder is where trainings put it
    assert (again.returncode, again.stdout) == (0, f"nothing to send in {left}\n")


@pytest.mark.parametrize("at", range(1, 10))
def test_a_sync_may_die_at_any_answer(left, at):
    """Killed as the answer is on its way: the next one sends the same bytes, or what comes after them."""
    process: list[subprocess.Popen[bytes]] = []
    count = [0]

    def script(_: Told) -> Says:
        count[0] += 1
        if count[0] == at:
            process[0].send_signal(signal.SIGKILL)
            process[0].wait(WAIT_S)
        return Says()

    with collector_that(script) as collector:
        process.append(
            subprocess.Popen(
                [sys.executable, "-m", "gradcanary.cli", "sync", left, "--url", collector.url],
                stdout=subprocess.DEVNULL,
            )
        )
        until(lambda: process[0].poll() is not None)
        assert synced(left, "--url", collector.url).returncode == 0
        bodies = {}
        for told in collector.of("batches"):
            assert bodies.setdefault(told.seq, told.raw) == told.raw
        assert sorted(bodies) == list(range(len(bodies)))
        steps = [
            step
            for told in {told.seq: told for told in collector.of("batches")}.values()
            for step in told.body["steps"]
        ]
        assert steps == list(range(STEPS))
        assert len(collector.heard) >= 9, "hello, seven batches, the end"
        assert collector.of("end")[-1].body == {"state": "finished", "last_step": STEPS - 1, "error": None}


def test_a_sync_that_is_killed_before_its_end_was_taken_says_it_again(left):
    process: list[subprocess.Popen[bytes]] = []

    def script(told: Told) -> Says:
        if told.kind == "end" and process[0].poll() is None:
            process[0].send_signal(signal.SIGKILL)
            process[0].wait(WAIT_S)
            return Says(503)
        return Says()

    with collector_that(script) as collector:
        command = [sys.executable, "-m", "gradcanary.cli", "sync", left, "--url", collector.url]
        process.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        until(lambda: process[0].poll() is not None)
        assert collector.of("end", accepted=True) == []
        assert synced(left, "--url", collector.url).returncode == 0
        assert len(collector.of("end", accepted=True)) == 1


def test_a_training_that_was_killed_left_what_it_had(spool_folder, collector, undisturbed):
    with training(NOBODY, STEPS, hold=300) as trained:
        trained.until_step(300)
        until_it_rests(spool_folder)
        trained.kill()
    assert synced("--url", collector.url).returncode == 0
    detail = collector.get("/api/v1/runs/spooled").json()
    assert detail["step"] == 298, "a step is told when the next one begins"
    session = detail["sessions"][0]
    assert (detail["state"], session["state"], session["last_step"]) == ("crashed", "crashed", 298)
    assert (detail["gaps"], detail["sessions"][0]["dropped_steps"]) == ([], 0)
    assert arrived(collector) == list(range(detail["step"] + 1))
    found, complete = kept(collector), undisturbed[0]
    assert [each[0] for each in found["incidents"]] == [each[0] for each in complete["incidents"]]
    assert found["loss"][1][0]["mean"]["shape"] == [detail["step"] + 1]
    assert files(spool_folder) == []


def test_a_file_of_a_training_that_lives_is_skipped(spool_folder):
    with training(NOBODY, STEPS, pause=0.1, hold=200) as trained, collector_that() as collector:
        trained.until_step(200)
        until(lambda: spool_folder.exists() and list(spool_folder.glob("*.spool")))
        done = synced("--url", collector.url)
        assert done.returncode == 0
        assert "skipped, a process that is running has it" in done.stdout
        assert collector.heard == []


def test_sync_without_a_collector(left):
    before = contents(left)
    done = synced(left)  # the address is the training's
    assert done.returncode == 1
    assert f"no collector at {NOBODY}" in done.stderr
    assert f"{STEPS} sampled steps left in" in done.stdout
    assert before == contents(left)


def wait_for(left: Path, url: str, *names: str) -> None:
    """Leave more of what the training left, the newest, for other collectors."""
    for name in names:
        shutil.copytree(left / files(left)[0], left / name)
        about = json.loads((left / name / "hello.json").read_bytes())
        (left / name / "hello.json").write_text(json.dumps({**about, "url": url}))


def test_a_collector_that_does_not_answer_is_tried_with_one_session_and_the_others_go(left):
    with collector_that(lambda _: Says(404)) as nobody, collector_that() as collector:
        wait_for(left, nobody.url, "x.spool", "y.spool", "z.spool")
        wait_for(left, collector.url, "zz.spool")
        done = synced(left)
        assert len(nobody.heard) == sync.TRIES
        assert collector.steps() == list(range(STEPS))
    why = "does not take them; --url URL sends them elsewhere"
    names = [files(left)[0], "x.spool", "y.spool", "z.spool"]
    assert (done.returncode, files(left)) == (1, names)
    total, *said, last = done.stdout.splitlines()
    assert total == "5 sessions to send"
    assert said == [
        f"{number} of 5: {STEPS} sampled steps left in {left / name}: {url} {why}"
        for number, (name, url) in enumerate(zip(names, [NOBODY, *[nobody.url] * 3], strict=True), 1)
    ]
    assert last.startswith("5 of 5: ")
    assert last.endswith(f"{STEPS} sampled steps sent to {collector.url}")
    assert (done.stderr.count(NOBODY), done.stderr.count(nobody.url)) == (1, 1)


def test_a_token_that_is_refused_is_tried_once(left):
    with collector_that(lambda _: Says(401, refusal("x"))) as collector:
        wait_for(left, collector.url, "x.spool", "y.spool")
        done = synced(left / "x.spool", left / "y.spool", left / "x.spool")
        assert len(collector.heard) == 1
    lines = done.stdout.splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == ["1 of 2", "2 of 2"]
    assert all(f"{collector.url} refuses the token: give a valid one with --token" in line for line in lines)
    assert "--url" not in done.stdout


def test_a_collector_that_is_busy_is_not_waited_for_by_each_session(left):
    with collector_that(lambda _: Says(503, refusal("busy"))) as collector:
        wait_for(left, collector.url, "x.spool", "y.spool")
        done = synced(left / "x.spool", left / "y.spool")
        assert len(collector.heard) == sync.TRIES
    assert [line.split(":")[0] for line in done.stdout.splitlines()[1:]] == ["1 of 2", "2 of 2"]


@pytest.mark.parametrize(
    "damage",
    [
        {"acked": b"", "hello.json": b""},
        {"acked": bytes(40), "hello.json": b"not JSON"},
        {"acked": bytes(40), "hello.json": b'{"format": 0}'},
        {"hello.json": b"{}"},
    ],
    ids=["empty", "garbage", "another version", "no lock"],
)
def test_a_damaged_folder_is_said_and_left_and_the_others_go(left, damage):
    (left / "a.damaged.spool").mkdir()
    for name, content in damage.items():
        (left / "a.damaged.spool" / name).write_bytes(content)
    with collector_that() as collector:
        done = synced(left, "--url", collector.url)
        assert collector.steps() == list(range(STEPS))
    assert done.returncode == 1
    assert "a.damaged.spool: not sent, " in done.stdout
    assert files(left) == ["a.damaged.spool"]
    assert done.stderr == ""


def test_a_token_goes_along(left, monkeypatch):
    monkeypatch.setenv("GRADCANARY_TOKEN", "gc_ingest_1")
    with collector_that() as collector:
        assert synced(left, "--url", collector.url).returncode == 0
        assert collector.tokens == {"Bearer gc_ingest_1"}


@pytest.mark.parametrize(
    ("kind", "says", "status", "remains"),
    [
        ("hello", Says(409, refusal("conflict")), 1, True),
        ("hello", Says(401, refusal("x")), 1, True),
        ("batches", Says(410, refusal("run_deleted")), 1, False),
        ("batches", Says(404, refusal("unknown_session")), 0, False),
        ("batches", Says(409, refusal("unknown_layer_set")), 0, False),
        ("batches", Says(409, refusal("superseded")), 1, False),
        ("batches", Says(413, refusal("too_large")), 0, False),
        ("batches", Says(503, refusal("busy"), {"retry-after": "1"}), 0, False),
        ("end", Says(404, refusal("unknown_session")), 0, False),
    ],
)
def test_sync_with_any_answer(left, kind, says, status, remains):
    with collector_that(once(kind, says)) as collector:
        done = synced(left, "--url", collector.url)
        assert done.returncode == status
        assert bool(files(left)) == remains
        refused = says.status == 409 and b"superseded" in says.body
        if status == 0:
            assert collector.steps() == list(range(STEPS))
            assert collector.heard[-1].kind == "end"
        elif refused:
            assert "64 lost" in done.stdout
            assert collector.steps() == list(range(64, STEPS))
            assert collector.of("batches")[-1].body["dropped_steps"] == 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere"], "/nowhere is not there, or was sent already"),
        ([__file__], "test_sync.py is not a folder"),
        (["--url", "nowhere"], "--url is 'nowhere'"),
    ],
)
def test_wrong_arguments(arguments, said):
    done = synced(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_no_torch_is_needed(left):
    code = "import sys; sys.modules['torch'] = None; from gradcanary import cli; sys.exit(cli.main(sys.argv[1:]))"
    with collector_that() as collector:
        command = [sys.executable, "-c", code, "sync", left, "--url", collector.url]
        assert subprocess.run(command, timeout=WAIT_S, check=False, stdout=subprocess.DEVNULL).returncode == 0
        assert collector.steps() == list(range(STEPS))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GRADCANARY_SPOOL": "/a", "XDG_STATE_HOME": "/b"}, "/a"),
        ({"GRADCANARY_SPOOL": "", "XDG_STATE_HOME": "/b"}, "/b/gradcanary/spool"),
        ({}, f"{Path.home()}/.local/state/gradcanary/spool"),
    ],
)
def test_sync_finds_the_files(environ, expected):
    assert spool.default_folder(environ) == Path(expected)
