"""What to do about a cause, in words: the general ones, and what each framework calls it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

_GROUPS = "Print every parameter group with its learning rate and weight decay, and compare with what you meant."
_PARTNER = (
    "Print the weights of the other half of these pairs; if they are close to zero, look for what shrinks them: the "
    "weight decay and the learning rate of their parameter group, or code that writes them."
)
_OWN_GRADIENT = (
    "Look for what changes these gradients alone: a hook on the parameter, or code between backward() and step() that "
    "scales or masks them."
)
_FLOW = (
    "Check that the parameters still take part: requires_grad is on, no .detach() or torch.no_grad() stands around "
    "them, and the forward pass calls them."
)
_NONFINITE = (
    "To find the operation, {back} and call torch.autograd.set_detect_anomaly(True). Look at the batch of that step. "
    "Where the optimizer made a step with such gradients, the weights are NaN, too."
)
_NONFINITE_LOSS = (
    "Look at the loss of the steps before, {back}, and find the operation with "
    "torch.autograd.set_detect_anomaly(True). If the loss did not rise, look at the batch of that step: a log or a "
    "division of zero, or a bad sample. If it rose, look at the optimizer's settings."
)
_WHOLE_MODEL = (
    "Print the size of the weights and the optimizer's settings before and after this step. If both are unchanged, "
    "check what multiplies or divides the loss. If they are not, {back}."
)
_DEPTH = (
    "Print the gradients from the first layer to the last. If they shrink from layer to layer, they vanish with depth: "
    "use ReLU or GELU in the place of sigmoid or tanh, normalisation, residual connections, or an initialisation that "
    "fits the activation. If not, look for a gate or scale near zero before these parameters."
)
_SMALL = (
    "Compare a step before this one with one after it: the inputs, the output of each layer, and the size of the "
    "weights. What differs between the two steps is the cause: data that changed their scale, an activation or a "
    "softmax that is saturated, a gate or weights near zero. With zero_grad(set_to_none=False) a detached "
    "branch looks the same."
)
_OPTIMIZER_PARAMETERS = (
    "Give these parameters to an optimizer: make it when the model is complete, of all parameters that should train, "
    "or add them with add_param_group. If they should stay as they are, freeze them: their gradients cost time and "
    "memory."
)
_FACTOR = (
    "Print the weights and the output of each layer: an activation that is zero for every input needs another bias, "
    "initialisation or form. If weights are zero, initialise them with other values, and check that the optimizer "
    "holds them."
)
_CLEAR_GRADIENTS = (
    "Call zero_grad() of the optimizer that holds these parameters after each of its steps, and start again: the "
    "weights and the optimizer's averages come from the wrong sums."
)
_ZERO_FACTOR = (
    "Print what these parameters are multiplied with: gates, masks, weights of the loss, and the weights behind them. "
    "What is exactly zero on purpose must change by itself: check that it is trainable and in the optimizer. Otherwise "
    "give it another value. Nothing is wrong if the loss should not depend on these parameters."
)
_FALLING_FACTOR = (
    "Nothing to fix if a loss weight or a schedule of yours falls so, and is meant to. Otherwise look at the weights "
    "and inputs that these parameters are multiplied with, and at the weight decay of their parameter groups."
)
_CONVERGED = (
    "Nothing to fix if the loss came down over many steps. If it fell in a single step, compare how it is computed "
    "before and after that step."
)
_MEANT = "Nothing to fix if that was meant. Otherwise set requires_grad to True for these parameters again."
_FP16 = (
    "Train in bfloat16, or keep float32 weights with autocast and a GradScaler, and {back}. Weights in float16 alone "
    "overflow."
)

_PRINT_GROUPS = (
    "for i, g in enumerate(optimizer.param_groups): print(i, g['lr'], g.get('weight_decay'), len(g['params']))"
)
_AUTOCAST = "torch.autocast(next(model.parameters()).device.type, torch.bfloat16)"
_OR_MASTERS = "gradcanary.fp32_masters(optimizer)   # or: right after the optimizer is made"
_SCALER = "scaler = torch.amp.GradScaler(next(model.parameters()).device.type)"
_DETECT_ANOMALY = "torch.autograd.set_detect_anomaly(True)"
_PRINT_SETTINGS = "for g in optimizer.param_groups: print({k: v for k, v in g.items() if k != 'params'})"
_PRINT_GRADIENTS = (
    "for n, p in model.named_parameters(): print(n, None if p.grad is None else float(p.grad.detach().abs().max()))"
)
_PRINT_HELD = (
    "held = {id(p) for g in optimizer.param_groups for p in g['params']}\n"
    "for n, p in model.named_parameters(): print(n, id(p) in held, float(p.detach().abs().max()))"
)
_PRINT_TRAINABLE = "for n, p in model.named_parameters(): print(n, p.requires_grad)"
_PRINT_UNHELD = (
    "held = {id(p) for g in optimizer.param_groups for p in g['params']}\n"
    "print([n for n, p in model.named_parameters() if id(p) not in held])"
)
_ADAPTERS = "get_peft_model(model, config, autocast_adapter_dtype=True)"
_PRINT_LAYERS = "for n, p in model.named_parameters(): print(n, p.requires_grad, float(p.detach().abs().max()))"

_PRINT_NORM = (
    "print(sum(float(p.grad.norm()) ** 2 for p in model.parameters() if p.grad is not None) ** 0.5)   # before the step"
)
_PRINT_WEIGHTS = "for n, p in model.named_parameters(): print(n, float(p.detach().abs().max()))"

_PRINT_HOOKS = "for n, p in model.named_parameters(): print(n, p._backward_hooks, p._post_accumulate_grad_hooks)"

_UNSCALED_CLIP = "scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"

_EXPLOSION = (
    "If nothing clips yet, clip the total norm; look at the loss and the batches of these steps, and where the loss "
    "has not come down to its level again, {back}. If it happens again, lower the learning rate or warm it up longer."
)
_DIVERGING = (
    "Compare the batch of this step with those before, print the optimizer's settings, correct what is wrong, and "
    "{back}, where the loss was still low. If the batch is like the others, a learning rate or momentum may be "
    "too high. If nothing is wrong and nothing clips yet, clip the total norm."
)
_UNUSED = (
    "Compare the parameters of the optimizer with those of the model. Make the optimizer when the model is "
    "complete, of the parameters that the loss uses. If these are meant to be used, check that the forward pass "
    "calls this very module."
)

_FP32_SUM = "Sum gradients in float32, or over fewer micro-steps."
_FP32_WEIGHTS = (
    "Keep these weights in float32, under autocast; where they have to stay as they are, let the optimizer step "
    "float32 copies of them. Rounding them stochastically takes less memory. If they still stand still, print the norm "
    "of the gradients right before optimizer.step(): it may be close to zero."
)
_CLIP_LIMIT = (
    "Print the limit of the clip (max_norm) and the norm of the gradients before it, and raise the limit to a norm "
    "that only outliers reach: 1 is usual."
)
_LOST_UPDATE = (
    "Look for code of the loop that writes weights: load_state_dict, copy_, .data, a swap with averaged weights. "
    "Compare a weight before optimizer.step(), after it, and when the next step begins."
)
_RATE_ZERO = (
    "If it is not meant, set the learning rate of this group, or of its schedule. If these parameters should stay as "
    "they are, freeze them with requires_grad_(False)."
)
_CANNOT_MOVE = "Raise the learning rate, or scale the weights down. Float64 weights have room for such steps as well."
_UNMOVED = (
    "Print the norm of the gradients right before optimizer.step(), and the optimizer's settings. If the norm is zero "
    "or tiny, look for what clears or scales gradients before the step. If not, compare a weight before and after it."
)
_EPSILON = "Set eps back to its default, 1e-8 for Adam, or far under the size of the gradients."
_FP32_MOMENTS = "Keep the optimizer's states in float32, as they are where the weights are float32 under autocast."
_UNSCALE = "Unscale before the clip."
_FP16_SCALING = "Scale the loss (a GradScaler does), or train in bfloat16, which has the range of float32."

_WEIGHT_DECAY = (
    "Set the weight decay right, and {back}. 0.01 to 0.1 is usual, and lr * weight_decay stays far below 1: weights "
    "that it took do not come back by themselves."
)
_RATE_WITH_DECAY = (
    "Set the learning rate right, and {back}. 1e-5 to 1e-3 is usual for Adam and its kin, and lr * weight_decay stays "
    "far below 1."
)
_MOMENTUM = "Set the momentum right, and {back}. 0.9 to 0.99 is usual."
_RATE_BACK = (
    "Set the learning rate of that step right, in the schedule or in the script, and {back}. Weights that were driven "
    "far away do not come back by themselves."
)

TEXTS: Mapping[str, str] = {
    "weight_decay": _WEIGHT_DECAY,
    "rate_with_decay": _RATE_WITH_DECAY,
    "momentum": _MOMENTUM,
    "rate_back": _RATE_BACK,
    "group_settings": _GROUPS,
    "partner_weights": _PARTNER,
    "own_gradient": _OWN_GRADIENT,
    "flow": _FLOW,
    "whole_model": _WHOLE_MODEL,
    "depth": _DEPTH,
    "small": _SMALL,
    "factor": _FACTOR,
    "clear_gradients": _CLEAR_GRADIENTS,
    "optimizer_parameters": _OPTIMIZER_PARAMETERS,
    "zero_factor": _ZERO_FACTOR,
    "falling_factor": _FALLING_FACTOR,
    "converged": _CONVERGED,
    "meant": _MEANT,
    "diverging": _DIVERGING,
    "nonfinite_loss": _NONFINITE_LOSS,
    "nonfinite": _NONFINITE,
    "fp16": _FP16,
    "explosion": _EXPLOSION,
    "unused": _UNUSED,
    "fp32_sum": _FP32_SUM,
    "fp32_weights": _FP32_WEIGHTS,
    "fp32_moments": _FP32_MOMENTS,
    "clip_limit": _CLIP_LIMIT,
    "lost_update": _LOST_UPDATE,
    "rate_zero": _RATE_ZERO,
    "cannot_move": _CANNOT_MOVE,
    "unmoved": _UNMOVED,
    "epsilon": _EPSILON,
    "fp16_scaling": _FP16_SCALING,
    "unscale_first": _UNSCALE,
}

CODE: Mapping[str, str] = {
    "weight_decay": _PRINT_SETTINGS,
    "rate_with_decay": _PRINT_SETTINGS,
    "momentum": _PRINT_SETTINGS,
    "rate_back": _PRINT_SETTINGS,
    "whole_model": f"{_PRINT_WEIGHTS}\n{_PRINT_SETTINGS}",
    "depth": _PRINT_GRADIENTS,
    "small": _PRINT_WEIGHTS,
    "partner_weights": _PRINT_WEIGHTS,
    "own_gradient": _PRINT_HOOKS,
    "factor": _PRINT_HELD,
    "optimizer_parameters": _PRINT_UNHELD,
    "fp32_moments": "for s in optimizer.state.values(): print({k: getattr(v, 'dtype', v) for k, v in s.items()})",
    "clip_limit": "print(torch.nn.utils.clip_grad_norm_(model.parameters(), float('inf')))   # the norm, unclipped",
    "clear_gradients": "optimizer.step(); optimizer.zero_grad()",
    "zero_factor": _PRINT_HELD,
    "falling_factor": _PRINT_WEIGHTS,
    "lost_update": _PRINT_WEIGHTS,
    "rate_zero": "for i, g in enumerate(optimizer.param_groups): print(i, g['lr'], len(g['params']))",
    "cannot_move": _PRINT_SETTINGS,
    "unmoved": f"{_PRINT_NORM}\n{_PRINT_SETTINGS}",
    "epsilon": _PRINT_SETTINGS,
    "converged": "",
    "meant": _PRINT_TRAINABLE,
    "diverging": _PRINT_SETTINGS,
    "nonfinite_loss": _DETECT_ANOMALY,
    "nonfinite": _DETECT_ANOMALY,
    "metric": "for path in ('before.pt', 'last.pt'): print(path, evaluate(load(path), tags=...))",
}
"""Lines for frameworks without their own in ``WORDS``; empty where nothing is to be typed."""

# Where a framework keeps the setting: the sentence that follows the general one, and the line to look at.
WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "group_settings": {
        "pytorch": ("", _PRINT_GROUPS),
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
            "Build the optimizer after fully_shard (or with use_orig_params=True), or groups lose their parameters.",
            _PRINT_GROUPS,
        ),
        "peft": (
            "lora_A and lora_B need lr and weight decay that let both learn; LoRA+ can give them different rates.",
            _PRINT_GROUPS,
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
        "lightning": ("toggle_optimizer and freeze() switch requires_grad off.", _PRINT_LAYERS),
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
    "nonfinite": {
        "transformers": ("", "TrainingArguments(debug='underflow_overflow')"),
        "lightning": ("", "Trainer(detect_anomaly=True)"),
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
    "explosion": {
        "pytorch": ("", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        "transformers": ("", "TrainingArguments(max_grad_norm=1.0, warmup_steps=..., learning_rate=...)"),
        "accelerate": (
            "It unscales before it clips.",
            "if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        "lightning": ("", "Trainer(gradient_clip_val=1.0)"),
        "deepspeed": ("", '{"gradient_clipping": 1.0, "scheduler": {"type": "WarmupLR", "params": {...}}}'),
        "fsdp": (
            "The norm is that over all shards. With FSDP1 use model.clip_grad_norm_().",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        "peft": (
            "A large lora_alpha multiplies the learning rate.",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        "diffusers": ("", "--max_grad_norm=1.0 --lr_warmup_steps=..."),
    },
    "unused": {
        "pytorch": ("", _PRINT_HELD),
        "transformers": (
            "A pooler or a second head is often unused.",
            "AutoModel.from_pretrained(..., add_pooling_layer=False)",
        ),
        "accelerate": (
            "DDP can list the unused parameters:",
            "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])",
        ),
        "lightning": ("", "Trainer(strategy='ddp_find_unused_parameters_true')   # lists them"),
        "deepspeed": ("", "model_engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=used)"),
        "fsdp": ("Build the optimizer after fully_shard.", "fully_shard(model); optimizer = torch.optim.AdamW(used)"),
        "peft": (
            "Only the active adapter is used; target_modules may name modules that the forward pass leaves out.",
            "model.set_adapter('default'); model.print_trainable_parameters()",
        ),
        "diffusers": (
            "Give the optimizer no parameters of a text encoder that is not trained.",
            "optimizer = torch.optim.AdamW([p for p in unet.parameters() if p.requires_grad])",
        ),
    },
    "fp32_sum": {
        "pytorch": ("", "gradcanary.fp32_accumulators(optimizer)"),
        "transformers": (
            "In a callback, once the optimizer is there.",
            "gradcanary.fp32_accumulators(optimizer)   # in on_train_begin(..., optimizer=None, **kwargs)",
        ),
        "accelerate": ("", "gradcanary.fp32_accumulators(accelerator.prepare(optimizer))"),
        "lightning": ("", "gradcanary.fp32_accumulators(self.optimizers())   # in on_train_start"),
        "deepspeed": ("", '{"data_types": {"grad_accum_dtype": "fp32"}}'),
        "fsdp": ("", "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"),
        "peft": ("The adapters alone are cheap.", "gradcanary.fp32_accumulators(optimizer, 'lora')"),
        "diffusers": ("Trainable weights belong in float32.", "cast_training_params(unet, dtype=torch.float32)"),
    },
    "fp32_weights": {
        "pytorch": ("", f"model.float(); {_AUTOCAST}\n{_OR_MASTERS}"),
        "transformers": (
            "Load in float32 and let the Trainer cast.",
            (
                "AutoModel.from_pretrained(..., dtype=torch.float32); TrainingArguments(bf16=True)\n"
                f"{_OR_MASTERS}, before Trainer(optimizers=(optimizer, None))"
            ),
        ),
        "accelerate": (
            "Load in float32.",
            f"Accelerator(mixed_precision='bf16')\n{_OR_MASTERS}",
        ),
        "lightning": (
            "bf16-true has no master weights.",
            f"Trainer(precision='bf16-mixed')\n{_OR_MASTERS}, in configure_optimizers",
        ),
        "deepspeed": ("Its bf16 mode keeps them.", '{"bf16": {"enabled": true}}'),
        "fsdp": (
            "Give it float32 parameters.",
            "fully_shard(model.float(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))",
        ),
        "peft": ("Adapter weights in float32 cost little.", _ADAPTERS),
        "diffusers": ("Trainable weights belong in float32.", "cast_training_params(unet, dtype=torch.float32)"),
    },
    "fp16_scaling": {
        "pytorch": (
            "",
            f"{_SCALER}\nscaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
        ),
        "transformers": ("", "TrainingArguments(bf16=True)   # fp16=True scales the loss"),
        "accelerate": ("", "Accelerator(mixed_precision='bf16')   # 'fp16' scales the loss"),
        "lightning": ("", "Trainer(precision='bf16-mixed')   # '16-mixed' scales the loss"),
        "deepspeed": ("", '{"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}}'),
        "fsdp": (
            "FSDP1 needs ShardedGradScaler.",
            "ShardedGradScaler()   # torch.distributed.fsdp.sharded_grad_scaler",
        ),
        "peft": ("Adapter weights in float32 need autocast and a scaler.", _ADAPTERS),
        "diffusers": ("", "--mixed_precision=bf16"),
    },
    "unscale_first": {
        "pytorch": ("", _UNSCALED_CLIP),
        "transformers": (
            "The Trainer does; a training_step of yours must not clip by itself.",
            "TrainingArguments(max_grad_norm=1.0)",
        ),
        "accelerate": (
            "Its own clip unscales; that of torch does not.",
            "if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        "lightning": (
            "Clipping of its own comes after unscaling; in manual optimization that is yours.",
            "Trainer(gradient_clip_val=1.0)",
        ),
        "deepspeed": ("The engine clips after it has unscaled.", '{"gradient_clipping": 1.0}'),
        "fsdp": ("FSDP1 needs ShardedGradScaler.", "ShardedGradScaler()\n" + _UNSCALED_CLIP),
        "peft": ("", _UNSCALED_CLIP),
        "diffusers": (
            "Their scripts clip through Accelerate, which unscales.",
            "if accelerator.sync_gradients: accelerator.clip_grad_norm_(params, args.max_grad_norm)",
        ),
    },
}

_RESTART = (
    "Look at how the process ended: the scheduler's record (sacct, kubectl describe pod), dmesg for 'Out of memory', "
    "the end of its log. Start it again from its last checkpoint under the same run name."
)
_STANDSTILL = (
    "See where every rank stands with py-spy dump: the rank with the different stack is the one the others wait for. "
    "If it evaluates for so long, raise stalled.after_s in rules.yaml."
)

_STACKS = "py-spy dump --pid PID   # on every rank"

_EXCEPTION = (
    "Read the traceback at the end of the job's log; the first frame here is the last line of your own code in it. "
    "Then start again from the last checkpoint under the same run name."
)
_OUT_OF_MEMORY = (
    "Look at the sizes in the frames first: one long sample can be the reason. Smaller batches, shorter sequences or "
    "smaller inputs take less memory, and so does activation checkpointing. If memory grew from step to step, "
    "something keeps every step's graph: store loss.item(), not the loss."
)

_METRIC = (
    "Evaluate the last checkpoint before this step once more, and look at its samples beside present ones. If its "
    "number is bad now, too, the evaluation or its data changed. If it is as good as it "
    "was, the model did: compare the data with these tags, and the settings that changed, around this step."
)

PROCESS_TEXTS: Mapping[str, str] = {
    "restart": _RESTART,
    "standstill": _STANDSTILL,
    "exception": _EXCEPTION,
    "out_of_memory": _OUT_OF_MEMORY,
    "metric": _METRIC,
}

_RESUME: Mapping[str, tuple[str, str]] = {
    "pytorch": ("", "model.load_state_dict(torch.load('last.pt')['model']); gradcanary.watch(run='NAME', step=...)"),
    "transformers": ("", "trainer.train(resume_from_checkpoint=True)"),
    "accelerate": ("", "accelerator.load_state('checkpoints/last')"),
    "lightning": ("", "trainer.fit(model, ckpt_path='last')"),
    "deepspeed": ("", "model_engine.load_checkpoint('checkpoints')"),
    "fsdp": ("Each rank loads its shard.", "torch.distributed.checkpoint.load(state_dict, checkpoint_id='last')"),
    "peft": ("", "PeftModel.from_pretrained(model, 'last-adapter', is_trainable=True)"),
    "diffusers": ("", "--resume_from_checkpoint=latest"),
}

PROCESS_WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "restart": _RESUME,
    "exception": _RESUME,
    "out_of_memory": {
        "pytorch": ("", "torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)"),
        "transformers": ("", "TrainingArguments(per_device_train_batch_size=..., gradient_checkpointing=True)"),
        "accelerate": (
            "Accelerate can look for a batch size that fits.",
            "@accelerate.utils.find_executable_batch_size(starting_batch_size=...)",
        ),
        "lightning": ("", "torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)"),
        "deepspeed": ("", '{"train_micro_batch_size_per_gpu": ..., "zero_optimization": {"stage": 2}}'),
        "fsdp": ("", "apply_activation_checkpointing(model)   # before fully_shard()"),
        "peft": ("", "model.gradient_checkpointing_enable()"),
        "diffusers": ("", "--train_batch_size=... --gradient_checkpointing"),
    },
    "standstill": {
        "pytorch": ("A timeout ends a collective that hangs.", f"init_process_group(timeout=...)\n{_STACKS}"),
        "transformers": (
            "It evaluates and saves between two steps; ddp_timeout ends a collective that hangs.",
            f"TrainingArguments(ddp_timeout=600, eval_steps=...)\n{_STACKS}",
        ),
        "accelerate": (
            "A timeout ends a collective that hangs.",
            f"Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=10))])\n{_STACKS}",
        ),
        "lightning": (
            "It validates between two steps; a timeout ends a collective that hangs.",
            f"Trainer(strategy=DDPStrategy(timeout=timedelta(minutes=10)), limit_val_batches=...)\n{_STACKS}",
        ),
        "deepspeed": (
            "A timeout ends a collective that hangs.",
            f"deepspeed.init_distributed(timeout=timedelta(minutes=10))\n{_STACKS}",
        ),
        "fsdp": (
            "All ranks must take part in each forward pass, also in an evaluation.",
            f"init_process_group(timeout=...)\n{_STACKS}",
        ),
        "peft": ("", _STACKS),
        "diffusers": (
            "The training scripts make validation images between two steps.",
            f"--validation_epochs=...\n{_STACKS}",
        ),
    },
}
