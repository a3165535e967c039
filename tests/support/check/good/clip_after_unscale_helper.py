"""Two optimizers with a scaler each, and a helper that unscales and clips."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
generator = nn.Linear(4, 16).to(device)
critic = nn.Linear(16, 1).to(device)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4)
scaler_g, scaler_c = torch.amp.GradScaler(device), torch.amp.GradScaler(device)


def update(loss, scaler, optimizer, module):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


for _ in range(5):
    real, noise = torch.randn(8, 16, device=device), torch.randn(8, 4, device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss_c = critic(generator(noise).detach()).mean() - critic(real).mean()
    update(loss_c, scaler_c, opt_c, critic)
    with torch.autocast(device, dtype=torch.float16):
        loss_g = -critic(generator(noise)).mean()
    update(loss_g, scaler_g, opt_g, generator)
