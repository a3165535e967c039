"""fp16_without_scaler and clip_before_unscale: the mistake, and the correct twins that are quiet."""

import pytest

from support.agent.checked import findings, found

AUTOCAST = """\
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""

FP16 = "fp16_without_scaler"
CLIP = "clip_before_unscale"


def test_float16_autocast_without_a_scaler() -> None:
    assert found(AUTOCAST) == [(6, FP16)]


@pytest.mark.parametrize(
    "context",
    [
        "torch.cuda.amp.autocast()",
        "torch.autocast('cuda', torch.float16)",
        "torch.autocast(device_type=device, dtype=torch.half)",
        "torch.amp.autocast('cuda', enabled=args.amp)",
    ],
)
def test_other_spellings_of_float16(context: str) -> None:
    assert found(AUTOCAST.replace('torch.autocast("cuda")', context)) == [(6, FP16)]


@pytest.mark.parametrize(
    "context",
    [
        "torch.autocast('cuda', torch.bfloat16)",
        "torch.autocast('cpu')",
        "torch.autocast(device)",
        "torch.autocast('cuda', dtype=dtype)",
        "torch.autocast('cuda', enabled=False)",
        "torch.cuda.amp.autocast(False)",
        "torch.autocast('cuda', **options)",
        "torch.no_grad(), torch.autocast('cuda')",
        "accelerator.autocast()",
        "autocast()",
    ],
)
def test_quiet_where_float16_is_not_certain_or_has_no_gradient(context: str) -> None:
    assert found(AUTOCAST.replace('torch.autocast("cuda")', context), FP16) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss.backward()", "scaler.scale(loss).backward()"),
        ("loss.backward()", "(loss * 1024).backward()"),
        ("loss.backward()", "accelerator.backward(loss)"),
        ("loss.backward()", "engine.backward(loss)"),
        ("import torch", "import torch\nfrom utils import NativeScaler"),
        ("for x", "torch.set_autocast_dtype('cuda', torch.bfloat16)\nfor x"),
    ],
)
def test_quiet_where_the_loss_may_be_scaled(old: str, new: str) -> None:
    assert found(AUTOCAST.replace(old, new), FP16) == []


def test_a_dtype_is_followed_over_names_aliases_and_helpers() -> None:
    text = """\
    from torch import autocast as cast, float16, optim
    DTYPE = float16
    def forward(model, x, y):
        with cast("cuda", dtype=DTYPE):
            return criterion(model(x), y)
    def run(model, data):
        optimizer = optim.AdamW(model.parameters())
        for x, y in data:
            with cast("cuda", dtype=DTYPE):
                out = model(x)
            loss = criterion(out, y)
            loss = loss / 4
            update(loss, optimizer)
    def update(value, optimizer):
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    """
    assert found(text) == [(9, FP16)]


def test_float16_weights_that_an_optimizer_steps() -> None:
    plain = AUTOCAST.replace('    with torch.autocast("cuda"):\n        loss', "    loss")
    assert found(plain) == []
    for cast in ("model = torch.nn.Linear(4, 1).half()", "model = torch.nn.Linear(4, 1)\nmodel.to(torch.float16)"):
        text = plain.replace("model = torch.nn.Linear(4, 1)", cast)
        assert [code for _, code in found(text)] == [FP16]
    assert found(text.replace("optimizer =", "model.head.float()\noptimizer =")) == []


SCALED = """\
import torch
from torch.nn.utils import clip_grad_norm_ as clip
scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    clip(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


def test_clip_before_unscale() -> None:
    assert found(SCALED) == [(10, CLIP)]


def test_the_fix_is_in_the_names_of_the_file() -> None:
    (finding,) = findings(SCALED.replace("scaler", "amp_scaler").replace("clip(", "torch.nn.utils.clip_grad_value_("))
    assert finding.fix.splitlines()[1:] == [
        "amp_scaler.unscale_(optimizer)",
        "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    clip(", "    scaler.unscale_(optimizer)\n    clip("),
        ("    clip(", "    if scaler is not None: scaler.unscale_(optimizer)\n    clip("),
        ("    clip(", "    prepare(scaler, optimizer)\n    clip("),
        ("    clip(", "    helpers.unscale_gradients()\n    clip("),
        ("    clip(model.parameters(), 1.0)\n    scaler", "    scaler"),
        ("    clip(", "    if not use_amp: clip("),
        ("scaler.scale(loss).backward()", "loss.backward()"),
        ('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'),
        ("    scaler.step(optimizer)", "    optimizer.step()"),
        ("as clip", "as other"),
    ],
)
def test_quiet_twins_of_clip_before_unscale(old: str, new: str) -> None:
    text = SCALED.replace(old, new)
    assert text != SCALED
    assert found(text, CLIP) == []


def test_arms_of_a_condition_are_not_mixed() -> None:
    text = """\
    import torch
    def update(loss, optimizer, scaler, use_amp):
        if use_amp:
            scaler.scale(loss).backward()
            {clip}
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    """
    assert found(text.format(clip="pass")) == []
    assert found(text.format(clip="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")) == [(5, CLIP)]


def test_a_clip_in_a_method_and_unscale_in_another_one() -> None:
    text = """\
    import torch
    class Trainer:
        def fit(self):
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.scaler.scale(self.model(batch)).backward()
                self.update()
        def update(self):
            {unscale}
            self.clip()
            self.scaler.step(self.optimizer)
        def clip(self):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        def unscale(self):
            self.scaler.unscale_(self.optimizer)
    """
    assert found(text.format(unscale="pass")) == [(13, CLIP)]
    assert found(text.format(unscale="self.unscale()")) == []
