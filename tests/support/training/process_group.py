"""Real processes with a real gloo group, kept for all tests of a session: importing torch is most of their cost."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any, cast

from tests.support.training.forked import context

Result = dict[str, Any]


def _worker(rank: int, env: Mapping[str, str], timeout_seconds: float, pipe: Connection) -> None:
    os.environ.update({**env, "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"})
    world = int(env["WORLD_SIZE"])
    warnings.simplefilter("error")
    import torch

    from precision_trainer.distributed import rendezvous, watch
    from precision_trainer.distributed.process_group import cleanup_distributed, init_distributed
    from precision_trainer.errors import ConfigError

    torch.set_num_threads(1)
    # Both end once the others have read what they wait for, however slow the machine is.
    watch._PARTING_SECONDS = rendezvous._READ_SECONDS = 60.0
    try:
        init_distributed("gloo", timeout_seconds=timeout_seconds)
    except ConfigError as error:
        pipe.send(error)
        return
    try:
        while (name := pipe.recv()) is not None:
            try:
                module, _, function = name.rpartition(".")
                scenarios = importlib.import_module(f"tests.support.training.{module or 'scenarios'}")
                result: Result = getattr(scenarios, function)(rank, world)
                pipe.send(result)
                if result.get("exit"):
                    os._exit(1)
            except Exception as error:  # noqa: BLE001  (the test decides what it means)
                pipe.send(error)
    finally:
        cleanup_distributed()


class ProcessGroup:
    """Runs a function of scenarios.py, or of another module of this folder as ``module.function``, on every rank."""

    def __init__(
        self,
        world: int,
        *,
        ranks: Iterable[int] | None = None,
        port: int = 0,
        timeout_seconds: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``ranks`` of ``world``, by default all, to meet at ``port``, by default any free one."""
        from precision_trainer.distributed.launch import free_port

        server = context()
        self.port = port or free_port()
        self._pipes: list[Connection] = []
        self._processes = []
        settings = {**(env or {}), "WORLD_SIZE": str(world), "MASTER_PORT": str(self.port)}
        for rank in range(world) if ranks is None else ranks:
            mine, theirs = server.Pipe()
            process = server.Process(target=_worker, args=(rank, settings, timeout_seconds, theirs), daemon=True)
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

    def refusals(self, timeout: float = 60.0) -> list[str]:
        """Why each of the ranks could not join."""
        assert all(pipe.poll(timeout) for pipe in self._pipes), "a rank neither joined nor gave up"
        return [str(pipe.recv()) for pipe in self._pipes]

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
