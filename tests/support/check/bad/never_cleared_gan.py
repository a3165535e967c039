"""Two optimizers, and none of them clears."""

import torch
from torch import nn

generator, critic = nn.Linear(4, 16), nn.Linear(16, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4)

for _ in range(5):
    fake = generator(torch.randn(8, 4))
    loss_c = critic(fake.detach()).mean() - critic(torch.randn(8, 16)).mean()
    loss_c.backward()
    opt_c.step()  # <- never_cleared
    loss_g = -critic(fake).mean()
    loss_g.backward()
    opt_g.step()
