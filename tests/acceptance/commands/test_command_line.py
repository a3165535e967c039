"""``gradcanary up`` says in a sentence why it does not start, and never with a traceback."""

import contextlib
import json
import logging
import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gradcanary import cli
from gradcanary_server.ops import process
from gradcanary_server.ops.process import Listener, encryption_warnings, sign_in_hint, startup_banner
from gradcanary_server.settings import Certificate, Settings
from support import warm


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command says on stderr as it ends with status 2."""
    try:
        status = cli.main(arguments)
    except SystemExit as end:  # argparse's own way
        status = end.code
    said = capsys.readouterr()
    assert status == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize(
    "words",
    [
        ("up",), ("demo",), ("token", "list"), ("token", "create", "--scope", "read", "--name", "ada"),
        ("backup", "copy.db"), ("migrate",), ("test-rules", "rules.yaml", "--run", "r"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_python_that_is_too_old_for_the_collector_is_told_what_to_do(capsys, monkeypatch, tmp_path, words):
    """The agent runs on it; the collector does not, and would end with a traceback in the middle of its imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_data_path", lambda _name: tmp_path)
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    said = refused(capsys, *words)
    assert said.startswith(f"gradcanary: {words[0]} needs Python 3.11 or newer, and this is 3.10.13: install ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "usage", "error"),
    [
        ((), "gradcanary [-h]", "a command is missing. 'gradcanary --help' lists all"),
        (
            ("runn", "x.py"),
            "gradcanary [-h]",
            "there is no command 'runn'. The nearest: run. 'gradcanary --help' lists",
        ),
        (("zzz",), "gradcanary [-h]", "there is no command 'zzz'. 'gradcanary --help' lists all"),
        (("up", "--prot", "8899"), "gradcanary up", "unrecognized arguments: --prot 8899. The nearest: --port"),
        (("up", "--prot=8899"), "gradcanary up", "unrecognized arguments: --prot=8899. The nearest: --port"),
        (("--versoin", "up"), "gradcanary [-h]", "unrecognized arguments: --versoin. The nearest: --version"),
        (("runs", "zzz"), "gradcanary runs", "invalid choice: 'zzz'"),
    ],
)
def test_a_mistyped_command_or_option_is_named_with_the_nearest(capsys, words, usage, error):
    said = refused(capsys, *words)
    assert said.startswith(f"usage: {usage}")
    assert error in said


@pytest.mark.parametrize("host", ["203.0.113.5", "no-such-host.invalid", "", "127.0.0.1.9"])
def test_a_host_that_is_not_ours_is_refused(capsys, tmp_path, host):
    said = refused(capsys, "up", "--host", host, "--port", "0", "--data", str(tmp_path))
    assert "is no address of this machine" in said or f"cannot listen on {host}:0" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--auth",)])
def test_up_refuses_other_machines_without_tokens(capsys, tmp_path, monkeypatch, words):
    monkeypatch.setenv("GRADCANARY_AUTH", "off")
    said = refused(capsys, "up", *words, "--port", "0", "--data", str(tmp_path))
    assert "GRADCANARY_AUTH=off cannot be" in said
    assert "listen on 127.0.0.1" in said


def test_up_for_other_machines_shows_how_to_make_tokens(tmp_path):
    def said(db, url):
        lines = "\n".join(sign_in_hint(Settings(data=tmp_path, db=db, public_url=url, auth=True), {}))
        return lines, "GRADCANARY_PUBLIC_URL=https://NAME:8803" in lines

    own = f"https://{socket.gethostname()}:8803"
    lines, is_hinted = said(f"sqlite:///{tmp_path / 'gradcanary.db'}", own)
    assert f"gradcanary token create --scope read --name YOU --data {tmp_path}\n" in lines
    assert is_hinted
    lines, is_hinted = said("postgresql://ada:secret@db.example/gc?sslmode=require", "https://gradients.example")
    assert lines.count("--db 'postgresql://ada@db.example/gc?sslmode=require'") == 2
    assert not is_hinted


@pytest.mark.parametrize(
    ("db", "environ", "is_warned"),
    [
        ("postgresql://u@db.example/x", {}, True),
        ("postgresql://u@db.example/x?sslmode=require", {}, True),
        ("postgresql://u@/x?host=db.example", {}, True),
        ("postgresql://u@/x?host=localhost,db.example", {}, True),
        ("postgresql://u@db.example/x?sslmode=verify-full", {}, False),
        ("postgresql://u@db.example/x", {"PGSSLMODE": "verify-full"}, False),
        ("postgresql://u@db/x?sslmode=disable", {}, False),
        ("postgresql://u@127.0.0.1/x", {}, False),
        ("postgresql://u@/x?host=/run/postgresql", {}, False),
        ("sqlite:///a.db", {}, False),
    ],
)
def test_up_warns_of_a_database_that_could_be_another_one(tmp_path, db, environ, is_warned):
    said = "".join(encryption_warnings(Settings(tmp_path, db), environ))
    assert ("the certificate of the database's server is not checked" in said) == is_warned


