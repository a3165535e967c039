"""``gradcanary export`` at a real collector: DuckDB, Polars and pandas read what was ingested, bit for bit."""

import json
import math
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import duckdb
import httpx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from pyarrow import parquet

from gradcanary import wire
from support.streams import Session, Stream, healthy

NAMES = ("=1+1", 'a,b "c"', "step", "step (2)", "Größe 100 %s {x}", "blocks.0.weight", "BLOCKS.0.weight", "'")
TITLES = ("=1+1", 'a,b "c"', "step (2)", "step (2) (2)", *NAMES[4:])
GAP = range(100, 120)


def absmax(steps: int, seed: int) -> np.ndarray:
    """Numbers of every size, of layers without a gradient (NaN), and of gradients without a finite element (inf)."""
    random = np.random.default_rng(seed)
    values = healthy(steps, len(NAMES), seed=seed) * 10.0 ** random.integers(-30, 30, (steps, len(NAMES)))
    values = values.astype(np.float32)
    values[::7, 0], values[1::7, 1], values[::11, 2], values[5:, 3] = np.nan, np.inf, 0, np.nan
    values[3, 4], values[4, 4] = np.float32(1e-45), np.finfo(np.float32).max / 4  # the norm is three times as large
    return values


FINE, COARSE, RESUMED = (
    Stream(absmax(300, 1), names=NAMES),
    Stream(absmax(10, 2), first_step=300, every=10, names=NAMES),
    Stream(absmax(100, 3), first_step=250, names=NAMES),
)
POINTS = {
    ("loss", ()): {0: 0.1, 1: math.nan, 2: math.inf, 3: -math.inf, 4: -0.0, 5: 5e-324, 6: 1.7976931348623157e308},
    ("time", (("by", "b,c"), ("at", "1"))): {3: 1 / 3},
    ("step", ()): {3: 7.0, 360: 2.0},
}


@pytest.fixture(scope="module")
def url(module_collector):
    """A run with a gap, that samples more rarely in the end, and that another launch resumed before that."""
    first, second = (Session(module_collector.url, "hostile", name) for name in ("first", "second"))
    first.put_hello(FINE.hello()).raise_for_status()
    logged = tuple(
        wire.Metric(name, tags, tuple(points), wire.column("d", list(points.values())))
        for (name, tags), points in POINTS.items()
    )
    batches = [FINE.batch(0, GAP.start), FINE.batch(GAP.stop, 300), COARSE.batch(0, 10)]
    for seq, batch in enumerate(batches):
        first.post_batch(seq, replace(batch, metrics=logged if seq == 1 else ())).raise_for_status()
    first.end(last_step=390).raise_for_status()
    second.put_hello(RESUMED.hello(launch="launch-2", started=2e9)).raise_for_status()
    for seq in range(20):
        batch = RESUMED.batch(seq * 5, seq * 5 + 5)
        second.post_batch(seq, replace(batch, metrics=())).raise_for_status()
    return module_collector.url


