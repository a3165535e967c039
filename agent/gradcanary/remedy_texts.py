"""What to do about a cause, in words: the general ones, and what each framework calls it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

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

_PRINT_GROUPS = (
    "for i, g in enumerate(optimizer.param_groups): print(i, g['lr'], g.get('weight_decay'), len(g['params']))"
)
_AUTOCAST = "torch.autocast('cuda', torch.bfloat16)   # or float16 with torch.amp.GradScaler('cuda')"
_ADAPTERS = "get_peft_model(model, config, autocast_adapter_dtype=True)"
_PRINT_LAYERS = "for n, p in model.named_parameters(): print(n, p.requires_grad, float(p.detach().abs().max()))"

_UNSCALED_CLIP = "scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"

_EXPLOSION = (
    "Go back to a checkpoint before this step; lower the learning rate or warm it up longer; clip the total norm, "
    "after unscaling; look at the batches of these steps."
)
_UNUSED = (
    "Give the optimizer only what the loss uses, or switch requires_grad off for the rest. If it is meant to be used, "
    "check that the forward pass calls this very module."
)

_FP32_SUM = "Sum gradients in float32, or over fewer micro-steps."
_FP32_WEIGHTS = (
    "Keep float32 master weights under autocast, or use an optimizer that rounds stochastically or keeps what rounding "
    "takes away; a higher learning rate moves more of them, too."
)
_UNSCALE = "Unscale before the clip."
_FP16_SCALING = "Scale the loss (a GradScaler does), or train in bfloat16, which has the range of float32."

TEXTS: Mapping[str, str] = {
    "group_settings": _GROUPS,
    "flow": _FLOW,
    "loss_scale": _SCALE,
    "nonfinite": _NONFINITE,
    "fp16": _FP16,
    "explosion": _EXPLOSION,
    "unused": _UNUSED,
    "fp32_sum": _FP32_SUM,
    "fp32_weights": _FP32_WEIGHTS,
    "fp16_scaling": _FP16_SCALING,
    "unscale_first": _UNSCALE,
}

# Where a framework keeps the setting: the sentence that follows the general one, and the line to look at.
WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
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
    "explosion": {
        "pytorch": ("", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # after scaler.unscale_(optimizer)"),
        "transformers": ("", "TrainingArguments(max_grad_norm=1.0, warmup_steps=..., learning_rate=...)"),
        "accelerate": (
            "It unscales before it clips.",
            "if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        "lightning": ("", "Trainer(gradient_clip_val=1.0)"),
        "deepspeed": ("", '{"gradient_clipping": 1.0, "scheduler": {"type": "WarmupLR", "params": {...}}}'),
        "fsdp": (
            "The norm is that over all shards: of FSDP1 it takes model.clip_grad_norm_.",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        "peft": (
            "A large lora_alpha multiplies the learning rate.",
            "LoraConfig(r=..., lora_alpha=..., use_rslora=...)",
        ),
        "diffusers": ("", "--max_grad_norm=1.0 --lr_warmup_steps=..."),
    },
    "unused": {
        "pytorch": ("", "optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)"),
        "transformers": (
            "A pooler or a second head is often unused.",
            "AutoModel.from_pretrained(..., add_pooling_layer=False)",
        ),
        "accelerate": (
            "DDP can tell which they are.",
            "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])",
        ),
        "lightning": ("", "Trainer(strategy='ddp_find_unused_parameters_true')   # tells of them"),
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
        "pytorch": ("", "model.float(); torch.autocast('cuda', torch.bfloat16)"),
        "transformers": (
            "Load in float32 and let the Trainer cast.",
            "AutoModel.from_pretrained(..., dtype=torch.float32); TrainingArguments(bf16=True)",
        ),
        "accelerate": ("Load in float32.", "Accelerator(mixed_precision='bf16')"),
        "lightning": ("bf16-true has no master weights.", "Trainer(precision='bf16-mixed')"),
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
            "scaler.scale(loss).backward(); scaler.step(optimizer)   # scaler = torch.amp.GradScaler('cuda')",
        ),
        "transformers": ("", "TrainingArguments(bf16=True)   # fp16=True scales the loss"),
        "accelerate": ("", "Accelerator(mixed_precision='bf16')   # 'fp16' scales the loss"),
        "lightning": ("", "Trainer(precision='bf16-mixed')   # '16-mixed' scales the loss"),
        "deepspeed": ("", '{"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}}'),
        "fsdp": (
            "Of FSDP1 it takes a scaler of its own.",
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
        "fsdp": ("Of FSDP1 it takes a scaler of its own.", "ShardedGradScaler()\n" + _UNSCALED_CLIP),
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
    "See where every rank stands with py-spy dump: the one whose stack differs is the one that the others wait for. "
    "If it evaluates for so long, raise stalled.after_s in rules.yaml."
)

_STACKS = "py-spy dump --pid PID   # on every rank"

PROCESS_TEXTS: Mapping[str, str] = {"restart": _RESTART, "standstill": _STANDSTILL}

PROCESS_WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "restart": {
        "pytorch": (
            "",
            "model.load_state_dict(torch.load('last.pt')['model']); gradcanary.watch(run='NAME', step=...)",
        ),
        "transformers": ("", "trainer.train(resume_from_checkpoint=True)"),
        "accelerate": ("", "accelerator.load_state('checkpoints/last')"),
        "lightning": ("", "trainer.fit(model, ckpt_path='last')"),
        "deepspeed": ("", "model_engine.load_checkpoint('checkpoints')"),
        "fsdp": ("Each rank loads its shard.", "torch.distributed.checkpoint.load(state_dict, checkpoint_id='last')"),
        "peft": ("", "PeftModel.from_pretrained(model, 'last-adapter', is_trainable=True)"),
        "diffusers": ("", "--resume_from_checkpoint=latest"),
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