def test_up_warns_of_tokens_in_clear(tmp_path):
    def warned(**settings):
        return list(encryption_warnings(Settings(tmp_path, "sqlite:///a.db", **settings), {}))

    tls = Certificate(tmp_path / "chain.pem", tmp_path / "key.pem")
    [line] = warned(reached_by_others=True, auth=True)
    assert "without TLS, others on the network can read tokens" in line
    for is_fine in (
        {"auth": True},
        {"reached_by_others": True, "tls": tls},
        {"reached_by_others": True, "public_url": "https://gradients.example"},
    ):
        assert warned(**is_fine) == []


def test_up_says_which_rules_it_uses(tmp_path):
    rules = tmp_path / "rules.yaml"
    said = [list(startup_banner(Settings(tmp_path, "sqlite:///a.db", rules=each), ())) for each in (None, rules)]
    assert "rules are the defaults (--rules FILE changes them)" in said[0]
    assert f"rules are those of {rules}" in said[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost"])
def test_loopback_is_this_machine(host):
    with contextlib.closing(Listener(host, 0, is_tls=False)) as listener:
        assert listener.is_loopback
        assert listener.url == listener.public_url
        assert listener.own_url.startswith("http://127.")


def test_everywhere_is_not():
    with contextlib.closing(Listener("0.0.0.0", 0, is_tls=True)) as listener:
        assert not listener.is_loopback
        assert listener.own_url.startswith("https://127.0.0.1:")
        assert listener.public_url == f"https://{socket.gethostname()}:{listener.own_url.rsplit(':', 1)[1]}"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("GRADCANARY_AUTH", "yes", "must be on or off"),
        ("GRADCANARY_CACHE_MB", "0", "must be a whole number of MiB, 1 to 1048576"),
        ("GRADCANARY_CACHE_MB", "1e3", "must be a whole number of MiB, 1 to 1048576"),
        ("GRADCANARY_CACHE_MB", "2000000", "must be a whole number of MiB, 1 to 1048576"),
        ("GRADCANARY_PROXIES", "10.0.0.1,*", "must be addresses and networks"),
        ("GRADCANARY_PROXIES", "10.0.0.1/8", "has host bits set"),
        ("GRADCANARY_EMBED_IN", "jupyter.example", "must be origins with commas"),
        (
            "GRADCANARY_EMBED_IN",
            "https://a.example,https://b.example; script-src *",
            "'https://b.example; script-src *'",
        ),
        ("GRADCANARY_EMBED_IN", "https://a.example/lab", "must be origins with commas"),
        ("GRADCANARY_PUBLIC_URL", "gradcanary.example", "must be scheme, host and port"),
        ("GRADCANARY_PUBLIC_URL", "https://x.example/path", "must be scheme, host and port"),
        ("GRADCANARY_PUBLIC_URL", "https://x.example:x", "must be scheme, host and port"),
    ],
)
def test_a_variable_that_cannot_work_is_named(capsys, tmp_path, monkeypatch, variable, value, says):
    monkeypatch.setenv(variable, value)
    said = refused(capsys, "up", "--port", "0", "--data", str(tmp_path))
    assert f"{variable}={value!r}" in said
    assert says in said


@pytest.mark.parametrize(("auth", "others"), [("off", ("http://localhost:*", "http://127.0.0.1:*")), ("on", ())])
def test_pages_of_this_machine_frame_ours_unless_tokens_are_needed(tmp_path, auth, others):
    environ = {"GRADCANARY_AUTH": auth, "GRADCANARY_EMBED_IN": "https://jupyter.example:8888/, http://wiki"}
    settings = Settings.from_env(environ, data=tmp_path)
    assert settings.framed_by == (*others, "https://jupyter.example:8888", "http://wiki")


@pytest.mark.parametrize(
    "words", [("--tls-cert", "x.pem"), ("--tls-key", "x.pem"), ("--tls-cert", "a", "--tls-key", "b")]
)
def test_tls_takes_a_certificate_and_its_key(capsys, tmp_path, words):
    said = refused(capsys, "up", "--port", "0", "--data", str(tmp_path), *words)
    assert "--tls-cert" in said
    assert "--tls-key" in said


