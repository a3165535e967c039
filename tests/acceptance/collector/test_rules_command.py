"""``gradcanary test-rules``: what it says of a run and of a CSV file is what the collector said, or would have said."""

import re
from dataclasses import replace

import numpy as np
import pytest

from gradcanary import cli, wire
from support.streams import Session, Stream, collapsed, falling_loss

LAYERS, AT, STEPS = 24, 130, 300
QUIET = "version: 1\nrules:\n  collapse: {enabled: false}\n  vanished: {enabled: false}\n"
PICKY = "version: 1\nlayers:\n- match: lora_A\n  collapse: {enabled: false}\n"


@pytest.fixture
def test_rules(tmp_path, capsys):
    """Run the command on a rules.yaml of this text; return its status, what it printed and what it complained of."""

    def run(text, *arguments):
        rules = tmp_path / "rules.yaml"
        rules.write_text(text)
        status = cli.main(["test-rules", str(rules), *map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out.replace(str(tmp_path), "..").splitlines(), said.err

    return run


@pytest.fixture(scope="module")
def trained(module_collector):
    """A run of which four layers collapse, one has no gradient any more, and the loss is NaN after the last sample."""
    absmax = collapsed(STEPS, LAYERS, range(4), AT)
    absmax[AT + 5 :, 9] = np.nan
    session, stream = Session(module_collector.url, run="lora"), Stream(absmax, falling_loss(STEPS))
    session.send(stream)
    loss = wire.Metric("loss", (), (STEPS + 3,), wire.column("d", [np.nan]))
    nothing = {"steps": (), "times": "", "micro_steps": (), "skipped": (), "clipped": (), "state": "", "blocks": ()}
    session.post_batch(5, replace(stream.batch(0, 1), **nothing, metrics=(loss,))).raise_for_status()
    session.end(last_step=STEPS - 1).raise_for_status()
    return module_collector


def test_a_run_is_judged_by_rules_of_yours_beside_the_present_ones(trained, test_rules):
    status, said, _ = test_rules(PICKY, "--run", "lora", "--url", trained.url)
    found = {each["rule"]: each for each in trained.get("/api/v1/incidents", run="lora").json()["incidents"]}
    collapse = f"  collapse (critical) fired at step {found['collapse']['opened_step']}, run_finished at step 299"
    vanished = f"  vanished (critical) fired at step {found['vanished']['opened_step']}, run_finished at step 299"
    assert status == 1
    assert said[0] == "lora: steps 0 to 299, 24 parameters"
    mine, present = (
        said.index("../rules.yaml: 3 incidents, 3 messages"),
        said.index("the rules of the collector, version 1: 3 incidents, 3 messages"),
    )
    assert mine < present
    assert said[mine + 1 : mine + 3] == [collapse, "    2 of 24 parameters: blocks.0-1.attn.lora_B.weight"]
    assert said[present + 1 : present + 3] == [collapse, "    4 of 24 parameters: blocks.0-1.attn.*.weight"]
    assert re.fullmatch(r"    opened at 2023-11-14T22:13:.*Z, after step 249", said[present + 3])
    assert vanished in said[mine:present]
    assert "    the whole run" in said[mine:present]


def test_rules_that_say_nothing_end_with_status_0(trained, test_rules):
    nothing = QUIET + "  nonfinite: {enabled: false}\n"
    status, said, _ = test_rules(nothing, "--run", "lora", "--url", trained.url)
    assert status == 0
    assert "../rules.yaml: 0 incidents, 0 messages" in said


def test_a_csv_file_is_judged_as_the_run_that_it_was_exported_from(trained, test_rules, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(trained.get("/api/v1/runs/lora/export.csv").text)
    status, said, _ = test_rules(PICKY, trace)
    [known] = [each for each in trained.get("/api/v1/incidents").json()["incidents"] if each["rule"] == "collapse"]
    assert status == 1
    assert said[said.index("the default rules: 1 incident, 1 message") + 1 :][:2] == [
        f"  collapse (critical) fired at step {known['opened_step']}, still open",
        "    4 of 24 parameters: blocks.0-1.attn.*.weight",
    ]
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[:AT]))
    assert test_rules(PICKY, trace)[0] == 0
    status, said, _ = test_rules(f"{PICKY}metrics: [{{match: fid, below: 9}}]\n", trace)
    assert (status, said[-1]) == (0, "metrics: match 'fid' matches nothing here: no metric is logged")


@pytest.mark.parametrize(
    ("rules", "arguments", "says"),
    [
        ("version: 1\nrules: {collaps: {}}\n", ("--run", "lora"), "line 2: unknown key 'collaps'"),
        (PICKY, ("--run", "nobody"), "There is no run 'nobody'"),
        (PICKY, ("--run", "lora", "--url", "http://127.0.0.1:9"), "does not answer"),
        (PICKY, (), "give a run in the collector with --run, or a CSV file"),
        (PICKY, ("none.csv",), "none.csv cannot be read"),
    ],
)
def test_test_rules_reports_why_it_cannot_run(trained, test_rules, rules, arguments, says):
    where = () if "--url" in arguments or not arguments or "--run" not in arguments else ("--url", trained.url)
    status, said, error = test_rules(rules, *arguments, *where)
    assert (status, said) == (2, [])
    assert says in error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: the first line is step,time"),
        ("step,time,a,a\n", "a parameter is there twice"),
        ("step,time,a\n", "has no steps"),
        ("step,time,a\n0,2026-01-01T00:00:00Z,1\nx,2026-01-01T00:00:00Z,1\n", "line 3"),
        ("step,time,a\n0,2026-01-01T00:00:00Z,1,2\n", "line 2 has 4 cells, the first line 3"),
        ("step,time,a\n0,yesterday,1\n", "line 2"),
        ("step,time,a\n0,2026-01-01T00:00:00Z,-3\n", "line 2: a step is 0 to"),
    ],
)
def test_a_csv_file_that_is_none_names_its_line(test_rules, tmp_path, text, says):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    status, _, error = test_rules(PICKY, trace)
    assert status == 2
    assert says in error
