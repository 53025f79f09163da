"""kubectl as a function: output captured, JSON parsed, failures raised with what it said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.process import run
from lab.waiting import wait_for

Json = dict[str, Any]


class Kubectl:
    """kubectl, bound to one cluster and one identity."""

    def __init__(self, program: str | Path, kubeconfig: Path, context: str | None = None) -> None:
        self.kubeconfig = kubeconfig
        self.context = context
        self.command: list[str | Path] = [
            program,
            "--kubeconfig",
            kubeconfig,
            *(["--context", context] if context else []),
        ]

    def __call__(
        self, *arguments: str | Path, input: str | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; raise CommandFailed on failure unless `check` is off."""
        return run([*self.command, *arguments], input=input, check=check, timeout=timeout)

    def json(self, *arguments: str | Path, input: str | None = None) -> Json:
        """Run kubectl with `-o json` and parse what it prints."""
        parsed: Json = json.loads(self(*arguments, "-o", "json", input=input).stdout)
        return parsed

    def find(self, *arguments: str | Path) -> Json | None:
        """Get one object, or None where there is none: `find("pod", "x", "-n", "y")`."""
        output = self("get", *arguments, "-o", "json", "--ignore-not-found").stdout
        return json.loads(output) if output.strip() else None

    def apply(self, *objects: Mapping[str, Any] | Path) -> None:
        """Apply objects, files or folders server-side, as one of them or many."""
        for item in objects:
            if isinstance(item, Path):
                self("apply", "--server-side", "--force-conflicts", "-f", item)
            else:
                self("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(item))

    def wait_until(self, condition: str, *resource: str, seconds: float = 60) -> None:
        """Wait for a condition of an object that exists: `wait_until("condition=Ready", "pod/x", "-n", "y")`."""
        self("wait", f"--for={condition}", *resource, f"--timeout={seconds:g}s", timeout=seconds + 30)

    def wait_for_namespace(self, namespace: str) -> None:
        """Wait until pods may be made in a namespace: the controllers have given it its default ServiceAccount."""
        wait_for(
            lambda: self.find("serviceaccount", "default", "-n", namespace),
            what=f"the default ServiceAccount of namespace {namespace}",
            seconds=60,
        )
