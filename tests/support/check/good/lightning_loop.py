"""Lightning divides, clears, unscales and steps by itself."""

import lightning
import torch
from torch import nn


class AutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 4)
        self.decoder = nn.Linear(4, 16)

    def training_step(self, batch, _):
        x = batch[0]
        return (self.decoder(torch.tanh(self.encoder(x))) - x).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 16)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="auto",
        precision="16-mixed" if torch.cuda.is_available() else "32-true",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(AutoEncoder(), data)
