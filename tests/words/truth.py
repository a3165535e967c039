"""What really happens in each of the 24 jobs; of 20 written from the README and issue 13 before any run of the product.

The truth of ``healthy_cosine_end``, ``rate_of_a_group``, ``rate_put_back`` and ``decay_of_a_group`` came later, and is
held against each incident of the job: its cause and what to do first.

The numbers of the loss are those of the plain run (``python -m words.jobs NAME --plain FACTS.json``).

Errors of the truth, corrected after the first run of the product (all other lines are as they were before it):

- the claim that the loss "rose" matched across a comma, where something else grew;
- head_replaced: the old head, which only the optimizer holds, has no gradient, so ``unused`` may open on the page, and
  no model can name it; ``if p.requires_grad`` in a new optimizer's line mends the job, only switching it is false;
- lr_times_6000: a fix that prints weight decay beside the learning rate is not false;
- a job without a scheduler has no ``lr_lambda``: this was set up as a fact and not held against the words.
"""

from words.claims import (
    BF16_FINDINGS,
    CLIPPING,
    CRASH,
    DETACHED,
    FROZEN_FLAG,
    IN_VAIN,
    LOWER_RATE,
    NO_OPTIMIZER,
    RAISE_RATE,
    RATE_ROSE,
    WEIGHT_DECAY,
    Loss,
    Setup,
    Truth,
    claims,
    rules,
)

HEALTHY = {
    "healthy_finetune": Truth(
        faulty=False,
        story="4 of 6 parameters are frozen on purpose; the new head learns, at a constant rate, and nothing is wrong.",
        messages=0,
        loss=Loss(course="fell", marks={0: 2.32, 40: 0.556, 200: 0.221, 390: 0.213}, claims=claims("fell")),
        ambiguities=("That 4 of 6 parameters are frozen may be stated as a fact; it is not a fault.",),
    ),
    "healthy_gan": Truth(
        faulty=False,
        story=(
            "Two models keep each other in balance: the generator's loss stays near 0.9, the discriminator's near 1.2."
        ),
        messages=0,
        setup=Setup(optimizers=2),
        loss=Loss(course="wandered", marks={0: 0.741, 40: 1.24, 200: 0.919, 390: 0.906}, claims=claims("flat")),
    ),
    "healthy_warmup": Truth(
        faulty=False,
        story=(
            "Gradients inside the blocks begin at zero, and the rate rises for 150 steps; it falls to"
            " a tenth by the end."
        ),
        messages=0,
        setup=Setup(clips_at=1.0, accumulation_steps=4, scheduler=True),
        loss=Loss(course="fell", marks={0: 3.49, 100: 0.816, 250: 0.639, 490: 0.645}, claims=claims("fell")),
    ),
    "healthy_converged": Truth(
        faulty=False,
        story="A fit without noise converges: loss and all gradients fall together by decades, slowly.",
        messages=0,
        may=rules("scale_drop"),
        setup=Setup(scheduler=True),
        loss=Loss(course="fell", marks={0: 0.431, 300: 5.27e-07, 750: 4.84e-11, 1490: 1.57e-12}, claims=claims("fell")),
        ambiguities=("scale_drop as information is the README's own word for this; a person must not be told.",),
    ),
    "healthy_teacher": Truth(
        faulty=False,
        story="A student learns under autocast; its teacher is a frozen copy that follows as a moving average.",
        messages=0,
        setup=Setup(low_precision=True),
        loss=Loss(course="fell", marks={0: 2.98, 200: 0.937, 390: 0.263}, claims=claims("fell")),
    ),
    "healthy_cosine_end": Truth(
        faulty=False,
        story="A resumed job ends its cosine: the rate goes from 3e-7 to 0, and the weights stand still in the end.",
        messages=0,
        setup=Setup(scheduler=True),
        loss=Loss(course="flat", marks={}, claims=claims("flat")),
    ),
}

