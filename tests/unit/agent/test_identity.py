"""Names of runs, launches and ranks, from what launchers put into the environment."""

import os
import re

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import identity

IN_A_PATH = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
SLURM = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "0"}
ELASTIC = {
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


@given(st.text())
def test_any_name_becomes_one_that_a_path_takes(name):
    assert IN_A_PATH.fullmatch(identity.allowed_name(name))


@given(st.from_regex(IN_A_PATH, fullmatch=True))
def test_a_name_that_is_fit_stays(name):
    assert identity.allowed_name(name) == name


@given(st.text(), st.text(alphabet="0123456789", min_size=8, max_size=8))
def test_a_run_without_a_name_is_called_after_its_script(script, date):
    assert IN_A_PATH.fullmatch(identity.run_name(script, date))


@pytest.mark.parametrize(
    ("script", "stem"), [("a/train.py", "train"), ("-c", "python"), ("", "python"), ("-m", "python")]
)
def test_the_script_the_date_and_four_digits(script, stem):
    assert re.fullmatch(rf"{stem}-20260401-[0-9a-f]{{4}}", identity.run_name(script, "20260401"))


@pytest.mark.parametrize("environ", [SLURM, ELASTIC])
def test_all_ranks_of_a_start_agree_and_a_restart_differs(environ):
    launch = identity.launch_id(environ, "100")
    assert launch == identity.launch_id(dict(environ), "100")
    assert re.fullmatch("[0-9a-f]{16}", launch)
    for key in environ:
        assert identity.launch_id({**environ, key: "other"}, "100") != launch


def test_two_starts_of_one_elastic_job_differ_by_the_launcher():
    assert identity.launch_id(ELASTIC, "100") != identity.launch_id(ELASTIC, "101")
    assert identity.launch_id(SLURM, "100") == identity.launch_id(SLURM, "101")


def test_a_launch_that_is_given_comes_first_and_one_without_a_launcher_is_random():
    assert identity.launch_id({**SLURM, "GRADCANARY_LAUNCH": "night run/3"}, "1") == "night-run-3"
    assert identity.launch_id({}, "1") != identity.launch_id({}, "1")


@given(st.text(min_size=1), st.integers(1, 9999))
def test_later_launches_of_a_process_have_numbers_and_still_fit(given_id, number):
    launch = identity.nth_launch(identity.launch_id({"GRADCANARY_LAUNCH": given_id}, ""), number)
    assert len(launch) <= identity.MAX_ID
    assert launch.endswith(f".{number}") or number == 1


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, (0, 1)),
        ({"RANK": "x"}, (0, 1)),
        ({"RANK": "²"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "0"}, (0, 1)),
    ],
)
def test_rank_and_world_size(environ, expected):
    assert identity.rank_and_world_size(environ) == expected


def test_a_session_is_random_and_its_start_known(tmp_path):
    assert identity.session_id() != identity.session_id()
    ticks = psutil.Process().create_time() - psutil.boot_time()
    assert int(identity.start_time(os.getpid())) / os.sysconf("SC_CLK_TCK") == pytest.approx(ticks, abs=2)
    assert identity.start_time(2**30) == ""
