"""A real Prometheus as a process, for tests that need its judgement and not a cluster."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from lab.cluster.ports import free_ports
from lab.process import Daemon
from lab.setup.debian import program_of
from lab.waiting import answers, wait_for


class Prometheus:
    """A Prometheus on a free port of the loopback address, with the configuration given. A context manager; ready when
    entered.

    `config` is what prometheus.yml holds; `rules` are rule files by name, loaded too.
    """

    def __init__(
        self, directory: Path, config: Mapping[str, Any], *, rules: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.directory = directory
        port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{port}"
        self._config = dict(config)
        self._rules = dict(rules or {})
        self._daemon = Daemon(
            "prometheus",
            [
                prometheus_program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-lifecycle",
                "--web.enable-admin-api",
                "--log.level=warn",
            ],
            directory,
        )

    def __enter__(self) -> Prometheus:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it with the data it has, and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = dict(self._config)
        for name, content in self._rules.items():
            (self.directory / f"{name}.rules.yaml").write_text(yaml.safe_dump(dict(content)))
        if self._rules:
            config["rule_files"] = [*config.get("rule_files", []), str(self.directory / "*.rules.yaml")]
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._daemon.start()
        wait_for(self._ready, what="Prometheus to be ready", seconds=120, every=0.1, found=lambda: self._daemon.tail())

    def stop(self) -> None:
        """Stop it; its data stays in the folder."""
        self._daemon.stop()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an instant query, and return the result's vector."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def _ready(self) -> bool:
        self._daemon.require_running()
        return answers(f"{self.url}/-/ready")


def prometheus_program(name: str) -> Path:
    """Return `prometheus` or `promtool`: the machine's own, else Debian's package unpacked, so that no service is
    installed.
    """
    return program_of("prometheus", name)
