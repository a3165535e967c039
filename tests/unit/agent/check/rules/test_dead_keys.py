"""dead_key: how keys get into parameter groups, and which of them are read."""

import pytest

from support.agent.checked import found

CODE = "dead_key"
HEAD = "import torch\noptimizer = torch.optim.AdamW(model.parameters())\n"


@pytest.mark.parametrize(
    "line",
    [
        "optimizer.param_groups[0]['grad_accumulator_dtype'] = torch.float32",
        "for i, group in enumerate(optimizer.param_groups): group['accumulator_dtype'] = torch.float32",
        "optimizer.param_groups[-1].update(master_dtype=torch.float32)",
        "optimizer.param_groups[0].setdefault('state_precision', 'fp32')",
        "optimizer.add_param_group({'params': more, 'reduce_dtype': torch.float32})",
        "group = optimizer.param_groups[0]; group['accum_dtype'] = torch.float32",
        "groups = [{'params': more, 'grad_accum_dtype': torch.float32}]",
    ],
)
def test_written_and_never_read(line: str) -> None:
    assert found(HEAD + line, CODE) == [(3, CODE)]
    assert found(HEAD + line + "\nprint(group.get('x'), other['y'])", CODE) == [(3, CODE)]


@pytest.mark.parametrize(
    "line",
    [
        "optimizer.param_groups[0]['lr'] = 1e-3",
        "optimizer.param_groups[0]['lr_scale'] = 0.5",
        "config['accumulator_dtype'] = torch.float32",
        "optimizer.param_groups[0]['accumulator_dtype'] = d; use(optimizer.param_groups[0]['accumulator_dtype'])",
        "optimizer.param_groups[0]['accumulator_dtype'] = d; use(group.get('accumulator_dtype'))",
        "own = bitsandbytes.Adam([{'params': more, 'accumulator_dtype': d}])",
    ],
)
def test_quiet_where_it_is_read_or_not_about_precision(line: str) -> None:
    assert found(HEAD + line, CODE) == []


def test_an_optimizer_from_elsewhere_may_read_its_keys() -> None:
    text = "from elsewhere import Adam\noptimizer = Adam(x)\noptimizer.param_groups[0]['accumulator_dtype'] = d\n"
    assert found(text, CODE) == []
    assert found(text.replace("optimizer = Adam(x)", "pass"), CODE) == [(3, CODE)]  # of torch, as far as is known