SETUP_MISTAKES = {
    "lr_times_6000": Truth(
        faulty=True,
        story=(
            "At step 200 the learning rate of both groups goes from 0.0015 to 9, 6,000 times as much, and stays there."
        ),
        messages=1,
        since=range(200, 260),
        told=rules("explosion", "nonfinite", "scale_drop", "collapse", "vanished"),
        may=rules("explosion", "scale_drop", "collapse", "vanished"),
        parameters=(r"(features\.[03]|head)\.(weight|bias)",),
        cause="The learning rate of all groups rose 6,000 times at step 200, from 0.0015 to 9.",
        true_causes=(r"(learning rate|\blr\b).*(6[,. ]?000|\b9(\.0)?\b|0?\.0015|1\.5e-0?3)",),
        false_causes=(WEIGHT_DECAY, CLIPPING, r"momentum", NO_OPTIMIZER, DETACHED, FROZEN_FLAG, r"bad batch|\bdata\b"),
        fix="Set the learning rate of step 200 right (9e-4), and start again from a checkpoint before step 200.",
        true_fixes=(LOWER_RATE, r"(learning rate|\blr\b|schedul)", r"checkpoint"),
        false_fixes=(RAISE_RATE, NO_OPTIMIZER, FROZEN_FLAG),
        loss=Loss(
            course="0.039 until step 200, 48,053 at step 201, and about 3 from then on: 75 times as much as before",
            marks={190: 0.0537, 202: 7.1, 240: 4.26, 390: 2.99},
            claims=claims("rose"),
        ),
        ambiguities=(
            "Gradients grow 20,000 times at step 201 and are zero from step 202 on (dead ReLUs), but for head.bias.",
        ),
    ),
    "weight_decay_1e5": Truth(
        faulty=True,
        story=(
            "At step 200 weight decay goes from 0 to 1e5. With the constant learning rate of 1e-5,"
            " AdamW then multiplies"
            " each weight by 1 - 1e-5 * 1e5 = 0 at each step: the model forgets all, and its gradients all but end."
        ),
        messages=1,
        since=range(200, 260),
        told=rules("scale_drop", "collapse", "vanished"),
        may=rules("scale_drop", "collapse", "vanished", "explosion"),
        parameters=(r"(embed|head|norm|blocks\..*)\.(weight|bias)|embed\.weight",),
        cause="Weight decay rose from 0 to 100,000 at step 200; the learning rate did not change.",
        true_causes=(WEIGHT_DECAY,),
        false_causes=(RATE_ROSE, CLIPPING, r"momentum", NO_OPTIMIZER, DETACHED, FROZEN_FLAG, r"saturat"),
        fix="Set weight decay right (1e-5), and start again from a checkpoint before step 200.",
        true_fixes=(WEIGHT_DECAY,),
        false_fixes=(LOWER_RATE, RAISE_RATE, NO_OPTIMIZER, FROZEN_FLAG),
        loss=Loss(
            course="rose and stayed", marks={0: 0.617, 190: 0.61, 210: 3.47, 390: 3.47}, claims=claims("rose", "flat")
        ),
        ambiguities=("The loss rises at once and is flat from then on: both may be said, in this order.",),
    ),
    "lora_b_not_optimized": Truth(
        faulty=True,
        story=(
            "The four lora_B are trainable and receive gradients, and no optimizer holds them. They"
            " stay zero, so the four"
            " lora_A have gradients of exactly zero all along, and nothing in the model moves."
        ),
        messages=1,
        since=range(60),
        told=rules("not_optimized"),
        may=rules("collapse", "vanished", "unused"),
        parameters=(r"blocks\.[01]\.attention\.(qkv|proj)\.lora_[AB]",),
        cause="lora_B is in no optimizer.",
        true_causes=(NO_OPTIMIZER,),
        false_causes=(RATE_ROSE, r"learning rate", WEIGHT_DECAY, CLIPPING, DETACHED, r"saturat|\bdead\b|\bReLU"),
        fix="Give the optimizer lora_B, too.",
        true_fixes=(r"optimizer|param_group",),
        false_fixes=(r"LoRA\+", LOWER_RATE, RAISE_RATE, r"requires_grad", WEIGHT_DECAY),
        setup=Setup(adapters=True),
        loss=Loss(course="flat", marks={0: 5.67, 150: 5.58, 290: 5.66}, claims=claims("flat")),
        ambiguities=(
            "lora_A's gradients of zero are true and follow from lora_B; lora_A alone as the cause is false.",
            "The other parameters are frozen on purpose; as a fact that is true.",
        ),
    ),
    "head_replaced": Truth(
        faulty=True,
        story=(
            "The optimizer holds the old head, which the model does not have any more. The new"
            " head.weight and head.bias"
            " receive gradients and never move; the loss falls all the same, because the backbone learns to fit them."
        ),
        messages=1,
        since=range(60),
        told=rules("not_optimized"),
        may=rules("unused"),
        parameters=(r"head\.(weight|bias)", r"group0\.[45]"),
        cause="head.weight and head.bias are in no optimizer: it was made before the head was replaced.",
        true_causes=(NO_OPTIMIZER,),
        false_causes=(RATE_ROSE, WEIGHT_DECAY, CLIPPING, DETACHED, FROZEN_FLAG, r"saturat|\bdead\b"),
        fix="Make the optimizer after the head was replaced, or add_param_group the new head.",
        true_fixes=(r"optimizer|param_group",),
        false_fixes=(LOWER_RATE, RAISE_RATE, r"requires_grad (off|on)|requires_grad_\(|requires_grad ="),
        loss=Loss(course="fell", marks={0: 2.07, 200: 1.26, 390: 0.959}, claims=claims("fell")),
    ),
    "gan_wrong_optimizer": Truth(
        faulty=True,
        story=(
            "Both optimizers hold the discriminator. The generator's six parameters receive gradients"
            " and never move, and"
            " the second optimizer undoes what the first one taught the discriminator."
        ),
        messages=1,
        since=range(60),
        told=rules("not_optimized"),
        parameters=(r"(?i)generator\.layers\.[024]\.(weight|bias)",),
        cause="All parameters of the generator are in no optimizer.",
        true_causes=(NO_OPTIMIZER,),
        false_causes=(RATE_ROSE, WEIGHT_DECAY, CLIPPING, DETACHED, FROZEN_FLAG, r"mode collapse", r"#\d"),
        fix="Make the second optimizer of generator.parameters().",
        true_fixes=(r"optimizer|param_group",),
        false_fixes=(LOWER_RATE, RAISE_RATE, r"requires_grad"),
        setup=Setup(optimizers=2),
        loss=Loss(
            course="the generator's rose from 0.67 to 0.78, the discriminator's fell from 1.43 to 0.63; no loss tells",
            marks={0: 0.669, 200: 0.788, 390: 0.781},
            claims=claims("fell", "flat", "rose"),
        ),
        ambiguities=(
            "The generator is called by its class (Generator) or its variable (generator): both are its model's name.",
        ),
    ),
    "momentum_09999999": Truth(
        faulty=True,
        story=(
            "SGD's momentum is 0.9999999 from the start: the velocity adds up all gradients, the"
            " weights overshoot more and"
            " more, and everything is NaN from step 130 on. With 0.9 the same loop learns."
        ),
        messages=1,
        since=range(60, 140),
        told=rules("explosion", "nonfinite", "scale_drop", "collapse", "vanished"),
        may=rules("explosion", "scale_drop", "collapse", "vanished"),
        parameters=(r"[02468]\.(weight|bias)",),
        cause="A momentum of 0.9999999 with a learning rate of 0.1, both since the start.",
        true_causes=(r"momentum",),
        false_causes=(
            r"(learning rate|\blr\b).*\b(rose|jump\w*|grew|spike\w*|was raised|changed)",
            WEIGHT_DECAY,
            CLIPPING,
            NO_OPTIMIZER,
            DETACHED,
            FROZEN_FLAG,
        ),
        fix="Set momentum to 0.9.",
        true_fixes=(r"momentum",),
        false_fixes=(RAISE_RATE, NO_OPTIMIZER, FROZEN_FLAG),
        loss=Loss(
            course="fell to 0.11, swung and rose from step 80 on, 2.5e15 at step 129, NaN since step 130",
            marks={0: 0.865, 40: 0.137, 80: 0.846},
            claims=claims("rose", "nan"),
        ),
    ),
    "bf16_clip_1e9": Truth(
        faulty=True,
        story=(
            "Gradients are healthy when backward has made them, and are clipped to a norm of 1e-9. AdamW's step of some"
            " 1e-6 is far below half of the distance of two bfloat16 numbers, so no weight but a few near zero moves."
        ),
        messages=1,
        since=range(150),
        told=rules(*IN_VAIN),
        may=rules(*BF16_FINDINGS),
        parameters=(r"(embed|head|norm|blocks\..*)\.(weight|bias)",),
        cause="Gradients are clipped at 1e-9.",
        true_causes=(CLIPPING,),
        false_causes=(RATE_ROSE, r"learning rate.*too (small|low)", WEIGHT_DECAY, NO_OPTIMIZER, DETACHED, FROZEN_FLAG),
        fix="Clip at 1.",
        true_fixes=(CLIPPING, r"max_norm"),
        false_fixes=(LOWER_RATE, RAISE_RATE, r"fp32_accumulators", NO_OPTIMIZER, r"requires_grad"),
        setup=Setup(clips_at=1e-9, low_precision=True),
        loss=Loss(course="flat", marks={0: 3.76, 200: 3.73, 390: 3.73}, claims=claims("flat")),
        ambiguities=(
            "Master weights in float32 would let the weights move by 1e-6 a step: not false, but no cure.",
            "frozen, the rule of the README, is not frozen in the sense of requires_grad.",
        ),
    ),
    "bf16_small_lr": Truth(
        faulty=True,
        story=(
            "A step of AdamW at 1e-7 is far below half of the distance of two bfloat16 numbers:"
            " rounding undoes it, nearly"
            " no weight moves, and the new task is not learned."
        ),
        messages=1,
        since=range(150),
        told=rules(*IN_VAIN),
        may=rules(*BF16_FINDINGS),
        parameters=(r"(embed|head|norm|blocks\..*)\.(weight|bias)",),
        cause="The learning rate of 1e-7 is too small to move weights in bfloat16.",
        true_causes=(r"bfloat16|\bbf16\b|rounding|rounded",),
        false_causes=(RATE_ROSE, CLIPPING, WEIGHT_DECAY, NO_OPTIMIZER, DETACHED, r"requires_grad"),
        fix="Keep the weights in float32 (autocast for the arithmetic), or round stochastically, or raise the rate.",
        true_fixes=(RAISE_RATE, r"float32|fp32", r"stochastic"),
        false_fixes=(LOWER_RATE, r"fp32_accumulators", CLIPPING, NO_OPTIMIZER, r"requires_grad"),
        setup=Setup(low_precision=True),
        loss=Loss(course="flat", marks={0: 5.41, 200: 5.4, 390: 5.33}, claims=claims("flat")),
    ),
    "scheduler_per_batch": Truth(
        faulty=True,
        story=(
            "OneCycleLR was made for 120 epochs and is stepped after each batch. Its 121st step raises"
            " a ValueError, which"
            " ends the training in its fourth epoch of 120; until then all was well."
        ),
        messages=1,
        since=range(119, 123),
        told=rules(*CRASH),
        cause="ValueError: Tried to step 121 times. The specified number of total steps is 120",
        true_causes=(r"ValueError",),
        false_causes=(r"out.of.memory", r"\bkilled\b|SIGTERM|SIGKILL", r"KeyboardInterrupt", RATE_ROSE, CLIPPING),
        fix="Step the schedule once per epoch, or make it for epochs * batches steps.",
        true_fixes=(r"schedul|total_steps|traceback|frame|line",),
        false_fixes=(r"\bmemory\b|batch size", LOWER_RATE, RAISE_RATE),
        setup=Setup(scheduler=True),
        loss=Loss(course="fell", marks={0: 2.33, 60: 0.0953, 110: 0.0368}, claims=claims("fell")),
    ),
}

