"""Likely causes and what to do about them, in the words of each framework. Standard library only.

A cause is found by the collector from evidence (:mod:`gradcanary_server.incidents.causes`) and named by its code; this
catalogue holds the words. Nothing here blames an 8-step accumulation in bfloat16 for a large fall: that loses 0.4 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradcanary import remedy_texts

FRAMEWORKS = ("pytorch", "transformers", "accelerate", "lightning", "deepspeed", "fsdp", "peft", "diffusers")

TEXTS = {**remedy_texts.TEXTS, **remedy_texts.PROCESS_TEXTS}
WORDS = {**remedy_texts.WORDS, **remedy_texts.PROCESS_WORDS}

_ALIASES = {
    "torch": "pytorch",
    "trainer": "transformers",
    "trl": "transformers",
    "pytorch_lightning": "lightning",
    "lightning_fabric": "lightning",
    "fsdp2": "fsdp",
}


LOST_IN_BFLOAT16 = (
    "0.4 % of the gradient with 8 micro-steps, 1 to 3 % with 64, and 7 to 32 % with 512, most where they are alike"
)
"""By sums in bfloat16, measured against float64: docs/results/precision.md."""


@dataclass(frozen=True)
class Fix:
    """A remedy: text, and lines to type or to look at (``code``, may be empty), written for ``framework``."""

    framework: str
    text: str
    code: str


@dataclass(frozen=True)
class Cause:
    """A likely cause: ``text`` describes it in a sentence or two, ``remedy`` names the fix."""

    text: str
    remedy: str


CAUSES: Mapping[str, Cause] = {
    "after_nonfinite": Cause(
        "The loss or gradients were NaN or infinite shortly before: look there first. One non-finite update poisons "
        "weights and the optimizer's state, and what falls after it is a consequence.",
        "nonfinite",
    ),
    "after_scale_drop": Cause(
        "All gradients fell together shortly before: look for one cause of all of them before you look at parameters.",
        "whole_model",
    ),
    "lora_partner": Cause(
        "Only one half of the LoRA pairs collapsed. The gradient of lora_A is multiplied by lora_B, and the other way "
        "round: weights of the other half that shrink to zero would do that, by the learning rate, the schedule or the "
        "weight decay of its parameter group.",
        "partner_weights",
    ),
    "lora_own": Cause(
        "Only one half of the LoRA pairs collapsed, and the weights of the other half, which its gradient is "
        "multiplied by, did not shrink. The gradients of the other half go on, so input and output are there: what is "
        "left is something that changes these gradients alone.",
        "own_gradient",
    ),
    "parameter_group": Cause(
        "The collapsed parameters are exactly one parameter group of the optimizer: look at the learning rate, the "
        "schedule and the weight decay of that group, and of the parameters it is multiplied with.",
        "group_settings",
    ),
    "whole_blocks": Cause(
        "Everything in these blocks collapsed together: next to no gradient flows into them. A gate or residual scale "
        "near zero, or weights behind them driven to zero would do that.",
        "small",
    ),
    "rate_jump": Cause(
        "A learning rate jumped shortly before. If it rose, it may have driven weights far away, or to zero, which "
        "leaves no gradient to what they are multiplied with. If it fell, look for what else changed at that step.",
        "group_settings",
    ),
    "weight_decay": Cause(
        "Decoupled weight decay multiplies weights by 1 - lr * weight_decay in each step, whatever their gradients "
        "are. Weights that it drives to zero leave no gradient to what they are multiplied with.",
        "weight_decay",
    ),
    "rate_with_decay": Cause(
        "Decoupled weight decay multiplies weights by 1 - lr * weight_decay in each step, whatever their gradients "
        "are. The weight decay is a usual one; with this learning rate it takes the weights.",
        "rate_with_decay",
    ),
    "momentum": Cause(
        "With a momentum this close to 1 or above, old gradients are hardly forgotten: steps grow, and the weights "
        "overshoot.",
        "momentum",
    ),
    "rate_rose": Cause(
        "A learning rate rose shortly before. Steps that large can drive weights far away from where the loss was low.",
        "rate_back",
    ),
    "rate_stays": Cause(
        "A learning rate rose long before and was still in force; nothing nearer was found. Steps that large can ruin "
        "weights hundreds of steps later. That it is the cause is likely, and not certain.",
        "rate_back",
    ),
    "after_earlier": Cause(
        "An earlier incident of this launch had not recovered. It may have led to this one, which is not certain: "
        "nothing nearer was found.",
        "whole_model",
    ),
    "unknown_fall": Cause(
        "No incident and no setting that changed shortly before explains it. What these parameters are multiplied "
        "with may have become small: their inputs, weights behind them, or a gate; or an activation or a softmax "
        "behind them may be saturated. If their part of the loss is learnt, nothing is wrong.",
        "small",
    ),
    "exponential_fall": Cause(
        "Each step takes the same part of these gradients away, and no weights were measured that shrank like them: a "
        "factor falls exponentially. It is an annealed loss weight, or weights that decay, or their part of the loss "
        "is being learnt; gradients alone cannot tell which.",
        "falling_factor",
    ),
    "under_siblings": Cause(
        "These parameters have had much smaller gradients than parameters of the same kind since monitoring started. "
        "Gradients that vanish with depth look like this, and so does a gate or scale near zero before them.",
        "depth",
    ),
    "under_threshold": Cause(
        "The gradient is under the threshold you gave, which is taken at its word; no other evidence was asked for.",
        "small",
    ),
    "low_when_joined": Cause(
        "The gradient was already low when the job was joined. Whether it ever was higher cannot be known from here.",
        "depth",
    ),
    "converged": Cause(
        "The loss came down along with the gradients. If it took many steps, the training converges. If it took one, "
        "something divides the loss.",
        "converged",
    ),
    "common_fall": Cause(
        "All gradients fell around the same step, and no loss is known that explains it. If the weights shrank or "
        "moved far away, weight decay or the learning rate did that. If they did not, a factor in front of the loss "
        "or of the whole network changed.",
        "whole_model",
    ),
    "own_loss_fall": Cause(
        "These parameters are in another optimizer and have backward passes of their own. Their loss is not on record, "
        "so whether it explains the fall cannot be told from here: if it came down as well, their part of the training "
        "converges. If it did not, weights behind them have gone, or a factor in front of that loss changed.",
        "whole_model",
    ),
    "after_explosion": Cause(
        "Gradients exploded shortly before: look there first. A step that large can move weights to where other "
        "parameters, or all, have next to no gradient.",
        "explosion",
    ),
    "after_vanished": Cause(
        "Other parameters lost their gradient altogether shortly before: look there first. These may lie behind them.",
        "flow",
    ),
    "beside_collapse": Cause(
        "Parameters beside these collapsed in the steps before: look there first. Whatever took their gradients away "
        "may change those of their neighbours, too.",
        "small",
    ),
    "exploding": Cause(
        "The gradients of these parameters are far over what they were, and the loss, if one is known, is not. It may "
        "be an outlier in the data, a learning rate at the edge of what is stable, a division by something near zero, "
        "or a loss that is not averaged over what it should be.",
        "explosion",
    ),
    "diverging": Cause(
        "The loss is far above its level, or something is not finite already, and so are the gradients. If they rose "
        "over many steps, the training diverges. If they jumped in one, something changed at it: the batch, the "
        "targets, weights that were loaded, or a setting.",
        "diverging",
    ),
    "cut_off": Cause(
        "No gradient reaches these parameters any more. It may be a branch that is not taken, a .detach() or "
        "torch.no_grad() around it, or an optimizer's zero_grad between backward and step. Or the module was "
        "replaced after the optimizer was made: the optimizer still holds the old parameters.",
        "flow",
    ),
    "cut_off_blocks": Cause(
        "Whole blocks lost their gradient together and all others kept theirs: the path through them is cut, by a "
        "branch that is not taken, or a .detach() or torch.no_grad() around it. Or they were replaced after the "
        "optimizer was made.",
        "flow",
    ),
    "became_zero": Cause(
        "The gradient of these parameters is exactly zero, not missing: an activation behind them may be flat for "
        "every input, or a factor that they are multiplied with zero.",
        "small",
    ),
    "no_gradient_at_all": Cause(
        "No parameter has a gradient any more: the loss that is differentiated does not depend on them, or "
        "gradients are cleared before the optimizer's step.",
        "flow",
    ),
    "never_any_gradient": Cause(
        "No watched parameter ever had a gradient, so none of them learns: the loss does not depend on them, or "
        "gradients are cleared before the optimizer's step.",
        "flow",
    ),
    "only_zeros": Cause(
        "Gradients reach the watched parameters and have been exactly zero all along, so none of them learns. They are "
        "multiplied by zero: by weights, a mask or a weight of the loss, or by the slope of an activation.",
        "factor",
    ),
    "not_in_graph": Cause(
        "These parameters have no gradient at all, so the loss does not depend on them: the forward pass does not call "
        "their modules, or a .detach(), torch.no_grad() or a conversion to numbers stands between them and the loss. "
        "Adapters may be disabled, or put on modules that are not called.",
        "flow",
    ),
    "multiplied_by_zero": Cause(
        "Backward passes reach these parameters, and their gradient is exactly zero, not missing: on the way to the "
        "loss they are multiplied by zero. The factor may be a gate, a mask, a weight of the loss, the weights behind "
        "them, or the slope of an activation.",
        "zero_factor",
    ),
    "idle_for_long": Cause(
        "These parameters had a gradient only now and then, and have had none for longer than ever before. Experts "
        "that a router chooses, rare words and units that few inputs activate are like that. A router may have given "
        "them up, the data that needs them may be missing, or an activation may have become zero for every input.",
        "flow",
    ),
    "frozen_by_script": Cause(
        "requires_grad was switched off for these parameters: a stage of the training, as a rule. Nothing is wrong if "
        "that was meant.",
        "meant",
    ),
    "handed_over": Cause(
        "Similar parameters, which had no gradient before, got theirs then: the training went on to another "
        "domain, task or stage, as a rule. Gradients cannot tell that from two of them swapped by mistake. Nothing is "
        "wrong if that was meant.",
        "meant",
    ),
    "never_used": Cause(
        "The optimizer holds these parameters and the loss has not depended on them so far: a head that this task "
        "does not use, or a module that the forward pass does not call.",
        "unused",
    ),
    "never_used_unnamed": Cause(
        "The optimizer holds these parameters and the loss has not depended on them so far. No module that was found "
        "has them: theirs was replaced after the optimizer was made, or the forward pass does not call it.",
        "unused",
    ),
    "cancelled": Cause(
        "Gradients reach these parameters and have been exactly zero all along. Either they are multiplied by zero, "
        "as by a gate, a mask or weights, or the loss does not depend on them, as on a bias that a norm or a "
        "difference cancels.",
        "zero_factor",
    ),
    "lossy_sum": Cause(
        "Gradients are summed over micro-steps in a dtype that swallows small ones: an addend far under the sum "
        "vanishes. It grows with the number of micro-steps and with how alike they are; what was lost here was "
        "measured, not estimated.",
        "fp32_sum",
    ),
    "low_precision_sum": Cause(
        f"Gradients are summed over micro-steps in low precision. Expected loss: {LOST_IN_BFLOAT16}. This alone does "
        "not explain a collapse. Look at accumulation_error.",
        "fp32_sum",
    ),
    "other_dtype": Cause(
        "A configuration asks for sums in one dtype and the tensors are in another, or a parameter group has a key "
        "that its optimizer does not read: that setting does nothing here.",
        "fp32_sum",
    ),
    "coarse_weights": Cause(
        "Numbers in low precision lie far apart: an update smaller than half of that distance is rounded away. "
        "Gradients can still look healthy.",
        "fp32_weights",
    ),
    "in_vain": Cause(
        "Steps are smaller than half of the distance between two neighbouring numbers of these weights, so rounding "
        "undoes nearly all of them. Gradients can look healthy meanwhile.",
        "fp32_weights",
    ),
    "clip_limit": Cause(
        "Gradients are clipped to a norm that leaves next to nothing of them, so steps are as small.",
        "clip_limit",
    ),
    "lost_update": Cause(
        "The optimizer changes these weights, and when a later step begins they have their old values again. Something "
        "writes old weights back: a copy that is loaded or synchronised in each step, or master weights that are "
        "copied in the wrong direction.",
        "lost_update",
    ),
    "rate_zero": Cause(
        "A learning rate of zero leaves these parameters as they are, while their gradients cost as much as those of "
        "others. Nothing is wrong if that is meant, such as until a later stage of the training.",
        "rate_zero",
    ),
    "cannot_move": Cause(
        "A step is smaller than half of the distance between two neighbouring numbers of these weights, so float32 "
        "rounds it away: the learning rate is too low for weights of this size, or the weights are too large.",
        "cannot_move",
    ),
    "unmoved": Cause(
        "The optimizer steps, and none of the compared weights changes although they have a gradient that is not zero. "
        "Which of these it is cannot be known from here: gradients that are cleared or replaced right before the step, "
        "an optimizer that skips these parameters, weights that are set back inside of the step, or steps so small "
        "that they are rounded away.",
        "unmoved",
    ),
    "epsilon": Cause(
        "An optimizer like Adam divides by the size of the gradients plus eps, and so moves weights by about the "
        "learning rate. These move by a small part of it, as where eps is far larger than gradients.",
        "epsilon",
    ),
    "hardly_moves": Cause(
        "The updates of all parameters are next to nothing. Which of these it is cannot be known from here: a learning "
        "rate that is far too low, an eps that is far too large, or gradients that become tiny between the backward "
        "pass and the step.",
        "unmoved",
    ),
    "moves_less": Cause(
        "The optimizer moves these parameters decades less than others, also by their learning rate and by their "
        "gradient. In Adam, second moments that remember far larger gradients do that, for thousands of steps after an "
        "explosion. So does a setting of their group, such as eps, or something that makes their gradient smaller "
        "between the backward pass and the step.",
        "unmoved",
    ),
    "coarse_moments": Cause(
        "A step takes less away of a second moment than half of the distance to the next number. So moments rise with "
        "large gradients and never come down, and steps stay smaller than they should be.",
        "fp32_moments",
    ),
    "stopped_weights": Cause(
        "These weights moved and do not any more while the learning rate is high: they have grown, or the steps have "
        "shrunk, past what their precision can tell apart.",
        "fp32_weights",
    ),
    "fp16_zeros": Cause(
        "In float16 a gradient under its smallest number is exactly zero. Loss scaling keeps gradients above it, and "
        "must grow when they shrink.",
        "fp16_scaling",
    ),
    "after_not_optimized": Cause(
        "Other parameters receive gradients and are in no optimizer: that comes first. What the optimizer holds "
        "instead of them may never be used. Or they are exactly zero, and stop the gradient of what they are "
        "multiplied with.",
        "optimizer_parameters",
    ),
    "in_no_optimizer": Cause(
        "These parameters are trainable and receive gradients, and no optimizer holds them, so they never change. "
        "Either the optimizer was made before they were, as where a module was replaced later, or it was given other "
        "parameters.",
        "optimizer_parameters",
    ),
    "kept_gradients": Cause(
        "Nothing in the loop clears these gradients after a step: zero_grad is missing, or clears other parameters. "
        "Each step uses the sum of all gradients so far, in which old ones outweigh the present one more and more.",
        "clear_gradients",
    ),
    "after_never_cleared": Cause(
        "Gradients are not cleared after a step, so they add up from step to step: that comes first.",
        "clear_gradients",
    ),
    "scaled_clip": Cause(
        "Gradients are clipped before they are unscaled, so after unscaling almost nothing is left. With Adam the "
        "loss may still look fine, because it divides by the size of gradients.",
        "unscale_first",
    ),
    "scale_fell": Cause(
        "A GradScaler halves its scale after a step in which a gradient is not finite, and skips that step. It went on "
        "doing so: gradients have grown, or an operation or weights make them infinite or NaN whatever the scale is.",
        "nonfinite",
    ),
    "scale_too_low": Cause(
        "The scale that should lift gradients over float16's smallest number has fallen so far that it does so no "
        "longer: smaller ones are rounded to exactly zero. It fell because steps with gradients that are not finite "
        "were skipped: look at the first of these.",
        "nonfinite",
    ),
    "fp16_overflow": Cause(
        "Parameters or gradients are float16, whose largest value is 65504: anything above is infinite. If no value "
        "was near that, an operation made it, such as a log or a division of zero.",
        "fp16",
    ),
    "nonfinite_loss": Cause(
        "The loss itself became NaN or infinite. If it was rising in the steps before, the training diverged. If it "
        "was not, one operation or batch made it: a log or division of zero, or a bad sample.",
        "nonfinite_loss",
    ),
    "sudden_nonfinite_loss": Cause(
        "The loss became NaN or infinite at once, without a rise in the steps before. Most often one operation or "
        "batch makes it, such as a log or division of zero, or a bad sample; a single step that is far too large "
        "does as well.",
        "nonfinite",
    ),
    "loss_diverged": Cause(
        "The loss rose to more than 10 times its level in the steps before it became NaN or infinite: the training "
        "diverged. Which setting or batch caused it is not known from the gradients.",
        "diverging",
    ),
    "diverged": Cause(
        "Gradients exploded shortly before the loss became NaN or infinite: the training diverged. Which setting or "
        "batch caused it is not known from the gradients.",
        "diverging",
    ),
    "gone": Cause(
        "Either the process was killed (out of memory, a time limit, preemption, a machine that went down), or it "
        "runs and cannot reach the collector: then its data will arrive later. Check the job first.",
        "restart",
    ),
    "ended_while_stalled": Cause(
        "It made no step for a while before. It probably hung, and then its process was killed by a person, a time "
        "limit or a watchdog of its own.",
        "standstill",
    ),
    "lost_rank": Cause(
        "Some of its processes are not heard of any more, and the others make no step: they probably wait in a "
        "collective for one that was killed or hangs.",
        "standstill",
    ),
    "waiting": Cause(
        "Its process does something else than training steps, or waits: a long evaluation, a checkpoint or a download; "
        "a collective that one rank does not join, data that does not come, a lock, a debugger; a notebook whose loop "
        "is over.",
        "standstill",
    ),
    "exception": Cause(
        "An exception that the script did not catch ended the training. The frames name the lines, the innermost "
        "first.",
        "exception",
    ),
    "exception_after_fault": Cause(
        "An exception that the script did not catch ended the training. Gradients exploded, or values were NaN or "
        "infinite, shortly before: the exception may be a consequence of that.",
        "exception",
    ),
    "out_of_memory": Cause(
        "The memory did not suffice for what this step allocated. The frames name the line that asked for it.",
        "out_of_memory",
    ),
    "nonfinite_gradient": Cause(
        "Gradients became NaN or infinite before any loss that was seen. Most often the backward of some operation "
        "overflows or divides by zero (sqrt or norm at zero, a mask full of -inf).",
        "nonfinite",
    ),
    "metric_after": Cause(
        "An incident of the gradients opened at these steps or before: look at that first. If it began before the "
        "metric changed, the metric probably shows its consequence.",
        "metric",
    ),
    "metric_of_tags": Cause(
        "Other series of this metric did not change like this, so look at what is particular to these tags: their "
        "data, their weight in the loss, or the program that scores them. From the number alone it is not known "
        "whether the model or the evaluation changed.",
        "metric",
    ),
    "metric_of_all": Cause(
        "Either the model became worse, or the evaluation or its data changed: from the number alone that is not "
        "known.",
        "metric",
    ),
    "metric_not_finite": Cause(
        "The evaluation returned NaN or infinity: there was nothing to score, something was divided by zero, or the "
        "outputs of the model are not finite.",
        "metric",
    ),
}


def framework(name: str | None) -> str:
    """Return the framework of the texts for a name that an agent reports; plain PyTorch for an unknown one."""
    key = (name or "").lower().replace("-", "_").split(" ")[0]
    key = _ALIASES.get(key, key)
    return key if key in FRAMEWORKS else "pytorch"


def fix(cause: str, framework_name: str | None, step: int = -1) -> Fix:
    """Return the fix for a cause, by its code, written for a framework; ``step`` is the one at which it began.

    -1 is the beginning of the launch.
    """
    remedy = CAUSES[cause].remedy
    found = framework(framework_name)
    words, code = WORDS.get(remedy, {}).get(found) or ("", remedy_texts.CODE[remedy])
    back = "start again" if step < 1 else f"go back to a checkpoint before step {step:,}"
    return Fix(found, f"{TEXTS[remedy]} {words}".strip().replace("{back}", back), code)
