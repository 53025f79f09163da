"""Real processes with a real gloo group, kept for all tests of a session: importing torch is most of their cost."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import cast

Result = dict[str, object]


def _worker(rank: int, world: int, port: int, pipe: Connection) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1"
    )
    warnings.simplefilter("error")
    import torch

    from precision_trainer.gang.ddp import cleanup_distributed, init_distributed

    torch.set_num_threads(1)
    init_distributed("gloo", timeout_seconds=120)
    try:
        while (name := pipe.recv()) is not None:
            try:
                module, _, function = name.rpartition(".")
                scenarios = importlib.import_module(f"tests.trainer.{module or 'scenarios'}")
                result: Result = getattr(scenarios, function)(rank, world)
                pipe.send(result)
                if result.get("exit"):
                    os._exit(1)
            except Exception as error:  # noqa: BLE001  (the test decides what it means)
                pipe.send(error)
    finally:
        cleanup_distributed()


class Gang:
    """Runs a function of scenarios.py, or of another module of this folder as ``module.function``, on every rank."""

    def __init__(self, world: int) -> None:
        from precision_trainer.gang.launch import free_port

        # Ranks are forked from a server that has imported torch, and what its first step imports, once for all of them.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", "torch.nn.parallel.distributed"])
        port = free_port()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(rank, world, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, name: str, timeout: float = 180.0, ranks: Iterable[int] | None = None) -> list[Result]:
        """Results by rank (of ``ranks``, where others are not expected to live); raises what a rank raised."""
        for pipe in self._pipes:
            pipe.send(name)
        results: list[Result] = []
        for rank in range(len(self._pipes)) if ranks is None else ranks:
            pipe = self._pipes[rank]
            if not pipe.poll(timeout):
                raise TimeoutError(f"rank {rank} gave no result for {name} within {timeout} s")
            result: object = pipe.recv()
            if isinstance(result, Exception):
                raise result
            results.append(cast(Result, result))
        return results

    def kill(self) -> None:
        """End the processes without asking: some of them wait for one that is dead."""
        for process in self._processes:
            process.kill()
            process.join(20)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