def test_a_port_in_use_is_named_with_what_to_do(capsys, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        said = refused(capsys, "up", "--port", port, "--data", str(tmp_path))
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "--port" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("port", ["x", "-1", "65536", "²"])
def test_a_port_that_is_none(capsys, port):
    assert "is not a port: 0 to 65535" in refused(capsys, "up", f"--port={port}")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("version: 1\nrules:\n  collapse: {entr: 1.0e-4}\n", "line 3"),
        ("version: 1\nrules: [\n", "line"),
        ("version: 9\n", "version"),
    ],
)
def test_a_bad_rules_file_is_named_with_the_line(capsys, tmp_path, rules, said):
    file = tmp_path / "rules.yaml"
    file.write_text(rules)
    error = refused(capsys, "up", "--port", "0", "--data", str(tmp_path / "data"), "--rules", str(file))
    assert str(file) in error
    assert said in error


def test_a_rules_file_that_is_not_there(capsys, tmp_path):
    file = tmp_path / "none.yaml"
    error = refused(capsys, "up", "--port", "0", "--data", str(tmp_path / "data"), "--rules", str(file))
    assert str(file) in error


@pytest.mark.parametrize("webhook", ["mail@example.org", "ftp://example.org/", "http://"])
def test_a_webhook_that_is_no_address(tmp_path, webhook):
    """In a process of its own: the collector refuses it as it starts."""
    words = ["-m", "gradcanary.cli", "up", "--port=0", f"--data={tmp_path}", f"--webhook={webhook}"]
    done = warm.run(warm.COLLECTOR, words, os.environ)
    assert done.returncode == 2
    assert "webhook" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout


def test_a_kind_of_log_that_is_none(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADCANARY_LOG", "xml")
    assert "GRADCANARY_LOG='xml' must be text or json." in refused(capsys, "up", "--port", "0", "--data", str(tmp_path))


def test_an_error_with_its_trace_is_one_line_of_json():
    error = (ValueError, ValueError("two\nlines"), None)
    record = logging.LogRecord("gradcanary_server.x", logging.ERROR, "", 0, "%s\nfailed", ("it",), error)
    line = process.JsonLines().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert (said["level"], said["logger"], said["message"]) == ("error", "gradcanary_server.x", "it\nfailed")
    assert said["error"].endswith("ValueError: two\nlines")


def test_a_database_address_that_is_none(capsys):
    assert "nonsense" in refused(capsys, "up", "--port", "0", "--db", "nonsense")


def test_data_and_db_exclude_each_other(capsys, tmp_path):
    assert "not allowed with" in refused(capsys, "up", "--data", str(tmp_path), "--db", "sqlite://")


def test_a_second_collector_on_one_file_is_refused_until_the_first_is_dead(capsys, collector):
    with ThreadPoolExecutor(1) as thread:  # Playwright, once used, keeps an event loop in the main one
        said = thread.submit(refused, capsys, "up", "--port", "0", "--data", str(collector.data)).result()
    assert f"{collector.data / 'gradcanary.db'} belongs to another collector" in said
    assert "--data DIR" in said
    collector.kill()
    assert collector.start().get("/healthz").status_code == 200


def test_without_the_extras_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "gradcanary_server.ops.process", raising=False)
    said = refused(capsys, "up", "--port", "0")
    assert "uvicorn is not installed" in said
    assert "pip install '.[all]'" in said


def test_without_a_command_it_names_them(capsys):
    said = refused(capsys)
    assert re.search(r"usage: gradcanary .*COMMAND", said)


def test_a_browser_that_was_sent_here_by_a_strangers_dns_is_refused(collector_factory):
    collector = collector_factory(env={"GRADCANARY_HOSTS": "proxy.example"})
    for host in ("localhost:1", "127.0.0.1", "[::1]:8787", "proxy.example"):
        assert httpx.get(f"{collector.url}/api/v1/runs", headers={"Host": host}).status_code == 200, host
    for path in ("/api/v1/runs", "/"):
        assert httpx.get(collector.url + path, headers={"Host": "evil.example"}).status_code == 400


def test_workers_have_no_process_of_the_pages_beside_them(capsys):
    words = ("--db", "postgresql://nobody@127.0.0.1:9/none", "--workers", "2", "--pages-apart")
    assert "leave out --pages-apart, or --workers" in refused(capsys, "up", "--port", "0", *words)
