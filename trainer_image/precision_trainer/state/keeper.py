"""Saving and resuming the whole gang: every rank takes part, rank 0 writes."""

from __future__ import annotations

import time

import torch

from ..errors import CheckpointError
from ..gang import ddp
from ..precision.trainer import ExtendedFP16Trainer
from ..telemetry.logs import JsonLog
from ..telemetry.progress import Progress
from .checkpoint import FORMAT, CheckpointStore, ModeEntry

_HISTORY = 200
"""Mode changes kept; the oldest go first."""


class Keeper:
    """Knows what belongs into a checkpoint besides the weights. All methods are called by all ranks at the same step."""

    def __init__(
        self,
        trainer: ExtendedFP16Trainer,
        store: CheckpointStore | None,
        fingerprint: str,
        samples_per_step: int,
        log: JsonLog,
    ) -> None:
        self._trainer, self._store, self._log = trainer, store, log
        self._fingerprint = fingerprint
        self._samples_per_step = samples_per_step
        self.progress = Progress()
        self.history: list[ModeEntry] = []
        self.saved_step = 0
        """Step of the last checkpoint saved or resumed from; 0 if none."""

    def resume(self) -> None:
        """Load the newest good checkpoint, the same on all ranks, and say so; nothing if there is none.

        Raises:
            CheckpointError: none can be used, or a rank cannot read the one that rank 0 chose.
        """
        trainer, store = self._trainer, self._store
        if store is None:
            return
        chosen: dict[str, object] = {"step": None, "error": None}
        loaded = None
        if trainer.rank == 0:
            store.clean()
            try:
                loaded = store.load_newest(trainer.model)
                chosen["step"] = loaded.state["step"] if loaded is not None else None
            except CheckpointError as error:
                # Rank 0 must not leave the others waiting: they get to know first.
                chosen["error"] = str(error)
        chosen = ddp.exchange(chosen)[0]
        if chosen["error"] is not None:
            raise CheckpointError(str(chosen["error"]))
        step = chosen["step"]
        if not isinstance(step, int):
            return
        if loaded is None:
            loaded = store.load(step, trainer.model)
        state = loaded.state
        if state["samples"] != step * self._samples_per_step:
            self._log.warning(
                "data_position",
                f"the checkpoint was made with {state['samples'] / max(step, 1):g} samples a step, now it is "
                f"{self._samples_per_step}: some samples will come again or be left out",
            )
        if state["data_fingerprint"] != self._fingerprint:
            self._log.warning(
                "data_changed", "the training text is not the one of the checkpoint (another Python version?)"
            )
        trainer.model.load_state_dict(state["model_state_dict"])
        trainer.optimizer.load_state_dict(state["optimizer_state_dict"])
        trainer.scaler.load_state_dict(state["scaler"])
        trainer.step = step
        self.progress.load_state_dict(state["progress"])
        self.history = list(state["mode_history"])
        self.saved_step = step
        if trainer.rank < len(state["rng"]):
            _set_random_state(state["rng"][trainer.rank])
        self._log.event("resumed", step=step, path=str(loaded.path), saved_mode=state["mode"], mode=trainer.mode.wire)

    def save(self, *, required: bool = False) -> tuple[int, float] | None:
        """Save the current step.

        Args:
            required: raise if it fails. Otherwise training goes on without, and the log says so.

        Returns:
            (step, wall-clock time), or None if nothing was written.
        """
        trainer, store = self._trainer, self._store
        if store is None:
            return None
        states = ddp.exchange({"rng": _random_state()})
        outcome: dict[str, object] = {"error": None}
        started = time.monotonic()
        if trainer.rank == 0:
            try:
                store.save(
                    {
                        "format": FORMAT,
                        "step": trainer.step,
                        "samples": trainer.step * self._samples_per_step,
                        "model_state_dict": trainer.model.state_dict(),
                        "optimizer_state_dict": trainer.optimizer.state_dict(),
                        "scaler": trainer.scaler.state_dict(),
                        "rng": [_as_random_state(state["rng"]) for state in states],
                        "mode": trainer.mode.wire,
                        "generation": trainer.generation,
                        "mode_history": self.history[-_HISTORY:],
                        "progress": self.progress.state_dict(),
                        "data_fingerprint": self._fingerprint,
                    }
                )
            except CheckpointError as error:
                outcome["error"] = str(error)
        # No rank goes on, or exits, before the file is complete.
        outcome = ddp.exchange(outcome)[0]
        if outcome["error"] is not None:
            if required:
                raise CheckpointError(str(outcome["error"]))
            self._log.error("checkpoint_failed", str(outcome["error"]), step=trainer.step)
            return None
        self.saved_step = trainer.step
        now = time.time()
        self._log.event("checkpoint", at=now, step=trainer.step, seconds=round(time.monotonic() - started, 4))
        return trainer.step, now


def _random_state() -> dict[str, str]:
    state = {"cpu": bytes(torch.get_rng_state().tolist()).hex()}
    if torch.cuda.is_available():
        state["cuda"] = bytes(torch.cuda.get_rng_state().tolist()).hex()
    return state


def _as_random_state(value: object) -> dict[str, str]:
    return {str(kind): str(state) for kind, state in value.items()} if isinstance(value, dict) else {}


def _set_random_state(state: dict[str, str]) -> None:
    if "cpu" in state:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cpu"]), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8))