def visible():
    """Return step, launch and absmax of each sample that counts: those of the later launch where both have some."""
    rows = [(step, 1, FINE.absmax[step]) for step in range(250) if step not in GAP]
    rows += [(step, 2, RESUMED.absmax[step - 250]) for step in range(250, 350)]
    return rows + [(step, 1, COARSE.absmax[(step - 300) // 10]) for step in range(350, 400, 10)]


def bits(value):
    """Return a number of float32 as its bits; None is another thing than NaN."""
    if value is None or value is pd.NA:
        return None
    return "NaN" if math.isnan(float(value)) else struct.pack("<f", float(value))


def expected(stats=("absmax",), rows=None):
    def value(stat, number):
        if stat == "nonfinite":
            return float(np.isinf(number))
        if np.isnan(number):
            return None
        return math.nan if np.isinf(number) else np.float32(number * np.float32(3 if stat == "norm" else 1))

    return [
        (step, launch, *(bits(value(stat, number)) for number in numbers for stat in stats))
        for step, launch, numbers in (visible() if rows is None else rows)
    ]


def export(*words, url):
    """Run the command as a process of its own."""
    command = [sys.executable, "-m", "gradcanary.cli", "export", *words, "--url", url]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def parquet_of_duckdb(path):
    return duckdb.sql(f"select * exclude (time) from '{path}'").fetchall()


def parquet_of_polars(path):
    return pl.read_parquet(path).drop("time").rows()


def parquet_of_pandas(path):
    found = pd.read_parquet(path, dtype_backend="pyarrow").drop(columns="time")
    return found.itertuples(index=False, name=None)


def ndjson_of_duckdb(path):
    found = "select step, launch, columns(* exclude (step, time, launch))::FLOAT"
    return duckdb.sql(f"{found} from read_json('{path}', sample_size = -1)").fetchall()


def ndjson_of_polars(path):
    found = pl.read_ndjson(path, infer_schema_length=None).drop("time")
    return found.with_columns(pl.exclude("step", "launch").cast(pl.Float64)).rows()


def ndjson_of_pandas(path):
    """Numbers, and NaN apart from null: as objects, which pandas would make one of."""
    found = pd.read_json(path, lines=True, dtype=False, precise_float=True).drop(columns="time")
    return [
        (
            row[0],
            row[1],
            *(float(value) if isinstance(value, str) else None if value != value else value for value in row[2:]),
        )
        for row in found.itertuples(index=False, name=None)
    ]


def csv_of_duckdb(path):
    return duckdb.sql(f"select * exclude (time) from read_csv('{path}', header = true, sample_size = -1)").fetchall()


def csv_of_polars(path):
    return pl.read_csv(path, infer_schema_length=None).drop("time").rows()


def csv_of_pandas(path):
    found = pd.read_csv(path).drop(columns="time")
    return [
        [None if value != value else value for value in row]
        for row in found.astype(object).itertuples(index=False, name=None)
    ]


READERS = {
    f"{form}-{reader}": globals()[f"{form}_of_{reader}"]
    for form in ("parquet", "csv", "ndjson")
    for reader in ("duckdb", "polars", "pandas")
}


@pytest.fixture(scope="module")
def files(url, tmp_path_factory):
    """The run in each format, from standard output."""
    found = {}
    for form in ("parquet", "csv", "ndjson"):
        ran = export("hostile", "--format", form, url=url)
        assert (ran.returncode, ran.stderr) == (0, b"")
        found[form] = tmp_path_factory.mktemp("files") / f"f.{form}"
        found[form].write_bytes(ran.stdout)
    return found


def told(rows):
    return [(int(step), int(launch), *map(bits, values)) for step, launch, *values in rows]


@pytest.mark.parametrize("reader", READERS)
def test_what_was_ingested_is_read_back(files, reader):
    form = reader.partition("-")[0]
    found = READERS[reader](files[form])
    if form != "csv":
        assert told(found) == expected()
        return
    # It has no launches, and a gradient without a finite element is as empty as one that is not there.
    missing = {"NaN": None}
    rows = [(step, *(missing.get(value, value) for value in values)) for step, _, *values in expected()]
    assert [(int(step), *map(bits, values)) for step, *values in found] == rows


def test_columns_and_times_are_the_same_in_all_formats(files, url):
    columns = ["step", "time", "launch", *TITLES]
    assert parquet.read_schema(files["parquet"]).names == columns
    first = json.loads(files["ndjson"].read_text("utf-8").splitlines()[0])
    assert list(first) == columns
    assert first["time"] == "2023-11-14T22:13:20.000000Z"
    assert pl.read_parquet(files["parquet"])["time"][0].isoformat() == "2023-11-14T22:13:20+00:00"
    assert files["csv"].read_bytes() == httpx.get(f"{url}/api/v1/runs/hostile/export.csv").content
    assert len(files["csv"].read_text("utf-8").splitlines()) == 1 + len(visible())


def test_options_are_those_of_the_api(url, tmp_path):
    path = tmp_path / "some.parquet"
    chosen = ("--stat", "absmax", "--stat", "norm", "--stat", "nonfinite", "--layer", "0", "--layer", 'a,b "c"')
    ran = export("hostile", "--format", "parquet", *chosen, "--from", "240", "--to", "255", "--out", path, url=url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    rows = [(step, launch, numbers[:2]) for step, launch, numbers in visible() if 240 <= step <= 255]
    assert told(parquet_of_polars(path)) == expected(("absmax", "norm", "nonfinite"), rows)
    assert parquet.read_schema(path).names[3:] == [
        f"{stat} {name}" for name in NAMES[:2] for stat in ("absmax", "norm", "nonfinite")
    ]
    matching = json.loads(export("hostile", "--format", "ndjson", "--match", "^blocks", "--to", "0", url=url).stdout)
    assert list(matching) == ["step", "time", "launch", "blocks.0.weight"]


def test_metrics_are_what_was_logged(url, tmp_path):
    path = tmp_path / "metrics.parquet"
    path.write_bytes(export("hostile", "--metrics", "--format", "parquet", url=url).stdout)
    found = pl.read_parquet(path)
    assert found.columns == ["step", "time", "loss", "step (2)", "time{at=1, by=b,c}"]
    titles = ("loss", "time{at=1, by=b,c}", "step (2)")
    for title, points in zip(titles, POINTS.values(), strict=True):
        read = {step: repr(value) for step, value in found.select("step", title).iter_rows() if value is not None}
        assert read == {step: repr(value) for step, value in points.items()}
    lines = export("hostile", "--metric", "loss", "--format", "ndjson", "--to", "3", url=url).stdout.splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [0.1, "NaN", "Infinity", "-Infinity"]
    text = export("hostile", "--metric", "loss", "--to", "3", url=url).stdout.decode()
    assert [line.split(",")[2] for line in text.splitlines()[1:]] == ["0.1", "nan", "inf", "-inf"]


def test_what_cannot_work_is_said_before_anything_is_written(url, tmp_path):
    path = tmp_path / "f.parquet"
    for words, status, reason in (
        (("nobody",), 2, "There is no run 'nobody' here. 'gradcanary runs' lists all."),
        (("hostle",), 2, "There is no run 'hostle' here. The nearest: hostile. 'gradcanary runs' lists all."),
        (("hostile", "--layer", "gone"), 2, "This run has no layer 'gone'."),
        (("hostile", "--match", "nothing"), 2, "no parameter of hostile is one of --match 'nothing'"),
        (
            ("hostile", "--match", "nothing", "--format", "csv"),
            2,
            "no parameter of hostile is one of --match 'nothing'",
        ),
        (("hostile", "--layer", "4", "--match", "blocks"), 2, "is one of --match 'blocks' and --layer 4"),
        (("hostile", "--metric", "loss", "--metric", "gone"), 2, "hostile has no metric 'gone'; it has: loss, "),
        (("hostile", "--from", "100", "--to", "50"), 2, "--from 100 is after --to 50"),
        (("hostile", "--match", "("), 2, "This expression does not work"),
        (("hostile", "--from", "-1"), 2, "gradcanary: --from should be greater than or equal to 0, not '-1'"),
        (("hostile", "--metrics", "--stat", "norm"), 2, "--stat, --layer and --match choose parameters"),
        (("hostile", "--format", "xml"), 2, "invalid choice: 'xml'"),
    ):
        ran = export("--format", "parquet", *words, "--out", path, url=url)
        assert (ran.returncode, ran.stdout) == (status, b""), words
        assert reason in ran.stderr.decode()
        assert list(tmp_path.iterdir()) == []
    folder = export("hostile", "--out", tmp_path, url=url)
    assert (folder.returncode, folder.stdout) == (2, b"")
    assert f"{tmp_path} is a folder: name a file in it, such as --out {tmp_path}/hostile.csv" in folder.stderr.decode()
    assert b"is not a file" in export("hostile", "--out", "/dev/null", url=url).stderr
    assert b"cannot be written" in export("hostile", "--out", tmp_path / "none" / "f", url=url).stderr


def test_parquet_is_not_sent_to_a_terminal(url):
    leader, follower = os.openpty()
    with os.fdopen(follower, "wb") as terminal, os.fdopen(leader, "rb"):
        command = [sys.executable, "-m", "gradcanary.cli", "export", "hostile", "--format", "parquet", "--url", url]
        ran = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ran.returncode, "add > run.parquet, or --out run.parquet" in ran.stderr) == (2, True)


class Cut:
    """Passes one connection on to a collector, and cuts the answer off; ``end`` is when, None = at once."""

    def __init__(self, port: int, after: int, end: threading.Event | None = None) -> None:
        self._end, self.is_passed = end, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._pass, args=(port, after), daemon=True).start()

    def _pass(self, port: int, after: int) -> None:
        with (
            self._listener,
            self._listener.accept()[0] as client,
            socket.create_connection(("127.0.0.1", port)) as other,
        ):
            other.sendall(client.recv(2**16))
            while after > 0 and (piece := other.recv(min(after, 2**16))):
                client.sendall(piece)
                after -= len(piece)
            self.is_passed.set()
            if self._end is not None:
                self._end.wait()


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
def test_an_export_that_was_cut_off_leaves_no_file(url, module_collector, tmp_path, form):
    path = tmp_path / "kept"
    path.write_text("an earlier one")
    for words in (["--out", path], []):
        ran = export("hostile", "--format", form, *words, url=Cut(module_collector.port, 8_000).url)
        assert ran.returncode == 1
        assert b"was cut off" in ran.stderr
        assert b"Traceback" not in ran.stderr
        assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "an earlier one")
    assert ran.stdout[4:][-4:] != b"PAR1"  # what a file of Parquet begins and ends with


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
def test_an_export_that_is_terminated_leaves_no_file(url, module_collector, tmp_path, form):
    end = threading.Event()
    slow = Cut(module_collector.port, 8_000, end)
    words = ["hostile", "--format", form, "--out", tmp_path / "kept", "--url", slow.url]
    running = subprocess.Popen([sys.executable, "-m", "gradcanary.cli", "export", *words])
    assert slow.is_passed.wait(30)
    assert len(list(tmp_path.iterdir())) == 1
    running.terminate()
    assert running.wait(timeout=30) == 143
    end.set()
    assert list(tmp_path.iterdir()) == []


def test_a_link_of_another_user_is_not_followed(url, tmp_path):
    """They can guess the number of the process, and the name of the file."""
    other, path = tmp_path / "other", tmp_path / "f.csv"
    other.write_text("theirs")
    command = shlex.join(
        [sys.executable, "-m", "gradcanary.cli", "export", "hostile", "--url", url, "--out", str(path)]
    )
    subprocess.run(["bash", "-c", f"ln -s other .f.csv.$$.part; exec {command}"], check=True, timeout=60, cwd=tmp_path)
    assert other.read_text() == "theirs"
    assert path.read_bytes() == export("hostile", url=url).stdout
    assert not path.is_symlink()


def test_a_reader_that_has_enough_is_no_error(url):
    command = shlex.join([sys.executable, "-m", "gradcanary.cli", "export", "hostile", "--url", url, "--format"])
    for form in ("csv", "ndjson", "parquet"):
        ran = subprocess.run(
            ["bash", "-c", f"{command} {form} | head -c 10 | wc -c; exit ${{PIPESTATUS[0]}}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (ran.returncode in (0, 141), ran.stdout.strip(), ran.stderr) == (True, "10", ""), form


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http-api.md"


def blocks(language):
    """Return the blocks of the section on exports in a language."""
    section = PAGE.read_text("utf-8").partition("\n## Export\n")[2].partition("\n## ")[0]
    return re.findall(f"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def test_the_page_runs_as_written(module_collector, tmp_path, monkeypatch):
    stream = Stream(healthy(200, 6), np.linspace(1, 0.5, 200))
    Session(module_collector.url, "sdxl-0412").send(stream)
    monkeypatch.setenv("GRADCANARY_URL", module_collector.url)
    monkeypatch.chdir(tmp_path)
    [commands], [script] = blocks("sh"), blocks("python")
    typed = f'gradcanary() {{ {shlex.quote(sys.executable)} -m gradcanary.cli "$@"; }}\nset -e\n{commands}'
    typed = typed.replace("http://127.0.0.1:8787", module_collector.url)
    subprocess.run(["bash", "-c", typed], check=True, timeout=60)
    names = {}
    exec(compile(script, str(PAGE), "exec"), names)
    np.testing.assert_array_equal(names["frame"][stream.names[0]], stream.absmax[:, 0])
    assert names["lazy"].height == 50
    assert len(names["rows"].fetchall()) == stream.absmax.size
    columns = {path.name: parquet.read_schema(path).names for path in tmp_path.glob("*.parquet")}
    assert columns.keys() == {"f.parquet", "b.parquet", "metrics.parquet"}
    assert columns["b.parquet"][3:5] == [f"{stat} {stream.names[1]}" for stat in ("absmax", "norm")]
    assert columns["metrics.parquet"] == ["step", "time", "loss", "lr0"]
    assert json.loads((tmp_path / "a.ndjson").read_text("utf-8").splitlines()[7])["step"] == 7
    assert (tmp_path / "loss.csv").read_text("utf-8").splitlines()[1].endswith(",1.0")


def test_csv_of_one_column_and_of_none(url):
    lines = export("hostile", "--layer", "0", "--to", "1", url=url).stdout.decode().splitlines()
    assert [line.split(",")[2:] for line in lines[:2]] == [["'=1+1"], [""]]
    assert np.float32(lines[2].split(",")[2]) == FINE.absmax[1, 0]


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
def test_a_file_without_rows_is_reported(url, tmp_path, form):
    for words in (("--from", "99999"), ("--stat", "weight_norm"), ("--metric", "loss", "--from", "7")):
        ran = export("hostile", "--format", form, *words, "--out", tmp_path / "f", url=url)
        assert ran.returncode == 0
        assert ran.stderr.decode() == "gradcanary: hostile has no such values at these steps: the file has no rows\n"
    assert export("hostile", "--format", form, "--to", "5", "--out", tmp_path / "f", url=url).stderr == b""
