"""The terms in which the truth of a job is written: what is true, what is false, and of what the setup consists.

Names of rules are the README's table's. The issue adds ``not_optimized``, ``in_vain`` (which the product may also keep
in ``frozen``) and the crash, which may be called ``crash``, ``exception`` or ``out_of_memory``. Patterns are regular
expressions without case, held against one sentence at a time.
"""

from dataclasses import dataclass, field

IN_VAIN = ("in_vain", "frozen")
CRASH = ("crash", "exception", "out_of_memory")
BF16_FINDINGS = ("frozen", "in_vain", "accumulator", "second_moments")  # of the README and the issue, on the page

RATE_ROSE = r"(learning rate|\blr\b).*\b(rose|rise|jump\w*|grew|spike\w*|was raised|too high|too large)"
LOWER_RATE = r"\b(lower|reduce|decrease|smaller|halve)\b.{0,40}(learning rate|\blr\b)"
RAISE_RATE = r"\b(raise|higher|larger|increase)\b.{0,40}(learning rate|\blr\b)"
NO_OPTIMIZER = r"(\bno\b|\bnot\b|\bnone\b|n't|never|without|miss).*optimizer|optimizer.*(\bnot\b|n't|miss|never|other)"
FROZEN_FLAG = r"requires_grad|\bfrozen?\b|\bfreez"
DETACHED = r"detach|no_grad|inference_mode|disconnect"
LOW_PRECISION = r"bfloat16|\bbf16\b|float16|\bfp16\b|half precision|low.precision"
WEIGHT_DECAY = r"weight[ _]decay"
CLIPPING = r"\bclip"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How the job is set up: from this follow the fixes that are false in it, whatever its fault."""

    clips_at: float | None = None
    accumulation_steps: int = 1
    optimizers: int = 1
    low_precision: bool = False
    adapters: bool = False
    scheduler: bool = False

    def false_anywhere(self) -> dict[str, str]:
        """Return the patterns that no sentence about this job may contain, each with its reason."""
        patterns = {
            r"\bscaler\b|unscale_|GradScaler|loss scal": "the job has no GradScaler and no loss scale",
            r"autocast\(.?cuda|\.cuda\b|\bGPU|\bVRAM\b|\bCUDA\b": "the job runs on a CPU",
            r"(un)?toggle_optimizer|Lightning|Trainer\b|accelerator\.|Accelerate\b|DeepSpeed|FSDP|\bDDP\b": (
                "the job is a loop of plain torch"
            ),
        }
        if self.clips_at is None:
            patterns[
                r"\b(your|the|its) clipping|clip (value|threshold)|max_norm|clipped (at|to|by|down)"
                r"|(are|is|were) clipped|before (the )?clip"
            ] = "nothing clips in the job"
        if self.accumulation_steps == 1:
            patterns[r"accumulation[_ ]steps|micro-?(steps|batch)|accumulat\w+ over"] = "the job accumulates nothing"
        if not self.low_precision:
            patterns[LOW_PRECISION] = "all weights, gradients and activations are float32"
        if not self.adapters:
            patterns[r"\blora\b|lora_|adapter"] = "the job has no adapters"
        if not self.scheduler:
            patterns[r"lr_lambda|scheduler\.step|last_epoch"] = "the job has no scheduler"
        if self.optimizers == 1:
            patterns[r"\b(both|two|other|second) optimizers?\b"] = "the job has one optimizer"
        return patterns


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The course of the loss, with numbers of the plain run, and what may be said of it."""

    course: str
    marks: dict[int, float]  # by step, counted from 0: the mean of the ten steps that begin there
    claims: frozenset[str]  # of CLAIMS: each other claim is false


# What sentences may claim about the loss. A claim with a "not" in it does not match.
CLAIMS = {
    "fell": (
        r"\bloss (still |also |has |had |kept |keeps |goes on |went on |is still |was still )*"
        r"(fell|fall|falls|fallen|falling|drop\w*|decreas\w+|came down|went down|going down|improv\w+)\b"
    ),
    "flat": (
        r"\bloss.{0,40}\b(flat|stands still|stood still|stays|stayed|did not (fall|move|change|go down|improve)"
        r"|does not (fall|move|change|go down)|no longer (falls|fell)|stopped falling|unchanged|stuck)\b"
    ),
    "rose": r"\bloss[^,;:]{0,30}\b(rose|rises|rising|jumped|went up|climbed|grew|increased|higher)\b",
    "came back": r"\bloss\b.{0,60}(?<!not )\b(came back|come back|recovered|back to|back down)\b",
    "unseen": r"\bloss (does not|did not|doesn't|didn't) (show|see|reveal)",
    "nan": r"\bloss.{0,40}\b(nan|inf|infinity|infinite|not finite|non-?finite)\b|\b(nan|infinity)\b.{0,20}\bloss\b",
}


NOTHING_ELSE = r"\bnothing else\b|\bno other (incident|fault)"
"""What no text may claim: other incidents, and settings that hold since long ago, are not known where it is written."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What happens in one job, and what a monitor may say of it."""

    faulty: bool
    story: str
    loss: Loss
    setup: Setup = field(default_factory=Setup)
    messages: int  # to a person, recoveries not counted
    since: range | None = None  # steps that may be named as the first of the fault, counted from 0
    told: frozenset[str] = frozenset()  # rules of which one must be the message's
    may: frozenset[str] = frozenset()  # rules that may open beside them, told or not
    parameters: tuple[str, ...] = ()  # full matches: names that may be called affected
    cause: str = ""
    true_causes: tuple[str, ...] = ()  # one of them must be found in the headline or the cause
    false_causes: tuple[str, ...] = ()  # none may be found in the headline or the cause
    fix: str = ""
    true_fixes: tuple[str, ...] = ()  # one of them should be found in the fix
    false_fixes: tuple[str, ...] = ()  # none may be found in the fix
    codes: frozenset[str] = frozenset()  # the causes that any incident of the job may have; empty: not looked at
    first: str = ""  # what to do first has to contain, of each incident of the job; empty: not looked at
    ambiguities: tuple[str, ...] = ()


def rules(*names: str) -> frozenset[str]:
    return frozenset(names)


def claims(*names: str) -> frozenset[str]:
    return frozenset(names)
