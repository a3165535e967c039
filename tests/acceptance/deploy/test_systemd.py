"""The unit of docs/deploy by systemd's own tools, and its command as systemd would start it."""

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.deploy import check, edited, tool

COMMAND = Path(sys.executable).with_name("gradcanary")
INSTALLED = "/opt/gradcanary/bin/gradcanary"


def unit_text():
    return edited("gradcanary.service", {INSTALLED: str(COMMAND)})


def values(key):
    return re.findall(rf"^{key}=(.*)$", unit_text(), re.MULTILINE)


def test_systemd_accepts_the_unit_also_with_all_its_credentials(tmp_path):
    unit = tmp_path / "gradcanary.service"
    for text in (unit_text(), re.sub(r"^#(?=LoadCredential|Environment)", "", unit_text(), flags=re.MULTILINE)):
        unit.write_text(text)
        assert check(tool("systemd-analyze"), "verify", "--man=no", unit) == ""


def test_the_unit_is_confined(tmp_path):
    unit = tmp_path / "gradcanary.service"
    unit.write_text(unit_text())
    # In tenths: 2.0 of 10, where 10 is a unit without any setting.
    check(tool("systemd-analyze"), "security", "--offline=true", "--threshold=20", unit)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_its_command_serves_the_folder_and_notifies_when_it_does(kind, tmp_path):
    address = f"\0gradcanary-{tmp_path}" if kind == "abstract" else str(tmp_path / "notify")
    environment = dict(item.split("=", 1) for line in values("Environment") for item in shlex.split(line))
    assert {name for name in environment if not name.startswith("MALLOC_")} == set()
    [command] = values("ExecStart")
    words = command.replace("/var/lib/gradcanary", str(tmp_path / "state")).split()
    assert words[:4] == [str(COMMAND), "up", "--host", "0.0.0.0"]
    environment |= {"NOTIFY_SOCKET": address.replace("\0", "@"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        # An address of this machine only: a test listens for no others.
        words[3] = "127.0.0.1"
        with subprocess.Popen([*words, "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert manager.recv(100) == b"READY=1"
                assert any("listening on" in line for line in process.stdout)
            finally:
                process.terminate()
    assert process.returncode == 0
    assert (tmp_path / "state" / "gradcanary.db").exists()
