"""A training loop of your own that keeps the contract: it takes requests while it trains, and reports its mode.

python examples/contract_loop.py        (docs/contract.md; what `train` does beside it, such as checkpoints, stays yours)
"""

import os
import sys
from dataclasses import replace

import torch
from own_model import build

from precision_trainer import ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import EXIT_STOPPED
from precision_trainer.job.signals import StopFlag
from precision_trainer.precision.boot import Requests
from precision_trainer.telemetry.changes import tell_change
from precision_trainer.telemetry.exporter import Exporter
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.config import read_boot
from precision_trainer.values.logs import from_env

BATCH_SIZE = 64


def main() -> int:
    """Train until SIGTERM."""
    log, metrics = from_env(), Metrics()
    stop = StopFlag.install(log)
    log.event("metrics", port=Exporter(metrics, int(os.environ.get("TRAINER_METRICS_PORT", "9400"))).port)

    def refused(reason: str, message: str) -> None:
        metrics.request_error(reason)
        log.warning("request_refused", message, reason=reason)

    boot = read_boot(os.environ, has_cuda=torch.cuda.is_available())
    requests = Requests(boot, refused)
    start = requests.start(log)  # the request file, else the environment
    config = replace(boot.scaling, precision_mode=start.mode, enabled=start.mode is not PrecisionMode.FP32)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, batches, loss_fn = build()
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=1e-3, fused=True)
    trainer = ExtendedFP16Trainer(model, optimizer, config, device, log=log)
    trainer.modes.applied, trainer.modes.on_refused = start.request, refused
    trainer.request_source = requests.source(lambda: trainer.applied)

    stop.training_begins()
    while True:
        trainer.stop_asked = stop.asked
        boundary = trainer.begin_step()
        if boundary.change is not None:
            tell_change(log, boundary.change, loss_scale=float(trainer.scaler.scale_value))
        for record in boundary.records:
            metrics.add({"genesis_training_steps": 1, "genesis_nonfinite_loss_steps": record.nonfinite})
            metrics.acknowledge(record.mode.wire, record.generation)
        if boundary.stop:
            trainer.save_checkpoint(os.environ.get("CHECKPOINT", "model.pt"))
            return EXIT_STOPPED
        batch = tuple(part.to(device) for part in batches(trainer.step * BATCH_SIZE, BATCH_SIZE))
        trainer.backward_and_step(trainer.training_step(batch, loss_fn))


if __name__ == "__main__":
    sys.exit(main())
