"""A LightningModule whose configure_optimizers() leaves the decoder out."""

import lightning
import torch
from torch import nn


class AutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 4)
        self.decoder = nn.Linear(4, 16)  # <- not_optimized

    def training_step(self, batch, _):
        x = batch[0]
        return (self.decoder(torch.tanh(self.encoder(x))) - x).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.encoder.parameters(), lr=1e-3)


if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 16)), batch_size=8)
    trainer = lightning.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(AutoEncoder(), data)
