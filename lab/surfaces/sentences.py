"""The runbooks' commands within sentences: they act, so they are rehearsed, after the page's blocks.

Where a command can be judged without effect, it is: the API server or the plugin gets its ``--dry-run``. What a command
needs is made so before, and what it would be refused for where the lab stands is expected of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab import paths
from lab.docs.commands import Block, in_prose
from lab.surfaces.scene import SYSTEM, TRAINING, Scene

PAGE = "docs/runbooks.md"

_DRY = {
    r"kubectl (cordon|scale|delete pod) ": "--dry-run=server",
    r"kubectl precision (ack|drill|promote|release|resume|retry|rollback) ": "--dry-run",
}
"""How a command is kept from acting, by what it begins with. Any other is carried out."""

_REFUSED = {
    "kubectl precision promote ": "waits for no approval",
    "kubectl precision release ": "has its policy",
}
"""What a command is answered where the lab stands: a step that waits for approval, or a deleted policy, is not there."""


@dataclass(frozen=True)
class Rehearsed:
    """A command as it is run, and what is expected of it."""

    run: str
    refusal: str = ""
    """It ends with another code than 0, and says this; empty: with 0."""

    @property
    def script(self) -> str:
        """For a shell that ends with the first failure."""
        if not self.refusal:
            return f"{self.run}\n"
        return f'said=$({self.run} 2>&1) && exit 1\necho "$said"\ngrep -q "{self.refusal}" <<< "$said"\n'


def commands_in_sentences(blocks: Sequence[Block], page: str) -> list[str]:
    """Those of the runbooks that no block has, once each. Those that need a fleet that was rolled back come last."""
    pasted = {line for block in blocks if block.page == PAGE for line in block.text.splitlines()}
    return sorted(set(in_prose(page)) - pasted, key=lambda command: (needs_held(command), command))


def needs_held(command: str) -> bool:
    """Whether it is for a fleet that was rolled back."""
    return re.match(r"kubectl precision (ack|retry|incident) ", command) is not None


def rehearsed(command: str, values: Mapping[str, str]) -> Rehearsed:
    """A command of a sentence with the reader's own names in it."""
    run = re.sub(r"(?<![$\w])[A-Z]+\b", lambda word: values.get(word[0], word[0]), command)
    dry = next((flag for beginning, flag in _DRY.items() if re.match(beginning, command)), "")
    refusal = next((text for beginning, text in _REFUSED.items() if command.startswith(beginning)), "")
    return Rehearsed(f"{run} {dry}".rstrip(), refusal)


def values(scene: Scene, command: str) -> Mapping[str, str]:
    """What stands in a command for the reader to replace, and what they put there."""
    found = {"WHY": "'what I saw'", "NAME": "vit"}
    if "--workload" in command:
        found["NAME"] = "deployment/vit"
    if "NODE" in command:
        found["NODE"] = scene.kubectl.json("get", "nodes")["items"][0]["metadata"]["name"]
    if "-n $SYSTEM" in command:
        labels = "app.kubernetes.io/name=precision-operator"
        found["POD"] = scene.kubectl.json("get", "pods", "-n", SYSTEM, "-l", labels)["items"][0]["metadata"]["name"]
    if "INCIDENT" in command:
        incidents = scene.kubectl.json("get", "precisionincidents", "-n", TRAINING)["items"]
        found["INCIDENT"] = incidents[-1]["metadata"]["name"]
    found["DIR"] = "/checkpoints" if "checkpoint" in command else "exported"
    return found


def runbooks() -> str:
    """The page."""
    return (paths.ROOT / PAGE).read_text()
