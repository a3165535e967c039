"""What ``gradcanary run`` puts into other processes: nothing that they would notice, and the agent where torch is."""

import base64
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gradcanary import cli
from gradcanary.cli import run
from support.agent.launched import NOBODY, Workplace

AGENT = Path(cli.__file__).parents[2]
TORCH = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())

SHOW = """
import json, sys
print(json.dumps([sorted(sys.modules), sys.path, sys.flags.dev_mode, len(sys.meta_path)]))
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, None, "sitecustomize")


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter without any package."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    return folder / "bin" / "python"


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": "/somewhere"}, {"PYTHONPATH": "/somewhere:"}])
def test_a_python_without_torch_is_as_it_was(
    workplace: Workplace, other_python: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, str]
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    script = workplace.write("show.py", SHOW)
    alone = subprocess.run([other_python, script], env=before, capture_output=True, text=True, check=True, timeout=60)
    environ = run.environment(before, [str(other_python)], url=NOBODY, run=None, every=None)
    under = subprocess.run([other_python, script], env=environ, capture_output=True, text=True, check=True, timeout=60)
    modules, path, *_, finders = json.loads(alone.stdout)
    assert json.loads(under.stdout) == [modules, path, False, finders + 1]
    assert under.stderr == ""
    assert not {"gradcanary", "torch", "importlib.util"} & set(modules)


LAUNCHER = f"import sys; sys.path.insert(0, {str(AGENT)!r}); from gradcanary.cli import main; sys.exit(main())"

WITHOUT_AGENT = """
import importlib.util, sys
assert importlib.util.find_spec("gradcanary") is None
before = list(sys.path)
from train import torch, train
train()
from gradcanary import api
assert sys.path == before
assert "exec_module" not in vars(torch.__loader__)
print(api.__file__, [watch.run for watch in api._open])
"""


def test_the_agent_comes_along_where_only_torch_is_installed(workplace: Workplace, other_python: Path) -> None:
    workplace.write("without.py", WITHOUT_AGENT)
    ended = workplace.run(
        "-c", LAUNCHER, "run", f"--url={NOBODY}", "--run=along", other_python, "without.py",
        env={"PYTHONPATH": str(TORCH)},
    )  # fmt: skip
    assert ended.stdout == f"{AGENT / 'gradcanary' / 'api.py'} ['along']\n"


def test_a_module_of_the_users_with_our_name_stays_theirs(workplace: Workplace, other_python: Path) -> None:
    workplace.write("gradcanary.py", "theirs = True")
    workplace.write("named.py", "import gradcanary\nimport torch\nprint(gradcanary.theirs)")
    ended = workplace.run(
        "-c", LAUNCHER, "run", other_python, "named.py", env={"PYTHONPATH": str(TORCH)}
    )  # fmt: skip
    assert ended.stdout == "True\n"
    assert ended.stderr.count("this process is not watched") == 1


def test_a_sitecustomize_of_the_users_runs_once(workplace: Workplace) -> None:
    own = workplace.write("own/sitecustomize.py", "import sys; sys.own = getattr(sys, 'own', 0) + 1").parent
    workplace.write("show.py", "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)")
    ended = workplace.launch("show.py", env={"PYTHONPATH": f"{own}:{AGENT}"})
    assert ended.stdout == f"1 {own / 'sitecustomize.py'}\n"


@pytest.mark.parametrize("text", ["1 / 0", "import nowhere", "raise SystemExit(4)", "syntax error"])
def test_an_error_in_it_is_told_as_ever(workplace: Workplace, text: str) -> None:
    own = workplace.write("own/sitecustomize.py", text).parent
    workplace.write("show.py", "import sys; print('sitecustomize' in sys.modules)")
    environ = run.environment({"PYTHONPATH": str(own)}, ["python"], url=None, run=None, every=None)
    alone, under = (
        subprocess.run(
            [sys.executable, "show.py"], cwd=workplace.folder, env=env, capture_output=True, text=True, timeout=60
        )
        for env in ({"PYTHONPATH": str(own)}, environ)
    )
    assert (under.returncode, under.stdout) == (alone.returncode, alone.stdout)
    assert under.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


def test_without_the_variable_the_folder_on_the_path_does_nothing(workplace: Workplace) -> None:
    workplace.write("show.py", "import sys; print([type(finder).__name__ for finder in sys.meta_path])")
    environ = run.environment({}, ["python"], url=None, run=None, every=None)
    ended = workplace.run("show.py", env={**environ, "GRADCANARY_WATCH": ""})
    assert "TorchWaiter" not in ended.stdout


def test_environment_of_launchers_holds_no_secret() -> None:
    secrets = dict.fromkeys(("GRADCANARY_TOKEN", "GRADCANARY_DB_PASSWORD", "GRADCANARY_WEBHOOK_SECRET"), "a secret")
    environ = run.environment(secrets, ["python"], url=NOBODY, run="n", every="10")
    carried = base64.b64decode(environ[run.CARRIED]).decode().split("\0")
    assert [pair.partition("=")[0] for pair in carried] == [
        f"GRADCANARY_{name}" for name in ("EVERY", "LAUNCH", "RUN", "URL", "WATCH")
    ]


def test_broken_environment_is_one_line_and_no_failure(workplace: Workplace) -> None:
    environ = run.environment({}, ["python"], url=None, run=None, every=None)
    broken = {name: value for name, value in environ.items() if not name.startswith("GRADCANARY_")}
    ended = workplace.run("-c", "print('ran')", env={**broken, run.CARRIED: "x"})
    assert ended.stdout == "ran\n"
    assert ended.stderr.count("this process is not watched") == 1


def test_a_wrong_setting_in_a_child_is_a_line_and_not_its_end(workplace: Workplace) -> None:
    ended = workplace.launch("sh", "-c", f"GRADCANARY_STEP=soon {sys.executable} train.py")
    assert ended.stdout == "trained\n"
    assert ended.stderr.count("not watched (ValueError: GRADCANARY_STEP is 'soon'") == 1


def test_an_import_of_torch_that_fails_fails_as_ever(workplace: Workplace, other_python: Path) -> None:
    workplace.write("torch.py", "raise ImportError('no libcudart')")
    workplace.write("try.py", "for _ in range(2):\n    try: import torch\n    except ImportError as e: print(e)")
    ended = workplace.launch(other_python, "try.py")
    assert ended.stdout == "no libcudart\nno libcudart\n"
    assert "not watched" not in ended.stderr


SLURM = {"SLURM_JOB_ID": "77"}


def test_launchers_of_one_job_agree() -> None:
    def named(environ: dict[str, str]) -> tuple[str, str]:
        found = run.environment(environ, ["python", "train.py"], url=None, run=None, every=None)
        return found["GRADCANARY_RUN"], found["GRADCANARY_LAUNCH"]

    assert named(SLURM) == named({**SLURM, "SLURM_PROCID": "1"})
    assert named(SLURM) != named({"SLURM_JOB_ID": "78"})
    assert named({}) != named({})


def test_a_launcher_in_a_launcher_keeps_the_names_and_the_path() -> None:
    outer = run.environment({"PYTHONPATH": "/a"}, ["python", "a.py"], url=None, run="one", every="10")
    assert run.environment(outer, ["python", "b.py"], url=None, run=None, every=None) == outer
    assert outer["PYTHONPATH"].split(":")[1:] == ["/a"]
    assert outer["GRADCANARY_EVERY"] == "10"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["sh", "-c", "python a/train.py --x && true"], "train"),
        (["torchrun", "--nproc-per-node", "2", "finetune.py", "other.py"], "finetune"),
        (["python", "-m", "package.train", "x"], "train"),
        (["/bin/make", "train"], "make"),
    ],
)
def test_a_run_is_called_after_what_trains(words: list[str], name: str) -> None:
    found = run.environment({}, words, url=None, run=None, every=None)
    assert found["GRADCANARY_RUN"].startswith(f"{name}-2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "there is no script nowhere.py in "),
        (["no-such-command", "x"], "there is no command no-such-command on PATH"),
        ([], "nothing to run. Usage: gradcanary run"),
        (["--"], "nothing to run"),
        (["-m"], "nothing to run"),
        (["--every", "7", "true"], "--every is '7': it must be"),
        (["--url", "localhost:8787", "true"], "--url is 'localhost:8787': it must be the address of a collector"),
        (["--run", "", "true"], "--run is ''"),
        (["--speed", "7", "true"], "unrecognized arguments: --speed"),
        (["--url"], "expected one argument"),
    ],
)
def test_unstartable_command_is_reported(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    try:
        status = cli.main(["run", *words])
    except SystemExit as end:  # argparse's own way
        status = end.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_the_launcher_loads_no_torch(workplace: Workplace) -> None:
    code = "import os, sys; os.execve = lambda *_: sys.exit('torch' in sys.modules); import gradcanary.cli as cli"
    workplace.run("-c", f"{code}; cli.main(['run', 'true'])")
