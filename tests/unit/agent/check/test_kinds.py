"""What a variable is: by how it is made, else by its usual name."""

import ast

import pytest

from gradcanary.check.kinds import ACCELERATOR, FABRIC, OPTIMIZER, SCALER, SCHEDULER, Kind
from support.agent.checked import program


def kind_in(text: str) -> Kind | None:
    checked = program(text)
    (call,) = [node for node in checked.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "probe"]
    return checked.kind(call.args[0], checked.scopes.scope(call))


@pytest.mark.parametrize(
    ("head", "made", "name"),
    [
        ("import torch", "torch.optim.SGD(p)", OPTIMIZER),
        ("import bitsandbytes as bnb", "bnb.optim.AdamW8bit(p)", OPTIMIZER),
        ("from transformers import Adafactor", "Adafactor(p)", OPTIMIZER),
        ("from torch.optim import lr_scheduler as s", "s.StepLR(o, 1)", SCHEDULER),
        ("from transformers import get_cosine_schedule_with_warmup as g", "g(o, 1, 2)", SCHEDULER),
        ("from diffusers.optimization import get_scheduler", "get_scheduler('constant')", SCHEDULER),
        ("from torch.cuda.amp import GradScaler", "GradScaler()", SCALER),
        ("from accelerate import Accelerator", "Accelerator()", ACCELERATOR),
        ("import lightning as L", "L.Fabric()", FABRIC),
    ],
)
def test_what_the_file_makes(head: str, made: str, name: str) -> None:
    assert kind_in(f"{head}\nx = {made}\nprobe(x)") == Kind(name, is_made_here=True, is_certain=True)
    assert kind_in(f"{head}\nx = None\nif y: x = {made}\nprobe(x)") == Kind(name, is_made_here=True, is_certain=True)
    given = f"{head}\ndef f(x):\n    probe(x)\nf({made})"
    assert kind_in(given) == Kind(name, is_made_here=True, is_certain=False)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("optimizer", OPTIMIZER),
        ("self.opt_g", OPTIMIZER),
        ("optimizers[0]", OPTIMIZER),
        ("args.lr_scheduler", SCHEDULER),
        ("grad_scaler", SCALER),
        ("accelerator", ACCELERATOR),
        ("self.fabric", FABRIC),
        ("options", None),
        ("environment", None),
        ("noise_scheduler", None),
        ("make()", None),
    ],
)
def test_the_usual_names_of_what_comes_from_elsewhere(expression: str, name: str | None) -> None:
    assert kind_in(f"def f(optimizer):\n    probe({expression})") == (name and Kind(name, False, False))


def test_a_name_does_not_outweigh_what_the_file_makes() -> None:
    assert kind_in("from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\nprobe(scaler)") is None
    assert (
        kind_in("import torch\noptimizer = torch.amp.GradScaler()\noptimizer = torch.optim.SGD(p)\nprobe(optimizer)")
        is None
    )
    head = "import torch\ndef f(optimizer):\n    probe(optimizer)\n"
    assert kind_in(f"{head}f(torch.amp.GradScaler())\nf(torch.optim.SGD(p))") is None
