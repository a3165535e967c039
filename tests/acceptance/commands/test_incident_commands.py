"""What somebody types who was woken up: incidents, ack, silence, silences, unsilence, on a real collector."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

from support.streams import Session, Stream, collapsed

LAYERS, AT = 24, 130


@pytest.fixture(scope="module")
def troubled(module_collector):
    """Return a collector with a collapse in three layers, and a NaN that ended a run before."""
    absmax = collapsed(AT + 30, LAYERS, (0, 2, 4), AT)
    bad = collapsed(AT, LAYERS, (), AT)
    bad[100:, 3] = np.inf
    for run, rows in (("diverged", bad), ("sdxl", absmax)):
        session = Session(module_collector.url, run=run)
        session.send(Stream(rows))
        if run == "diverged":
            session.end("crashed", len(rows) - 1)
    return module_collector


@pytest.fixture
def typed(typed, troubled, monkeypatch):
    monkeypatch.setenv("GRADCANARY_URL", troubled.url)
    return typed


def test_incidents_are_a_table_the_worst_first(typed, troubled):
    status, said, _ = typed("incidents")
    assert status == 0
    head, opened, ended, *_, tail = said.splitlines()
    assert re.split(r"  +", head) == ["ID", "SEVERITY", "STATE", "RUN", "RULE", "PARAMETERS", "OPENED (UTC)", "WHAT"]
    assert re.split(r"  +", opened)[:6] == ["2", "critical", "open", "sdxl", "collapse", "3/24"]
    assert "fell from 0.00105 to" in opened
    assert re.split(r"  +", ended)[:6] == ["1", "critical", "ended", "diverged", "nonfinite", "1/24"]
    assert tail == "1 open, 0 resolved, 1 ended. One of them in full: gradcanary incidents ID"
    assert [len(line) for line in said.splitlines() if len(line) > 240] == []


def test_the_nearest_run_of_an_unknown_one_is_named(typed):
    status, _, error = typed("incidents", "--run", "sdlx")
    assert (status, error) == (
        2,
        "gradcanary: There is no run 'sdlx' here. The nearest: sdxl. 'gradcanary runs' lists all.\n",
    )


def test_incidents_are_chosen_by_run_state_and_time(typed):
    for words, ids in (
        (("--run", "sdxl"), [2]),
        (("--state", "ended"), [1]),
        (("--since", "1h"), [2, 1]),
        (("--since", "2100-01-01T00:00:00Z"), []),
    ):
        status, said, _ = typed("incidents", "--json", *words)
        assert (status, [each["id"] for each in json.loads(said)["incidents"]]) == (0, ids), words
    assert typed("incidents", "--since=2100-01-01T00:00:00Z")[1] == "No incidents.\n"


def test_incident_command_shows_one_in_full(typed, troubled):
    status, said, _ = typed("incidents", "2")
    assert status == 0
    assert said.startswith(
        "#2 collapse in sdxl: critical, open\n3 of 24 parameters (blocks.0-2.attn.lora_A.weight) fell"
    )
    assert f"at step {AT:,}." in said
    for words in (
        "\nSince step ",
        "\nDo first (peft): ",
        "\nWhy: ",
        "\nPARAMETER ",
        "  since 130\n",
        "Nothing was sent about it so far.",
    ):
        assert words in said
    assert said.endswith(f"{troubled.url}/runs/sdxl?incident=2\n")
    assert json.loads(typed("incidents", "2", "--json")[1]) == troubled.get("/api/v1/incidents/2").json()


def test_silence_and_unsilence(typed):
    assert typed("silences")[1] == "No silences: all notifications are sent.\n"
    status, said, _ = typed("silence", "2", "--for", "8h", "--match", r"blocks\.0\.", "--by", "ada", "--note", "known")
    assert status == 0
    number = re.match(r"Silence (\d+) until ....-..-.. ..:.. UTC hides #2\. End it: gradcanary unsilence \1$", said)[1]
    assert "  open, partly silenced  " in typed("incidents")[1]
    assert re.search(r"Silenced until .* UTC, 1 of 3 parameters\.", typed("incidents", "2")[1])
    [made] = json.loads(typed("silences", "--json")[1])["silences"]
    assert (made["run"], made["rule"], made["match"], made["by"]) == ("sdxl", "collapse", r"blocks\.0\.", "ada")
    row = typed("silences")[1].splitlines()[1]
    assert re.split(r"  +", row)[:4] == [number, "sdxl", "collapse", r"blocks\.0\."]
    assert row.endswith("  ada  #2     known")
    over = typed("silence", "1", "--for", "1h", "--by", "ada")[1]
    assert "hides no incident that is open now. #1 is ended: this holds for what its rule finds" in over
    assert typed("unsilence", re.search(r"Silence (\d+)", over)[1])[0] == 0
    other = typed("silence", "--run", "no*", "--for", "30m", "--by", "ada")[1]
    assert "hides no incident that is open now" in other
    assert typed("unsilence", re.search(r"Silence (\d+)", other)[1])[0] == 0
    assert typed("unsilence", number) == (0, f"Silence {number} is over.\n", "")
    assert "silenced" not in typed("incidents")[1]


def test_ack_and_a_new_baseline(typed):
    status, said, _ = typed("ack", "2", "--by", "ada", "--note", "restarting\ntonight")
    assert (status, said.startswith("#2 is acked by ada: collapse in sdxl, open. 3 of 24 parameters")) == (0, True)
    assert "\nAcked by ada, " in typed("incidents", "2")[1]
    assert " UTC: restarting tonight\n" in typed("incidents", "2")[1]
    said = typed("ack", "2", "--new-baseline")[1]
    assert re.match(r"#2 is acked by \S+: collapse in sdxl, resolved: new baseline\. ", said)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("incidents", "7"), "There is no incident 7 here"),
        (("incidents", "x"), "invalid int value"),
        (("incidents", "--run", "nobody"), "There is no run 'nobody' here"),
        (("incidents", "--since", "2w"), "'2w' is not a time span: 45s, 30m, 8h, 3d"),
        (("incidents", "--since", "tuesday"), "'tuesday' is not a time: 2h, 3d, or 2030-01-31T12:00:00Z"),
        (("ack", "7"), "There is no incident 7 here"),
        (("ack", "1", "--new-baseline"), "silence nonfinite instead"),
        (("silence", "--for", "8h"), "give the ID of an incident, or runs with --run"),
        (("silence", "1", "--run", "*", "--for", "8h"), "silence 1 --for 8h, or gradcanary silence --run '*' --for 8h"),
        (("silence", "1", "--rule", "collapse", "--for", "8h"), "an incident has one rule"),
        (("silence", "1"), "give its end with --for 8h or --until"),
        (("silence", "--run", "*"), "give its end with --for 8h or --until"),
        (
            ("silence", "--run", "*", "--rule", "x", "--for", "8h"),
            "there is no rule 'x': --rule takes one of",
        ),
        (("silence", "--run", "*", "--match", "(", "--for", "8h"), "--match '(': This expression does not work: "),
        (("silence", "--run", "*", "--for", "99999d"), "within 366 days"),
        (("silence", "--run", "*", "--for", "soon"), "'soon' is not a time span"),
        (("unsilence", "99"), "There is no silence 99 in force"),
        (("incidents", "--url", "ftp://x"), "--url is 'ftp://x'"),
    ],
)
def test_invalid_commands_are_refused_with_a_hint(typed, words, reason):
    status, said, error = typed(*words)
    assert (status, said) == (2, "")
    assert reason in error


def test_a_collector_that_is_away_or_none_is_said(typed, receiver_url):
    status, _, error = typed("incidents", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert "the collector at http://127.0.0.1:9 does not answer" in error
    assert "--url or GRADCANARY_URL" in error
    status, _, error = typed("incidents", "--url", receiver_url)
    assert (status, "no JSON of a collector" in error) == (1, True)


@pytest.fixture
def receiver_url(troubled):
    """Return an address at which pages are, and no API."""
    return f"{troubled.url}/runs"


def at_a_terminal(url, width, *words):
    """Return the lines that a command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "gradcanary.cli", *words]
    with subprocess.Popen(command, env={**env, "GRADCANARY_URL": url}, stdin=theirs, stdout=theirs) as process:
        os.close(theirs)
        written = b""
        while part := read_of(ours):
            written += part
        assert process.wait(60) == 0
    os.close(ours)
    return written.decode().splitlines()


