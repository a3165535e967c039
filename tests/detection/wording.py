"""What may be said of each case: the truth that the sentences of its incidents are held against.

Each is written from what the code of the case does, not from the product's texts. A topic is a cause that sentences
like to blame: all of them are false but those that the truth of a case lets in, each with its reason in ``story``.
``tests/words`` holds the sentences against it: a named cause, a fix that mends the job, and no sentence that is false.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from detection.case import Case
from words.check import Flaw, Incident, incident_flaws, job_flaws
from words.claims import (
    CLIPPING,
    DETACHED,
    FROZEN_FLAG,
    LOWER_RATE,
    RAISE_RATE,
    WEIGHT_DECAY,
    Loss,
    Setup,
    Truth,
)

CLAIMED = r"^(?!if\b).*"
"""A sentence that begins with a condition claims nothing. It stands before each topic and remedy below."""

NO_HOLDER = r"\b(in|by) no optimizer|\bno optimizer holds|not in (an|any|the) optimizer"

TOPICS = {
    "rate": r"(learning rate|\blr\b).*\b(rose|rise|jump\w*|grew|went|fell|spike\w*|changed|too (high|large|low|small))",
    "decay": WEIGHT_DECAY,
    "momentum": r"momentum",
    "clipping": CLIPPING,
    "optimizer": NO_HOLDER,
    "replaced": r"\breplaced\b",
    "frozen": FROZEN_FLAG,
    "detached": DETACHED,
    "cleared": r"zero_grad|\bcleared\b",
    "a zero": r"(factor|gate|scale|weights)\b.*\bzero\b|became zero",
    "dead": r"\bReLU|\bdead\b|saturat",
    "depth": r"\bdepth\b",
    "explosion": r"\bexplo",
    "divergence": r"\bdiverg",
    "convergence": r"\bconverg",
    "finite loss": r"while the loss (was|is) finite",
    "not called": r"(does not|never|not) call|not called|not (in|part of) the (autograd |backward )?graph",
    "router": r"\brouter|\bexperts?\b",
    "poison": r"\bpoison",
}
"""Causes by their words; the first four are settings of the optimizer or the loop."""

FIXES = {
    "lower the rate": LOWER_RATE,
    "raise the rate": RAISE_RATE,
    "decay": WEIGHT_DECAY,
    "momentum": r"momentum",
    "clip": CLIPPING,
    "hold": r"(give|make) the optimizer|the optimizer holds|add_param_group",
    "requires_grad": r"requires_grad",
    "sums": r"fp32_accumulators",
    "gates": r"\b(gates?|scales?)\b.*\bzero\b",
}
"""Remedies by their words."""

SETTINGS = ("decay", "lower the rate", "momentum")
"""What prints all settings of the optimizer, among them the one that is wrong."""


@dataclass(frozen=True, kw_only=True)
class ScaledSetup(Setup):
    """A setup in which a GradScaler may be spoken of."""

    def false_anywhere(self) -> dict[str, str]:
        return {pattern: why for pattern, why in super().false_anywhere().items() if "GradScaler" not in why}


def _truth(
    story: str,
    causes: Iterable[str],
    fixes: Iterable[str],
    *,
    claims: Iterable[str] = (),
    topics: Iterable[str] = (),
    may: Iterable[str] = (),
    setup: Setup | None = None,
) -> Truth:
    """Return a truth: one of ``causes`` and of ``fixes`` must be named, only ``topics`` and ``may`` can be."""
    assert {*topics} <= TOPICS.keys()
    assert {*may} <= FIXES.keys()
    return Truth(
        faulty=True,
        story=story,
        messages=0,
        loss=Loss(course="", marks={}, claims=frozenset(claims)),
        setup=setup or Setup(),
        true_causes=tuple(causes),
        false_causes=tuple(f"{CLAIMED}(?:{pattern})" for topic, pattern in TOPICS.items() if topic not in topics),
        true_fixes=tuple(fixes),
        false_fixes=tuple(f"{CLAIMED}(?:{pattern})" for fix, pattern in FIXES.items() if fix not in may),
    )


def _healthy(story: str, topics: Iterable[str] = (), setup: Setup | None = None) -> Truth:
    """Return the truth of a healthy job, whose loss falls."""
    learns = _truth(story, (), (), claims=("fell", "flat"), topics=topics, may=FIXES, setup=setup)
    return replace(learns, faulty=False)


_EATEN = _truth(
    "The weight decay of one parameter group, lora_B of two blocks, rises by decades, and its rate falls from 1e-3 to "
    "1e-6; their product eats lora_B, and lora_A, which is multiplied by it, loses its gradient.",
    [r"weight[ _]decay.*(20[, ]?000|2e\+?0?4|500[, ]?000|5e\+?0?5)"],
    [WEIGHT_DECAY],
    claims=("fell", "flat"),
    topics=("rate", "decay", "a zero"),
    may=("decay",),
    setup=Setup(adapters=True),
)

WORDING: dict[str, Truth] = {
    "log-of-zero": _truth(
        "The loss is infinite at step 200, by the logarithm of 0; the settings are constant, and nothing grew before.",
        [r"\blog\b|logarithm"],
        [r"\blog\b|clamp|detect_anomaly"],
        claims=("fell", "nan"),
    ),
    "a-bad-example": _truth(
        "One input is infinite, so loss and gradients are not finite in the same step; nothing grew before.",
        [r"\b(batch|sample|example|data|inputs?)\b"],
        [r"\b(batch|sample|example|data|inputs?)\b"],
        claims=("fell", "nan"),
    ),
    "root-of-zero": _truth(
        "The slope of a root is infinite at 0: gradients are not finite in a step whose loss is. The bias of the last "
        "map cancels, so its gradient is zero from the start: that it is never used is said of it alone.",
        [r"sqrt|\broot\b|divi"],
        [r"detect_anomaly|sqrt|\beps|clamp"],
        claims=("fell",),
        topics=("finite loss",),
    ),
    "a-scaler-that-skips-for-ever": _truth(
        "Targets overflow float16, so the loss is infinite in each step. The scaler skips all and saves the weights.",
        [r"\bloss\b.*(nan|infinit|not finite)"],
        [r"\b(batch|target|data|detect_anomaly)\b|set_detect_anomaly"],
        claims=("nan",),
        setup=ScaledSetup(low_precision=True),
    ),
    "learning-rate-spike": _truth(
        "The learning rate of SGD with momentum goes from 0.05 to 1.5 at step 200, and the training diverges.",
        [r"(learning rate|\blr\b).*0?\.05\b.*1\.5\b"],
        [r"learning rate|\blr\b"],
        claims=("rose", "nan"),
        topics=("rate", "explosion", "divergence"),
        may=("lower the rate", *SETTINGS),
    ),
    "another-unit-under-clipping": _truth(
        "Targets come 10,000 times larger: loss and gradients jump in one step. The settings are constant, gradients "
        "are clipped already, and the weights move as slowly as before: nothing diverges.",
        [r"\b(batch|batches|data|targets?|inputs?|unit)\b"],
        [r"\b(batch|batches|data|targets?|inputs?|unit)\b"],
        claims=("rose",),
        topics=("explosion",),
        setup=Setup(clips_at=1.0),
    ),
    "recurrence-grows": _truth(
        "Recurrent weights become five times larger by themselves at step 200, and the gradients grow through the "
        "recurrence. The settings are constant.",
        [r"\b(explo|went up|diverg|grew)"],
        [r"checkpoint"],
        claims=("rose",),
        topics=("explosion", "divergence"),
        may=("lower the rate", "clip", *SETTINGS),
    ),
    "a-branch-is-detached": _truth(
        "A detach() in the middle: what is before it has no gradient at all (None, not zero), and trained until then.",
        [DETACHED],
        [DETACHED],
        claims=("fell",),
        topics=("detached", "cleared", "replaced", "not called"),
        may=("requires_grad",),
    ),
    "an-encoder-under-no-grad": _truth(
        "The encoder runs under no_grad from step 250 on: no gradient at all (None, not zero), and one in each step "
        "before.",
        [DETACHED],
        [DETACHED],
        claims=("fell", "flat"),
        topics=("detached", "cleared", "replaced", "not called"),
        may=("requires_grad",),
    ),
    "a-layer-never-called": _truth(
        "forward() does not call a layer that the model has and the optimizer holds.",
        [r"does not call|never called|not called"],
        [r"forward"],
        claims=("fell",),
        topics=("not called",),
        may=("hold", "requires_grad"),
    ),
    "born-dead": _truth(
        "A ReLU at the output is zero for every input, so all gradients are exactly zero. The optimizer holds all "
        "parameters, and no weight is zero.",
        [r"\bReLU|\bdead\b|saturat|activation"],
        [r"\bReLU|\bdead\b|activation|\bbias|initiali"],
        claims=("flat",),
        topics=("dead", "a zero"),
    ),
    "clipped-before-unscaled": _truth(
        "Gradients are clipped while they are multiplied by the loss scale.",
        [r"\bclip.*unscale"],
        [r"unscale_"],
        claims=("fell", "flat"),
        topics=("clipping",),
        may=("clip",),
        setup=ScaledSetup(clips_at=1.0),
    ),
    "bfloat16-sums": _truth(
        "512 micro-steps are added up in bfloat16.",
        [r"bfloat16|\bbf16\b|low precision|\bdtype\b"],
        [r"fp32_accumulators|float32"],
        claims=("flat",),
        may=("sums",),
        setup=Setup(accumulation_steps=512, low_precision=True),
    ),
    "bfloat16-weights-stand-still": _truth(
        "A step of 1e-6 is far under half of the distance of two bfloat16 numbers. Gradients are healthy.",
        [r"bfloat16|\bbf16\b|low precision|rounded|rounding"],
        [RAISE_RATE, r"float32", r"stochastic"],
        claims=("flat",),
        topics=("frozen",),
        may=("raise the rate",),
        setup=Setup(low_precision=True),
    ),
    "float16-without-a-scaler": _truth(
        "Weights, gradients and loss are float16 without a scaler; from step 150 on the loss is divided by 16,384, and "
        "many gradients are exactly zero. Nothing converges: all falls in a single step.",
        [r"float16|\bfp16\b"],
        [r"scale\b|scaler|bfloat16|float32"],
        claims=("fell", "flat"),
        topics=("frozen",),
        setup=ScaledSetup(low_precision=True),
    ),
    "adapters-decay-slowly": _EATEN,
    "adapters-die-late-every-10": _EATEN,
    "adapters-die-late-auto": _EATEN,
    "gates-saturate": _truth(
        "One step with a rate of 100,000 (0.001 before and after it) for the biases of two gates, which saturate.",
        [r"(learning rate|\blr\b).*(100[, ]?000|1e\+?0?5)"],
        [r"learning rate|\blr\b|checkpoint"],
        claims=("fell", "flat"),
        topics=("rate", "dead", "a zero"),
        may=SETTINGS,
    ),
    "attention-saturates": _truth(
        "The logits of one block are scaled by 1e5, so its softmax has no slope: queries and keys have no gradient. "
        "The settings are constant.",
        [r"saturat|softmax"],
        [r"activation|softmax|saturat|\bscale"],
        claims=("fell", "flat"),
        topics=("dead", "explosion", "a zero"),
        may=("gates",),
    ),
    "a-relu-block-dies": _truth(
        "One step with a rate of 50 and a weight decay of 5 (0.05 and 0 before and after it) for one bias: the ReLU "
        "behind it is zero for every input, so gradients are exactly zero, not missing.",
        [r"(learning rate|\blr\b).*\b50\b"],
        [r"learning rate|\blr\b|checkpoint"],
        claims=("fell", "flat"),
        topics=("rate", "decay", "dead", "a zero"),
        may=SETTINGS,
    ),
    "the-last-relu-dies": _truth(
        "One step with a rate of 60 and a weight decay of 5 (0.02 and 0 before and after it) for the last bias: the "
        "ReLU behind it is zero for every input, so all gradients are exactly zero.",
        [r"(learning rate|\blr\b).*\b60\b"],
        [r"learning rate|\blr\b|checkpoint"],
        claims=("rose", "flat"),
        topics=("rate", "decay", "dead", "a zero"),
        may=SETTINGS,
    ),
    "the-loss-is-divided-twice": _truth(
        "Gradients are those of a thousandth of the loss, and the loss goes on as before. The settings are constant.",
        [r"\bfactor\b|rescaled|scaled|divid"],
        [r"multiplies|divid|\bfactor\b|scale"],
        claims=("fell", "flat"),
    ),
    "depth-of-sigmoids": _truth(
        "Each of sixteen sigmoids passes on a quarter at best: the first layers have no gradient to speak of ever.",
        [r"\bdepth\b|sigmoid|vanish"],
        [r"\bReLU|GELU|residual|normali|initiali"],
        claims=("fell", "flat"),
        topics=("depth", "dead", "a zero"),
        may=("gates",),
    ),
    "inputs-lose-their-scale": _truth(
        "Inputs become 65,025 times smaller, so the weights that they are multiplied with have next to no gradient. "
        "The settings are constant.",
        [r"\binputs?\b"],
        [r"\binputs?\b|\bdata\b|\bbatch"],
        claims=("rose", "flat"),
        topics=("a zero", "dead"),
        may=("gates",),
    ),
    "a-group-at-rate-zero": _truth(
        "The learning rate of parameter group 1 is 0 from the first step on, by a LambdaLR. Group 0 warms up.",
        [r"(learning rate|\blr\b|\brate\b).*(\b0\b|\bzero\b)"],
        [r"learning rate|\blr\b|lr_lambda|schedul|param_groups|parameter group"],
        claims=("fell", "flat"),
        topics=("a zero",),
        may=("raise the rate", "lower the rate"),
        setup=Setup(scheduler=True),
    ),
    "epsilon-of-one-group": _truth(
        "Adam's epsilon is 1 in parameter group 1, whose gradients are of 1e-4: each step is 10,000 times too short.",
        [r"\beps(ilon)?\b"],
        [r"\beps(ilon)?\b"],
        claims=("fell", "flat"),
    ),
    "clipped-to-nothing": _truth(
        "The gradients' total norm is about 1, clipped to 1e-5, under SGD with a rate of 0.05: next to nothing moves.",
        [r"\bclip|max_norm"],
        [r"\bclip|max_norm"],
        claims=("flat",),
        topics=("clipping",),
        may=("clip", "raise the rate"),
        setup=Setup(clips_at=1e-5),
    ),
    "a-stale-copy-comes-back": _truth(
        "After each step since 250 two blocks get weights back that were kept at 250: the optimizer's update is lost. "
        "It holds them, and rate, epsilon and gradients are as before.",
        [r"overwr|cop(y|ies|ied)|load_state_dict|restor|stale|(update|step)\b.*\blost\b"],
        [r"overwr|cop(y|ies|ied)|load_state_dict|restor|swap|average"],
        claims=("fell", "flat"),
    ),
    "one-of-two-never-cleared": _truth(
        "Nothing clears the gradients of the encoder: each step uses the sum of all since the first. The head's are.",
        [r"zero_grad|\bcleared\b"],
        [r"zero_grad"],
        claims=("fell", "flat"),
        topics=("cleared",),
        setup=Setup(optimizers=2),
    ),
    "an-adapter-in-no-optimizer": _truth(
        "The adapter was put into the model after its optimizer was made. As the loop clears by the optimizer, nothing "
        "clears the adapter's gradients, either.",
        [NO_HOLDER],
        [r"add_param_group|optimizer"],
        claims=("fell", "flat"),
        topics=("optimizer", "cleared", "replaced"),
        may=("hold", "requires_grad"),
        setup=Setup(adapters=True),
    ),
    "weights-too-large-to-move": _truth(
        "Weights of 10,000 to 20,000 in float32 are 0.001 apart from the next number or more, and steps are of 1e-4.",
        [r"round|half of|too (large|small|coarse)|cannot move|next number|float32|precision|spacing"],
        [RAISE_RATE, r"float64|rescal|\bunits?\b|smaller weights|normali"],
        claims=("fell", "flat"),
        topics=("rate", "frozen"),
        may=("raise the rate",),
    ),
    "float16-hidden-by-autocast": _truth(
        "Autocast computes in float16 without a scaler: most gradients are under 6e-8 and become exactly zero. Weights "
        "and .grad are float32.",
        [r"float16|\bfp16\b"],
        [r"scale\b|scaler|bfloat16|float32"],
        claims=("fell", "flat"),
        setup=ScaledSetup(low_precision=True),
    ),
    "blocks-multiplied-by-zero": _truth(
        "What each residual block adds is multiplied by a constant 0. All blocks are called and in the graph: their "
        "gradients are exactly zero, not missing. No weight is zero, and no ReLU is dead.",
        [r"multipl\w+ (by|with) (exactly |a )?(zero|0\b)|(factor|gate|scale|coefficient)\b.*\b(zero|0)\b"],
        [r"factor|gate|scale|multipl|coefficient"],
        claims=("fell", "flat"),
        topics=("a zero",),
        may=("gates",),
    ),
    "a-scale-that-collapses": _truth(
        "In each third batch a root of zero makes gradients infinite while the loss is finite. The scaler skips these "
        "steps and halves its scale of 65,536 at each: no scale mends it. Under a scale of 0.001, float16 makes all "
        "gradients zero.",
        [r"\bscaler?\b.*(fell|falls|halv|drop|went|down|lower)|skipp"],
        [r"detect_anomaly|sqrt|\broot\b|\beps|clamp|batch|\bdata\b|example"],
        claims=("fell", "flat"),
        topics=("finite loss",),
        setup=ScaledSetup(low_precision=True),
    ),
    "one-collapse-after-another": _truth(
        "The weight decay of one parameter group, the last map of a side branch, rises by decades and eats it. What is "
        "before it loses its gradient, one map after the other. Nothing in the model chooses between branches.",
        [r"weight[ _]decay.*(15[, ]?000|1\.5e\+?0?4)"],
        [WEIGHT_DECAY],
        claims=("fell", "flat"),
        topics=("rate", "decay", "a zero"),
        may=("decay",),
    ),
    "a-leaf-annealed-for-ever": _truth(
        "The weight of a second loss falls by 2 % a step from step 150 on, and the gradients of its own maps with it, "
        "in a straight line of the logarithm. Gradients cannot tell whether a loss's weight or weights decay.",
        [r"exponential|straight line|constant (share|factor|rate)"],
        [r"anneal|weight|schedul|factor"],
        claims=("fell", "flat"),
        topics=("decay",),
        may=("decay",),
    ),
}
"""By fault."""

_LEARNS = _healthy("The loss comes down for good, and gradients with it.", topics=("convergence",))
_DIVIDED = _healthy("The loss is divided by 1,000 in one step: nothing converges then.")

HEALTHY: dict[str, Truth] = {
    "sums-of-eight-in-bfloat16": _healthy(
        "Eight micro-steps in bfloat16 lose next to nothing, and weights do move.",
        topics=("frozen",),
        setup=Setup(accumulation_steps=8, low_precision=True),
    ),
    "stage-freeze": _healthy("Half of the layers are frozen on purpose.", topics=("frozen",)),
    "a-task-learnt-early": _healthy(
        "The easy task is learnt, and its layers' gradients fall. Told falsely, so all that is said is what may be.",
        topics=("dead", "a zero"),
    ),
    "an-idle-expert": _healthy(
        "forward() calls the last expert in one step of twenty.", topics=("router", "not called")
    ),
    "an-expert-out-of-fashion": _healthy("A router asks some experts less and less.", topics=("router", "convergence")),
    "eight-sparse-experts": _healthy("A router asks all experts, with noise.", topics=("router", "convergence")),
    "domains-in-blocks": _healthy(
        "forward() calls the layers of one domain at a time, those of the others rest; they are called adapters.",
        topics=("convergence", "not called"),
        setup=Setup(adapters=True),
    ),
    "an-auxiliary-loss-annealed": _healthy("A second loss counts a fiftieth in the end, on purpose."),
    "four-steps-to-one": _healthy(
        "Actor and critic have an optimizer and a loss each, and both losses fall.",
        topics=("convergence",),
        setup=Setup(optimizers=2),
    ),
    "adapters-warm-up-for-long": _healthy(
        "The learning rate rises for 400 steps.", topics=("convergence",), setup=Setup(adapters=True, scheduler=True)
    ),
    "rates-by-depth": _healthy("Rates fall with the depth, on purpose.", topics=("convergence",)),
    "a-tail-at-a-tiny-rate": _healthy("The rate ends at 1e-6, on purpose.", topics=("convergence", "rate")),
    **{f"rescaled-loss{each}": _DIVIDED for each in ("", "-every-10", "-every-100", "-auto")},
}
"""By healthy job of which the page says something else than that it converges."""


def find_case_flaws(case: Case, incidents: list[Incident]) -> tuple[Flaw, ...]:
    """Return what is false in the sentences of all incidents of a case, and of a fault what is missing in them.

    Rules, layers, steps and messages are judged elsewhere.
    """
    truth = WORDING[case.name] if case.is_fault else HEALTHY.get(case.name, _LEARNS)
    truth = replace(truth, told=case.rules, may=frozenset(each.rule for each in incidents))
    flaws = [flaw for incident in incidents for flaw in incident_flaws(truth, incident)]
    return tuple(dict.fromkeys([*flaws, *(job_flaws(truth, incidents) if case.is_fault else ())]))
