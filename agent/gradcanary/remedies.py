"""Likely causes and what to do about them, in the words of each framework. Standard library only.

A cause is found by the collector from evidence (:mod:`gradcanary_server.causes`) and named by its code; this
catalogue holds the words. Nothing here blames an 8-step accumulation in bfloat16 for a large fall: that loses 0.4 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FRAMEWORKS = ("pytorch", "transformers", "accelerate", "lightning", "deepspeed", "fsdp", "peft", "diffusers")

_ALIASES = {
    "torch": "pytorch",
    "trainer": "transformers",
    "trl": "transformers",
    "pytorch_lightning": "lightning",
    "lightning_fabric": "lightning",
    "fsdp2": "fsdp",
}


@dataclass(frozen=True)
class Fix:
    """What to do: words, and lines to type or to look at; ``framework`` is whose words they are."""

    framework: str
    text: str
    code: str


@dataclass(frozen=True)
class Cause:
    """A likely cause: ``text`` says it in a sentence or two, ``remedy`` names the fix."""

    text: str
    remedy: str


CAUSES: Mapping[str, Cause] = {
    "after_nonfinite": Cause(
        "The loss or gradients were NaN or infinite around the same steps: that comes first. One non-finite update "
        "poisons optimizer state, and what falls after it is a consequence.",
        "nonfinite",
    ),
    "after_scale_drop": Cause(
        "All gradients fell together around the same steps: look at what scales the loss before looking at layers.",
        "loss_scale",
    ),
    "lora_partner": Cause(
        "Only one half of the LoRA pairs collapsed. The gradient of lora_A is proportional to lora_B, and the other "
        "way round: when the partner's weights are driven to zero (a wrong learning rate or schedule, a strong weight "
        "decay on its parameter group), this half loses its gradient although nothing is wrong with it.",
        "group_settings",
    ),
    "parameter_group": Cause(
        "The collapsed layers are exactly one parameter group of the optimizer: look at the learning rate, the "
        "schedule and the weight decay of that group, and of the layers it is multiplied with.",
        "group_settings",
    ),
    "whole_blocks": Cause(
        "Everything in these blocks collapsed together: gradient no longer flows into them. A detached or "
        "no_grad branch, a gate or residual scale near zero, or weights behind them driven to zero would do that.",
        "flow",
    ),
    "unknown_fall": Cause(
        "Other layers of the same blocks are healthy, and nothing else was reported around these steps. Check first: "
        "learning rate and weight decay of the parameters these layers are multiplied with (a factor of zero leaves "
        "no gradient to the others), weights driven to zero further up, and branches that were detached.",
        "group_settings",
    ),
    "under_siblings": Cause(
        "These layers were small ever since anybody looked, while layers of the same kind are not: gradients vanish "
        "with depth, a gate or scale near zero stands before them, or they fell before the job was watched.",
        "flow",
    ),
    "under_threshold": Cause(
        "The gradient is under the threshold you gave, which is taken at its word; no other evidence was asked for.",
        "flow",
    ),
    "low_when_joined": Cause(
        "The gradient was already low when the job was joined. Whether it ever was higher cannot be known from here.",
        "flow",
    ),
    "converged": Cause(
        "The loss fell along with the gradients: the job converged, or the loss was divided by a larger number.",
        "loss_scale",
    ),
    "loss_rescaled": Cause(
        "All gradients fell by the same factor and the loss does not explain it. A changed loss weight, reduction or "
        "division, a scaler that no longer unscales, or a factor in front of the whole network would do that.",
        "loss_scale",
    ),
    "fp16_overflow": Cause(
        "Parameters or gradients are float16, whose largest value is 65504: anything above is infinite.",
        "fp16",
    ),
    "nonfinite_loss": Cause(
        "The loss itself became NaN or infinite: a bad sample, a log or division of zero in the loss, or weights that "
        "grew too far at this learning rate.",
        "nonfinite",
    ),
    "nonfinite_gradient": Cause(
        "Gradients became NaN or infinite while the loss was finite: the backward of some operation overflows or "
        "divides by zero (sqrt or norm at zero, a mask full of -inf, float16).",
        "nonfinite",
    ),
}

_GROUPS = "Print every parameter group with its learning rate and weight decay, and compare with what you meant."
_FLOW = (
    "Check that the layers still take part: requires_grad, no .detach() or torch.no_grad() around them, gates and "
    "scales in front of them away from zero. Weights behind them driven to zero stop their gradient as well."
)
_SCALE = "Check what multiplies or divides the loss, and whether that changed at this step."
_NONFINITE = (
    "Find the operation with torch.autograd.set_detect_anomaly(True) from a checkpoint just before; look at the "
    "batch of that step; lower the learning rate or clip."
)
_FP16 = "Train in bfloat16 or keep float32 weights with autocast and a GradScaler; float16 weights alone overflow."

_PRINT_GROUPS = "for i, g in enumerate(optimizer.param_groups): print(i, g['lr'], g['weight_decay'], len(g['params']))"
_AUTOCAST = "torch.autocast('cuda', torch.bfloat16)   # or float16 with torch.amp.GradScaler('cuda')"
_ADAPTERS = "get_peft_model(model, config, autocast_adapter_dtype=True)"
_PRINT_LAYERS = "for n, p in model.named_parameters(): print(n, p.requires_grad, float(p.detach().abs().max()))"

_TEXTS: Mapping[str, str] = {
    "group_settings": _GROUPS,
    "flow": _FLOW,
    "loss_scale": _SCALE,
    "nonfinite": _NONFINITE,
    "fp16": _FP16,
}

# Where a framework keeps the setting: the sentence that follows the general one, and the line to look at.
_WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "group_settings": {
        "pytorch": ("A scheduler sets each group's lr: its lr_lambda must name every group.", _PRINT_GROUPS),
        "transformers": (
            "The Trainer takes them from TrainingArguments, and groups come from Trainer.create_optimizer.",
            "TrainingArguments(learning_rate=..., weight_decay=..., lr_scheduler_type=...)",
        ),
        "accelerate": (
            "Prepare optimizer and scheduler together, so that the scheduler steps once per optimizer step.",
            "optimizer, scheduler = accelerator.prepare(optimizer, scheduler)\n" + _PRINT_GROUPS,
        ),
        "lightning": (
            "They are made in configure_optimizers; LearningRateMonitor shows each group.",
            "Trainer(callbacks=[LearningRateMonitor(log_weight_decay=True)])",
        ),
        "deepspeed": (
            "An optimizer or scheduler block in the DeepSpeed config replaces what the script built.",
            '{"optimizer": {"params": {"lr": ..., "weight_decay": ...}}, "scheduler": {...}}',
        ),
        "fsdp": (
            "Build the optimizer after fully_shard (or with use_orig_params=True), or groups lose their layers.",
            _PRINT_GROUPS,
        ),
        "peft": (
            "lora_A and lora_B need lr and weight decay that let both learn; LoRA+ gives them different rates.",
            "create_loraplus_optimizer(model, optimizer_cls=torch.optim.AdamW, lr=..., loraplus_lr_ratio=16)\n"
            + _PRINT_GROUPS,
        ),
        "diffusers": (
            "The training scripts take them as flags; adapters of unet and text encoder are groups of their own.",
            "--learning_rate=... --adam_weight_decay=... --lr_scheduler=...",
        ),
    },
    "flow": {
        "pytorch": ("", _PRINT_LAYERS),
        "transformers": (
            "Gradient checkpointing needs inputs that require grad.",
            "model.enable_input_require_grads()",
        ),
        "accelerate": ("Run the prepared model, not the one before prepare().", "model = accelerator.prepare(model)"),
        "lightning": ("toggle_optimizer and freeze() switch requires_grad off.", "self.untoggle_optimizer(optimizer)"),
        "deepspeed": ("Read gradients as ZeRO holds them.", "deepspeed.utils.safe_get_full_grad(p)"),
        "fsdp": ("Freeze whole units or use fully_shard: mixed units need use_orig_params=True.", _PRINT_LAYERS),
        "peft": (
            "Check which adapter is active: only an active, trainable adapter gets gradients.",
            "model.print_trainable_parameters(); print(model.active_adapters)",
        ),
        "diffusers": (
            "With gradient checkpointing on a frozen unet, the inputs of the adapters must require grad.",
            "unet.enable_gradient_checkpointing(); " + _PRINT_LAYERS,
        ),
    },
    "loss_scale": {
        "pytorch": ("Divide by the accumulation steps once.", "(loss / accumulation_steps).backward()"),
        "transformers": (
            "The Trainer divides by gradient_accumulation_steps itself; a compute_loss of yours must not.",
            "TrainingArguments(gradient_accumulation_steps=...)",
        ),
        "accelerate": (
            "accelerator.backward divides by gradient_accumulation_steps itself: do not divide again.",
            "accelerator.backward(loss)",
        ),
        "lightning": (
            "Automatic optimization divides by accumulate_grad_batches itself; with manual_backward it is yours.",
            "Trainer(accumulate_grad_batches=...)",
        ),
        "deepspeed": (
            "model_engine.backward divides by gradient_accumulation_steps itself; loss scaling is in the config.",
            '{"gradient_accumulation_steps": ..., "fp16": {"initial_scale_power": 16}}',
        ),
        "fsdp": (
            "Gradients are averaged over ranks; sum losses per token over ranks before dividing.",
            "(loss / accumulation_steps).backward()",
        ),
        "peft": ("lora_alpha / r multiplies every adapter.", "LoraConfig(r=..., lora_alpha=..., use_rslora=...)"),
        "diffusers": (
            "Min-SNR weighting and prior preservation rescale the loss.",
            "--snr_gamma=... --prior_loss_weight=...",
        ),
    },
    "nonfinite": {
        "pytorch": ("", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)"),
        "transformers": ("", "TrainingArguments(max_grad_norm=1.0, debug='underflow_overflow')"),
        "accelerate": ("", "if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), 1.0)"),
        "lightning": ("", "Trainer(detect_anomaly=True, gradient_clip_val=1.0)"),
        "deepspeed": ("", '{"gradient_clipping": 1.0, "bf16": {"enabled": true}}'),
        "fsdp": ("Clip over shards.", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        "peft": ("Keep adapter weights in float32.", _ADAPTERS),
        "diffusers": ("The SDXL VAE overflows in float16.", "--mixed_precision=bf16 --max_grad_norm=1.0"),
    },
    "fp16": {
        "pytorch": (
            "Where the sum over micro-steps is what overflows, it can be kept in float32.",
            f"{_AUTOCAST}\ngradcanary.fp32_accumulators(optimizer)   # the sum in float32",
        ),
        "transformers": ("", "TrainingArguments(bf16=True)"),
        "accelerate": ("", "Accelerator(mixed_precision='bf16')"),
        "lightning": ("", "Trainer(precision='bf16-mixed')"),
        "deepspeed": ("", '{"bf16": {"enabled": true}}'),
        "fsdp": ("", "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"),
        "peft": (
            "",
            f"{_ADAPTERS}\ngradcanary.fp32_accumulators(optimizer, 'lora')   # else: only the sum in float32",
        ),
        "diffusers": ("", "--mixed_precision=bf16"),
    },
}


def framework(name: str | None) -> str:
    """Return whose words to use for a framework as an agent reports it; plain PyTorch's when it is not known."""
    key = (name or "").lower().replace("-", "_").split(" ")[0]
    key = _ALIASES.get(key, key)
    return key if key in FRAMEWORKS else "pytorch"


def fix(cause: str, framework_name: str | None) -> Fix:
    """Return what to do about a cause, by its code, in the words of a framework."""
    remedy = CAUSES[cause].remedy
    whose = framework(framework_name)
    words, code = _WORDS[remedy][whose]
    return Fix(whose, f"{_TEXTS[remedy]} {words}".strip(), code)
