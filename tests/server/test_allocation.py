"""The process of a collector keeps its memory: large arrays come and go with each answer."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, threading
from gradcanary_server import allocation
{keeps}
def work():
    for _ in range(10):
        [b"x" * 2**21 for _ in range(10)]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
found = []
def twice():
    faults(), faults()
thread = threading.Thread(target=twice)
thread.start()
thread.join()
print(found[-1])
"""
"""As a question is answered: in a thread, by some arrays of megabytes at a time."""


def faults_of(keeps: str, **environ: str) -> int:
    """Return the pages that the kernel gives a process that makes 20 MiB ten times, having done so before."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    asked = [sys.executable, "-c", FAULTS.format(keeps=keeps)]
    return int(subprocess.run(asked, env={**plain, **environ}, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another C library")
def test_memory_that_was_given_back_is_used_again_unless_the_operator_says_otherwise():
    assert faults_of("allocation.keep()") < 100
    assert faults_of("allocation.keep()", MALLOC_MMAP_THRESHOLD_="65536") > 10_000
