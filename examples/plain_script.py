"""A training loop of your own around the trainer class: FP16 with loss scaling, then a change to BF16 while it trains.

python examples/plain_script.py        (on a CPU: PRECISION_ALLOW_CPU=true, or it trains in FP32 and says so)
"""

import torch
from own_model import build

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.request import PrecisionRequest

STEPS, BATCH_SIZE = 200, 64


def main() -> None:
    """Train, change the precision half-way, and say what came of it."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, batches, loss_fn = build()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  # fused: no step waits for the device
    config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16, loss_scale=1024.0)
    trainer = ExtendedFP16Trainer(model, optimizer, config, device)
    reduced = trainer.mode is not PrecisionMode.FP32

    for step in range(STEPS):
        if reduced and step == STEPS // 2:
            trainer.apply(PrecisionRequest(generation=1, mode=PrecisionMode.MIXED_BF16))
        batch = tuple(part.to(device) for part in batches(step * BATCH_SIZE, BATCH_SIZE))
        loss = trainer.training_step(batch, loss_fn)
        trainer.backward_and_step(loss)
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step:3}  {trainer.mode.wire}  loss {loss.item():.3f}")
    print(trainer.get_stats())


if __name__ == "__main__":
    main()