OTHER_FAULTS = {
    "encoder_frozen": Truth(
        faulty=True,
        story=(
            "From step 250 on requires_grad is False for the encoder: its four parameters have no"
            " gradient and do not move."
            " The optimizer holds them still."
        ),
        messages=1,
        since=range(249, 275),
        told=rules("vanished"),
        parameters=(r"encoder\.[13]\.(weight|bias)",),
        cause="requires_grad of the encoder's parameters was set to False at step 250.",
        true_causes=(FROZEN_FLAG,),
        false_causes=(
            RATE_ROSE,
            DETACHED,
            NO_OPTIMIZER,
            CLIPPING,
            WEIGHT_DECAY,
            r"\bdead\b|saturat|\bReLU",
            r"not used",
        ),
        fix="Call model.encoder.requires_grad_(True) after the evaluation.",
        true_fixes=(r"requires_grad|unfreez",),
        false_fixes=(LOWER_RATE, RAISE_RATE, NO_OPTIMIZER),
        loss=Loss(course="fell", marks={0: 1.1, 240: 0.26, 250: 0.236, 440: 0.108}, claims=claims("fell")),
    ),
    "exploding_rnn": Truth(
        faulty=True,
        story=(
            "From step 200 on the series have 200 places instead of 60. The recurrence amplifies over"
            " them: gradients grow"
            " 170 times at step 200, are infinite at step 201 and NaN from step 202 on. Nothing clips them."
        ),
        messages=1,
        since=range(199, 206),
        told=rules("explosion", "nonfinite"),
        may=rules("explosion"),
        parameters=(r"(read|recur|out)\.(weight|bias)",),
        cause="Gradients explode through the recurrent weights; rate and setup are constant.",
        true_causes=(r"explo|grew|grow|recurren|\bnan\b|overflow|not finite|non-?finite|infin",),
        false_causes=(
            r"(learning rate|\blr\b).*\b(rose|jump\w*|grew|spike\w*|was raised|changed)",
            WEIGHT_DECAY,
            NO_OPTIMIZER,
            DETACHED,
            FROZEN_FLAG,
        ),
        fix="Clip gradients before the step, with clip_grad_norm_; a smaller rate; an LSTM.",
        true_fixes=(CLIPPING, LOWER_RATE, r"LSTM|GRU|gate"),
        false_fixes=(RAISE_RATE, NO_OPTIMIZER, r"requires_grad"),
        loss=Loss(
            course="0.04 until step 199, 49.9 at step 200, 9.5e31 at step 201, NaN since step 202",
            marks={40: 0.0455, 160: 0.043},
            claims=claims("rose", "nan"),
        ),
        ambiguities=("Clipping may be advised here; that something clips already must not be said.",),
    ),
    "sigmoid_stack": Truth(
        faulty=True,
        story=(
            "Each of eight sigmoid layers passes on about a tenth of the gradient. The first layers have the tiniest"
            " gradients from the very first step on, and learn nothing; nothing fell, and nothing changed on the way."
        ),
        messages=1,
        since=range(120),
        told=rules("collapse"),
        parameters=(r"layers\.[0-5]\.(weight|bias)",),
        cause="Gradients vanish through a stack of sigmoids.",
        true_causes=(r"sigmoid|tanh|saturat|vanish|activation|depth|deep|initiali",),
        false_causes=(
            RATE_ROSE,
            NO_OPTIMIZER,
            DETACHED,
            FROZEN_FLAG,
            CLIPPING,
            WEIGHT_DECAY,
            r"\b(fell|dropped|collapsed)\b.*\b(step [1-9]\d+|own baseline|its baseline)",
        ),
        fix="ReLU or GELU, residual connections, normalisation, or a better initialisation.",
        true_fixes=(r"\bReLU|GELU|residual|skip|norm|initiali|activation",),
        false_fixes=(LOWER_RATE, NO_OPTIMIZER, r"requires_grad", WEIGHT_DECAY),
        loss=Loss(course="flat", marks={0: 2.36, 40: 2.31, 390: 2.31}, claims=claims("flat")),
        ambiguities=("Sigmoids that saturate and sigmoids that pass on a quarter at best are one cause here.",),
    ),
    "masked_entropy": Truth(
        faulty=True,
        story=(
            "From step 240 on a masked action has probability 0, and 0 * log(0) makes the loss, its gradients and, with"
            " that step, all weights NaN. Nothing grew before it."
        ),
        messages=1,
        since=range(239, 243),
        told=rules("nonfinite"),
        parameters=(r"[024]\.(weight|bias)",),
        cause="The loss takes the logarithm of 0 at step 240; loss and all gradients are NaN from that step on.",
        true_causes=(r"\bnan\b|not finite|non-?finite",),
        false_causes=(
            RATE_ROSE,
            r"explo|overflow|\bgrew\b",
            CLIPPING,
            WEIGHT_DECAY,
            NO_OPTIMIZER,
            DETACHED,
            r"momentum",
        ),
        fix="torch.special.entr or a clamp before the logarithm; start again from a checkpoint before step 240.",
        true_fixes=(r"\blog\b|logarithm|log\(|clamp|\beps|detect_anomaly|checkpoint|divi",),
        false_fixes=(LOWER_RATE, RAISE_RATE, NO_OPTIMIZER, WEIGHT_DECAY),
        loss=Loss(
            course="fell from 1.74 to 0.22 until step 239, NaN since step 240",
            marks={0: 1.74, 200: 0.247, 229: 0.22},
            claims=claims("nan"),
        ),
        ambiguities=("clip_grad_norm_ as a remedy is false: NaN stays NaN.",),
    ),
    "bf16_accumulation": Truth(
        faulty=True,
        story="512 micro-steps that point the same way are added up in bfloat16, which loses up to a fifth.",
        messages=1,
        since=range(60),
        told=rules("accumulation_loss"),
        may=rules(*BF16_FINDINGS),
        parameters=(r"[02]\.(weight|bias)",),
        cause="Sums over 512 micro-steps are kept in bfloat16.",
        true_causes=(r"bfloat16|\bbf16\b",),
        false_causes=(RATE_ROSE, CLIPPING, WEIGHT_DECAY, NO_OPTIMIZER, DETACHED, r"requires_grad"),
        fix="gradcanary.fp32_accumulators(optimizer), or weights in float32, or fewer micro-steps.",
        true_fixes=(r"fp32_accumulators|float32|fp32|fewer",),
        false_fixes=(LOWER_RATE, RAISE_RATE, NO_OPTIMIZER, r"autocast\(.?cuda"),
        setup=Setup(accumulation_steps=512, low_precision=True),
        loss=Loss(course="fell, with much noise", marks={0: 25.2, 30: 13, 50: 5.54}, claims=claims("fell")),
        ambiguities=("Of the first step's sums 0.weight lost 2 %, 2.weight 8 %, 0.bias 9 % and 2.bias 19 %.",),
    ),
    "out_of_memory": Truth(
        faulty=True,
        story=(
            "At step 180 a document of 2,304,000 tokens asks for attention scores of 170 TB; the CPU's"
            " allocator raises a"
            " RuntimeError, which ends the training. Until then all was well."
        ),
        messages=1,
        since=range(179, 182),
        told=rules(*CRASH),
        cause="RuntimeError: DefaultCPUAllocator: can't allocate memory",
        true_causes=(r"memory",),
        false_causes=(r"\bkilled\b|SIGTERM|SIGKILL", r"KeyboardInterrupt", RATE_ROSE, CLIPPING),
        fix="Cut documents to the context; attention that does not keep its scores.",
        true_fixes=(r"length|shorter|sequence|batch|memory|checkpoint|frame|line",),
        false_fixes=(LOWER_RATE, RAISE_RATE, r"empty_cache|expandable_segments|PYTORCH_CUDA"),
        loss=Loss(course="fell", marks={0: 3.27, 90: 0.902, 170: 0.744}, claims=claims("fell")),
    ),
    "rate_of_a_group": Truth(
        faulty=True,
        story=(
            "At step 350 the learning rate of parameter group 1, the second block, goes from 2e-4 to 0.1 and stays"
            " there. Nothing explodes at once; one bias of the block loses its gradient some 180 steps later."
        ),
        messages=1,
        since=range(350, 700),
        told=rules("explosion", "nonfinite", "scale_drop", "collapse", "vanished"),
        may=rules("explosion", "collapse", "vanished", "scale_drop"),
        parameters=(r"(embed|head|norm|blocks\..*)\.(weight|bias)",),
        cause="The learning rate of parameter group 1 rose 500 times at step 350, and still holds.",
        true_causes=(r"(learning rate|\blr\b).*group 1\b.*500 times at step 350",),
        false_causes=(WEIGHT_DECAY, CLIPPING, r"momentum", NO_OPTIMIZER, DETACHED, FROZEN_FLAG),
        fix="Set the learning rate of group 1 right (2e-4), and go back to a checkpoint before step 350.",
        true_fixes=(r"checkpoint before step 350",),
        false_fixes=(RAISE_RATE, NO_OPTIMIZER, FROZEN_FLAG),
        codes=rules("rate_rose", "rate_stays"),
        first=r"learning rate.*checkpoint before step 350",
        loss=Loss(course="rose and stayed", marks={}, claims=claims("rose", "flat")),
    ),
    "rate_put_back": Truth(
        faulty=True,
        story=(
            "From step 350 to 399 the learning rate of the decoder is 0.5, 500 times what it was. Gradients explode,"
            " and are zero from then on: the ReLUs of the network are dead, also after the rate was put back."
        ),
        messages=1,
        since=range(350, 700),
        told=rules("explosion", "nonfinite", "scale_drop", "collapse", "vanished"),
        may=rules("explosion", "collapse", "vanished", "scale_drop"),
        parameters=(r"(encoder|decoder)\.\d\.(weight|bias)",),
        cause="The learning rate of parameter group 1 rose 500 times at step 350.",
        true_causes=(r"(learning rate|\blr\b).*group 1\b.*500 times at step 350",),
        false_causes=(WEIGHT_DECAY, CLIPPING, r"momentum", NO_OPTIMIZER, DETACHED, FROZEN_FLAG, r"still in force"),
        fix="Go back to a checkpoint before step 350, with the right learning rate.",
        true_fixes=(r"checkpoint before step 350",),
        false_fixes=(RAISE_RATE, NO_OPTIMIZER, FROZEN_FLAG),
        codes=rules("rate_rose", "after_explosion"),
        first=r"learning rate.*checkpoint before step 350",
        loss=Loss(course="rose and stayed", marks={}, claims=claims("rose", "flat")),
    ),
    "decay_of_a_group": Truth(
        faulty=True,
        story=(
            "At step 350 the weight decay of the second block goes from 0.2 to 200: with its learning rate of 1e-3 each"
            " step multiplies its weights by 0.8. The block's gradients end; the first block learns on."
        ),
        messages=1,
        since=range(350, 400),
        told=rules("collapse", "vanished"),
        may=rules("collapse", "vanished"),
        parameters=(r"blocks\.1\..*",),
        cause="Weight decay of parameter group 1 rose from 0.2 to 200 at step 350; its learning rate did not change.",
        true_causes=(WEIGHT_DECAY,),
        false_causes=(RATE_ROSE, CLIPPING, r"momentum", NO_OPTIMIZER, DETACHED, FROZEN_FLAG),
        fix="Set the weight decay of group 1 right (0.2), and go back to a checkpoint before step 350.",
        true_fixes=(r"checkpoint before step 350",),
        false_fixes=(LOWER_RATE, RAISE_RATE, NO_OPTIMIZER, FROZEN_FLAG),
        codes=rules("weight_decay"),
        first=r"weight decay.*checkpoint before step 350",
        loss=Loss(course="fell", marks={}, claims=claims("fell", "flat", "rose")),
    ),
}

TRUTHS: dict[str, Truth] = {**HEALTHY, **SETUP_MISTAKES, **OTHER_FAULTS}
