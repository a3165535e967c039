"""The rank of a process, and what the ranks of a job print."""

import pytest

from gradcanary.doctor import report
from gradcanary.doctor.report import Finding, Rank

OK, NOTE = Finding("collector", "ok", "it answers"), Finding("gdb", "note", "not installed", "install it")
FAULT = Finding("token", "fault", "refused", "make one")


def srun(*values):
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    ("environ", "number", "world", "local"),
    [
        ({}, 0, 1, None),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "SLURM_PROCID": "0"}, 3, 4, 1),
        (srun("5", "12", "5", "8(x1),4"), 5, 12, 5),
        (srun("1", "2", "0", "1(x2)"), 1, 2, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1, None),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, 1, 2, 1),
        ({"RANK": "x", "WORLD_SIZE": "2"}, 0, 1, None),
    ],
)  # fmt: skip
def test_the_rank_that_a_launcher_gives(environ, number, world, local):
    assert report.find_rank(environ, "node7") == Rank(number, world, local, "node7")


def test_the_first_rank_prints_all_and_each_line_names_it():
    text = report.job_text([OK, NOTE, FAULT], Rank(0, 2, 0, "node7"), None)
    assert text == (
        "[rank 0 on node7] ok     collector  it answers\n"
        "[rank 0 on node7] note   gdb        not installed\n"
        "[rank 0 on node7]                   do: install it\n"
        "[rank 0 on node7] fault  token      refused\n"
        "[rank 0 on node7]                   do: make one\n"
        "[rank 0 on node7] 1 fault, 1 note, 3 checks"
    )


def test_other_ranks_print_faults_or_one_line_and_what_to_do_once_a_machine():
    first, second = Rank(8, 16, 0, "node8"), Rank(9, 16, 1, "node8")
    assert report.job_text([OK, NOTE], first, None) == "[rank 8 on node8] no fault: it answers"
    assert report.job_text([OK, FAULT], first, None).split("\n")[1:] == [
        "[rank 8 on node8]                   do: make one"
    ]
    assert report.job_text([OK, FAULT], second, None) == "[rank 9 on node8] fault  token      refused"


def test_findings_are_wrapped_and_commands_are_not():
    text = report.finding_text(Finding("token", "fault", "one two three four five", "export GRADCANARY_TOKEN=gc_"), 34)
    assert text.split("\n") == [
        "fault  token      one two three",
        "                 four five",
        "                  do: export GRADCANARY_TOKEN=gc_",
    ]
