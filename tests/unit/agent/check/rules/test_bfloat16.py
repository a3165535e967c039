"""bf16_not_asked: forced, chosen, asked; on a CPU, and by a framework."""

import pytest

from support.agent.checked import found

CODE = "bf16_not_asked"
TRAINING = """\
import torch
model = make_model()
device = "cuda"
{line}
model(x).mean().backward()
"""


@pytest.mark.parametrize(
    "line",
    [
        "model = model.to(device, torch.bfloat16)",
        "model.bfloat16()",
        "model = Auto.from_pretrained('x', dtype=torch.bfloat16)",
        "context = torch.amp.autocast('cuda', torch.bfloat16)",
        "context = torch.cuda.amp.autocast(dtype=torch.bfloat16)",
        "torch.set_default_dtype(torch.bfloat16)",
    ],
)
def test_forced(line: str) -> None:
    assert found(TRAINING.format(line=line), CODE) == [(4, CODE)]
    assert found(TRAINING.format(line=line).replace('"cuda"', '"cpu"').replace("'cuda'", "'cpu'"), CODE) == (
        [(4, CODE)] if "torch.cuda" in line else []
    )


@pytest.mark.parametrize(
    "line",
    [
        "model.to(torch.bfloat16 if args.bf16 else torch.float32)",
        "if args.precision == 'bf16': model.to(torch.bfloat16)",
        "if torch.cuda.is_bf16_supported(): model.to(torch.bfloat16)",
        "context = torch.autocast('cuda', torch.bfloat16, enabled=args.amp)",
        "context = torch.autocast('cpu', torch.bfloat16)",
        "x = x.to(torch.bfloat16)",
        "model.to(dtype)",
        "xla = model.to(torch.bfloat16)",
    ],
)
def test_quiet_where_it_is_chosen_or_asked(line: str) -> None:
    assert found(TRAINING.format(line=line), CODE) == []


def test_quiet_where_the_file_asks_anywhere() -> None:
    text = TRAINING.format(line="model.bfloat16()")
    assert found(text + "assert torch.cuda.is_bf16_supported()\n", CODE) == []
    assert found(text + "assert torch.cuda.is_available()\n", CODE) == [(4, CODE)]


def test_quiet_without_a_training() -> None:
    text = TRAINING.format(line="model.to(device, torch.bfloat16)")
    assert found(text.replace(".backward()", ""), CODE) == []


def test_lightning_does_not_ask() -> None:
    text = """\
    import lightning as L
    class Net(L.LightningModule):
        def training_step(self, batch): ...
    trainer = L.Trainer(accelerator="gpu", precision="bf16-mixed")
    """
    assert found(text, CODE) == [(4, CODE)]
    assert found(text.replace('"bf16-mixed"', "args.precision"), CODE) == []
