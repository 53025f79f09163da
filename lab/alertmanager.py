"""A real Alertmanager as a process, for tests of what it posts."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import urlopen

import yaml

from lab.cluster.pki import Certificate
from lab.cluster.ports import free_ports
from lab.process import Daemon
from lab.setup.debian import program_of
from lab.waiting import answers, wait_for


class Alertmanager:
    """An Alertmanager on a free port, with this configuration. A context manager; ready when entered.

    With a certificate it serves HTTPS; ``authority`` is what it chains to.
    """

    def __init__(
        self,
        directory: Path,
        config: dict[str, Any],
        *,
        certificate: Certificate | None = None,
        authority: Path | None = None,
    ) -> None:
        self.directory = directory
        self._config = config
        self._certificate, self._authority = certificate, authority
        port = free_ports(1)[0]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
        self._daemon = Daemon(
            "alertmanager",
            [
                *_command(program_of("prometheus-alertmanager", "prometheus-alertmanager")),
                f"--config.file={directory / 'alertmanager.yml'}",
                f"--storage.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
                *([f"--web.config.file={directory / 'web.yml'}"] if certificate else []),
                "--log.level=warn",
            ],
            directory,
        )

    def __enter__(self) -> Alertmanager:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "alertmanager.yml").write_text(yaml.safe_dump(self._config))
        if self._certificate is not None:
            pair = {"cert_file": str(self._certificate.certificate), "key_file": str(self._certificate.key)}
            (self.directory / "web.yml").write_text(yaml.safe_dump({"tls_server_config": pair}))
        self._daemon.start()
        wait_for(
            self._ready, what="Alertmanager to be ready", seconds=120, every=0.1, found=lambda: self._daemon.tail()
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._daemon.stop()

    def alerts(self) -> list[dict[str, Any]]:
        """What it has been sent, and has not expired."""
        with urlopen(f"{self.url}/api/v2/alerts", timeout=10, context=self._context()) as answer:  # noqa: S310, RUF100
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self._authority) if self._authority is not None else None

    def _ready(self) -> bool:
        self._daemon.require_running()
        return answers(f"{self.url}/-/ready", context=self._context())


def _command(program: Path) -> list[str | Path]:
    """Debian's build reads templates from /usr/share: unpacked and not installed, it alone sees its own there."""
    share = program.parents[1] / "share"
    if not (share / "prometheus" / "alertmanager").is_dir() or share == Path("/usr/share"):
        return [program]
    script = 'mount --bind "$0" /usr/share && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, share, program]
