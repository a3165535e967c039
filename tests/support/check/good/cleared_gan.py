"""A GAN with two optimizers, LBFGS with a closure, and an optimizer that steps in a hook of backward."""

import torch
from torch import nn

generator, critic = nn.Linear(4, 16), nn.Linear(16, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4)

for _ in range(5):
    fake = generator(torch.randn(8, 4))
    for opt in (opt_c, opt_g):
        opt.zero_grad()
    loss_c = critic(fake.detach()).mean() - critic(torch.randn(8, 16)).mean()
    loss_c.backward()
    opt_c.step()
    loss_g = -critic(fake).mean()
    loss_g.backward()
    opt_g.step()

model = nn.Linear(16, 1)
lbfgs = torch.optim.LBFGS(model.parameters())


def closure():
    lbfgs.zero_grad()
    loss = model(torch.ones(8, 16)).square().mean()
    loss.backward()
    return loss


for _ in range(3):
    lbfgs.step(closure)

in_backward = nn.Linear(16, 1)
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in in_backward.parameters()}


def step_now(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in in_backward.parameters():
    p.register_post_accumulate_grad_hook(step_now)
for _ in range(3):
    in_backward(torch.randn(8, 16)).square().mean().backward()
