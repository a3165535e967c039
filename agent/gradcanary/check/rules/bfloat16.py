"""bf16_not_asked: bfloat16 written down for whatever GPU the file runs on.

A GPU under compute capability 8.0 (V100, T4) has no bfloat16 units. ``torch.cuda.is_bf16_supported()`` is True there,
too, for torch emulates it; ``including_emulation=False`` asks for the units. Accelerate and transformers ask by
themselves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.flow import Event
from gradcanary.check.modules import makes_parameters
from gradcanary.check.program import Program
from gradcanary.check.scopes import keyword, last_name

_ASKS = re.compile(r"is_bf16_supported|get_device_(capability|properties)|is_(torch_)?bf16_\w+|is_bfloat16_\w+")
_TRAINS = frozenset({"backward", "manual_backward", "training_step", "Trainer", "SFTTrainer", "Seq2SeqTrainer"})
_CHOICE = re.compile("(?i)bf16|bfloat16|precision|dtype|amp|half|fp16|cuda|device|gpu|cpu|capab")
_GPU = re.compile("cuda|gpu|device_map|local_rank")
_OTHER_DEVICE = re.compile("xla|tpu|hpu|npu|xpu|mps")
_MODULE_NAME = re.compile(r"(?i)(\w+_)?(model|net|unet|transformer|encoder|decoder|vae|llm|lora|adapter|network)")
_AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast_mode.autocast")
_PRECISIONS = ("bf16", "bf16-mixed", "bf16-true")

_WHY = (
    "GPUs under compute capability 8.0 (V100, T4) compute bfloat16 by emulation, without an error and "
    "slowly, or refuse it. float16 has units there, and needs a GradScaler."
)
_FIX = {
    "lightning": 'Choose precision by torch.cuda.is_bf16_supported(including_emulation=False), else "16-mixed".',
    "trainer": "TrainingArguments(bf16=torch.cuda.is_bf16_supported(including_emulation=False), ...), else fp16=True.",
    "accelerate": (
        'Accelerator(mixed_precision=...) with "bf16" if torch.cuda.is_bf16_supported(including_emulation=False), '
        'else "fp16".'
    ),
    "torch": (
        "Choose the dtype by torch.cuda.is_bf16_supported(including_emulation=False); torch.float32, or torch.float16 "
        "with a GradScaler, otherwise."
    ),
}


def find_bf16_not_asked(program: Program) -> Iterator[Found]:
    """Yield casts to bfloat16 that no condition or option leads to, in trainings for GPUs that never ask the device."""
    if not program.words & _TRAINS or any(_ASKS.fullmatch(word) for word in program.words):
        return
    if not _is_for_gpus(program):
        return
    for event in program.events():
        message = _forced(event, program)
        if message and not any(_is_choice(guard.test) for guard in event.guards):
            message += " in bfloat16, and nothing asks if the GPU has it"
            yield Found(event.node, message, _WHY, program.wording(_FIX))


def _is_for_gpus(program: Program) -> bool:
    texts = {
        str(node.value) for node in program.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    short = {text for text in texts if len(text) < 40 and " " not in text}
    words = program.words | short
    return any(_GPU.search(word) for word in words) and not any(_OTHER_DEVICE.search(word) for word in words)


def _is_choice(test: ast.expr | None) -> bool:
    return test is None or _CHOICE.search(ast.unparse(test)) is not None


def _forced(event: Event, program: Program) -> str:
    """Return the beginning of the message, or an empty text."""
    call = event.call
    if call is None:
        return ""
    full, method = program.full_name(call.func) or "", event.method
    if full in _AUTOCASTS:
        return "autocast is" if _is_forced_autocast(call, event, program) else ""
    if method == "from_pretrained":
        given = keyword(call, "torch_dtype") or keyword(call, "dtype")
        return "a model is loaded" if _is_bfloat16(given, event, program) else ""
    if full == "torch.set_default_dtype":
        return "new parameters are" if _is_bfloat16(keyword(call, "d", 0), event, program) else ""
    if full.rpartition(".")[2] in ("Trainer", "Fabric") and "lightning" in full:
        precision = keyword(call, "precision")
        return "the training runs" if isinstance(precision, ast.Constant) and precision.value in _PRECISIONS else ""
    is_cast = method == "bfloat16" and not call.args
    if method == "to" and not is_cast:
        is_cast = any(_is_bfloat16(each, event, program) for each in (*call.args, keyword(call, "dtype")))
    return "the weights are" if is_cast and _is_module(event, program) else ""


def _is_forced_autocast(call: ast.Call, event: Event, program: Program) -> bool:
    position = 0 if program.full_name(call.func) != "torch.cuda.amp.autocast" else None
    device = None if position is None else keyword(call, "device_type", 0)
    enabled = keyword(call, "enabled")
    is_on = enabled is None or (isinstance(enabled, ast.Constant) and enabled.value is True)
    is_cpu = isinstance(device, ast.Constant) and device.value == "cpu"
    return is_on and not is_cpu and _is_bfloat16(keyword(call, "dtype", 1), event, program)


def _is_bfloat16(node: ast.expr | None, event: Event, program: Program) -> bool:
    """Return True for torch.bfloat16, and for a name that holds nothing else."""
    if node is None or isinstance(node, ast.Starred):
        return False
    made = program.scopes.single(node, event.scope)
    return made is not None and program.full_name(made) == "torch.bfloat16"


def _is_module(event: Event, program: Program) -> bool:
    receiver = event.receiver
    if receiver is None:
        return False
    values = program.scopes.values(receiver, event.scope)
    if any(makes_parameters(each.node, program) for each in values.found):
        return True
    return _MODULE_NAME.fullmatch(last_name(receiver)) is not None


BF16_NOT_ASKED = Rule(
    "bf16_not_asked", "information", "fp16_range", "bfloat16 without asking if the GPU has it", find_bf16_not_asked
)
