"""not_optimized: only what is called and nothing else can be in no optimizer."""

import pytest

from support.agent.checked import found

CODE = "not_optimized"
TRAINING = """\
import torch
from torch import nn
head = nn.Linear(8, 1)
encoder = {made}
optimizer = torch.optim.SGD({parameters}, lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    features = {features}
    loss = nn.functional.mse_loss(head(features), y)
    loss.backward()
    optimizer.step()
"""


def checked(
    made: str = "nn.Linear(4, 8).to(device)", parameters: str = "head.parameters()", features: str = "encoder(x)"
) -> list[tuple[int, str]]:
    return found(TRAINING.format(made=made, parameters=parameters, features=features), CODE)


def test_left_out() -> None:
    assert checked() == [(4, CODE)]
    assert checked(made="nn.Sequential(nn.Linear(4, 8), nn.ReLU())") == [(4, CODE)]


@pytest.mark.parametrize(
    "features",
    ["encoder(x).detach()", "x", "(torch.no_grad()(encoder))(x)", "helper(encoder, x)", "encoder.features(x)"],
)
def test_quiet_where_no_gradient_certainly_reaches_it(features: str) -> None:
    assert checked(features=features) == []


@pytest.mark.parametrize(
    "parameters",
    [
        "[*head.parameters(), *encoder.parameters()]",
        "nn.ModuleList([head, encoder]).parameters()",
        "gather(head, encoder)",
        "[image]",
    ],
)
def test_quiet_where_it_may_be_given_to_the_optimizer(parameters: str) -> None:
    assert checked(parameters=parameters) == []


@pytest.mark.parametrize("made", ["nn.ReLU()", "elsewhere.Encoder()", "nn.Linear(4, 8).eval()"])
def test_quiet_where_it_may_have_nothing_to_train(made: str) -> None:
    assert checked(made=made) == []


LIGHTNING = """\
import lightning
import torch
from torch import nn
class Net(lightning.LightningModule):
    def __init__(self):
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
    def training_step(self, batch, _):
        return self.head({features}).mean()
    def configure_optimizers(self):
        return torch.optim.Adam({parameters})
"""


def test_lightning() -> None:
    def checked(
        features: str = "self.encoder(batch)", parameters: str = "self.head.parameters()"
    ) -> list[tuple[int, str]]:
        return found(LIGHTNING.format(features=features, parameters=parameters), CODE)

    assert checked() == [(6, CODE)]
    assert checked(features="self.encoder(batch).detach()") == []
    for parameters in ("self.parameters()", "self.chosen()", "choose(self)"):
        assert checked(parameters=parameters) == []