def read_of(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # nothing has it open any more
        return b""


@pytest.mark.parametrize("width", [60, 200])
def test_lines_wrap_at_the_width_of_a_terminal_and_lose_nothing(typed, troubled, width):
    typed("silence", "--run", "sdxl", "--for", "8h", "--note", "a note of many words " * 10)
    typed("runs", "note", "sdxl", "a note of many words " * 10)
    for words in (("incidents",), ("incidents", "2"), ("silences",), ("endpoints",), ("runs",), ("ps",)):
        lines = at_a_terminal(troubled.url, width, *words)
        if words == ("ps",):  # other trainings come and go, some with an address or a path that is longer than a line
            assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
            continue
        assert max(map(len, lines)) <= width, words
        piped = typed(*words)[1]
        assert "".join("".join(lines).split()) == "".join(piped.split()), words
    typed("unsilence", json.loads(typed("silences", "--json")[1])["silences"][0]["id"])


def test_the_list_of_tokens_wraps_at_the_width_of_a_terminal(tmp_path):
    store = ("--data", str(tmp_path))
    name = "the wall of the room where trainings are looked after"
    at_a_terminal("", 200, "token", "create", "--scope", "read", "--name", name, *store)
    lines = at_a_terminal("", 60, "token", "list", *store)
    assert max(map(len, lines)) <= 60
    whole = at_a_terminal("", 200, "token", "list", *store)
    assert (len(whole), len(whole[1]) > 60) == (2, True)
    assert "".join("".join(lines).split()) == "".join("".join(whole).split())


def test_output_wraps_at_the_width_of_a_terminal(tmp_path):
    store, name = ("--data", str(tmp_path)), "the wall of the room where trainings are looked after"
    at_a_terminal("", 200, "token", "create", "--scope", "read", "--name", name, *store)
    rules, trace = tmp_path / "rules.yaml", tmp_path / "trace.csv"
    rules.write_text("version: 1\n")
    trace.write_text("step,time,layer\n0,2026-01-01T00:00:00Z,0.5\n1,2026-01-01T00:00:01Z,0.5\n")
    for words in (("test-rules", str(rules), str(trace)), ("sync", str(tmp_path)), ("token", "revoke", "1", *store)):
        lines = at_a_terminal("", 60, *words)
        assert max(map(len, lines)) <= 60, words
        assert len(lines) > 1, words


def test_json_and_what_goes_into_a_pipe_do_not_wrap(typed, troubled):
    assert json.loads("\n".join(at_a_terminal(troubled.url, 60, "incidents", "2", "--json")))["id"] == 2
    assert len(typed("incidents")[1].splitlines()[1]) > 100


@pytest.mark.parametrize("width", [60, 200])
def test_help_wraps_at_the_width_of_a_terminal(width):
    commands = re.findall(r"^    ([a-z-]+)", "\n".join(at_a_terminal("", width, "--help")), re.MULTILINE)
    assert {"up", "run", "attach", "incidents", "endpoints", "runs"} <= set(commands)
    for words in ((), *((each,) for each in commands)):
        assert max(map(len, at_a_terminal("", width, *words, "--help"))) <= width, words


def at_a_closed_pipe(url, *words, closed=("stdout",)):
    """Run a command that writes into a pipe without a reader; return its exit status, and what it says elsewhere."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {name: writer if name in closed else subprocess.PIPE for name in ("stdout", "stderr")}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # a flush may fail, too
    env["GRADCANARY_URL"] = url
    try:
        done = subprocess.run([sys.executable, "-m", "gradcanary.cli", *words], env=env, timeout=60, **streams)
    finally:
        os.close(writer)
    return done.returncode, (done.stdout or b"") + (done.stderr or b"")


@pytest.mark.parametrize(
    "words",
    [
        ("incidents",),
        ("incidents", "--json"),
        ("incidents", "2"),
        ("silences",),
        ("runs",),
        ("runs", "note", "sdxl", "known"),
        ("endpoints", "--json"),
        ("ps",),
        ("sync",),
        ("--help",),
        ("incidents", "--help"),
        ("--version",),
    ],
)
def test_a_pipe_that_was_closed_ends_the_command_without_a_word(troubled, words):
    assert at_a_closed_pipe(troubled.url, *words) == (141, b"")


@pytest.mark.parametrize(
    "words", [("incidents", "99"), ("incidents", "--url", "http://127.0.0.1:9"), ("detach", "1"), ("nothing",)]
)
def test_an_error_into_a_closed_pipe_ends_without_a_word(troubled, words):
    assert at_a_closed_pipe(troubled.url, *words, closed=("stdout", "stderr")) == (141, b"")
    assert at_a_closed_pipe(troubled.url, *words, closed=("stderr",)) == (141, b"")


def test_a_collector_whose_banner_has_no_reader_ends_without_a_word(troubled, tmp_path):
    assert at_a_closed_pipe(troubled.url, "up", "--port", "0", "--data", str(tmp_path))[0] == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize(
    ("words", "unbuffered"), [(("incidents", "--json"), ""), (("incidents", "--json"), "1"), (("--help",), "")]
)
def test_a_full_disk_ends_the_command_with_a_line(troubled, words, unbuffered):
    env = {**os.environ, "GRADCANARY_URL": troubled.url, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "gradcanary.cli", *words]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, timeout=60)
        unsaid = subprocess.run(command, env=env, stdout=full, stderr=full, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"gradcanary: [Errno 28] No space left on device\n")
    assert unsaid.returncode == 1


def test_without_a_stdout_it_works(troubled):
    command = f"exec {sys.executable} -m gradcanary.cli incidents --url {troubled.url} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
