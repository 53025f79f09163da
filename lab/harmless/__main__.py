"""``python -m lab.harmless [case …]``: trains each script without and with us, writes build/harmless.json, shows it.

Exit code 1 where one did not finish, where losses differ, where a training in 16 bits was never looked into by the sentinel,
where a refusal is missing, or where there are too few.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from rich.table import Table

from lab import paths
from lab.harmless.measure import apart, load, refused_apart
from lab.harmless.script import CASES, REFUSALS
from lab.progress import console, say, step

RESULT = paths.BUILD / "harmless.json"
CASES_NEEDED, PUBLIC_SHAPES_NEEDED = 30, 12
Line = dict[str, object]


def missed(cases: Sequence[Line], refused: Sequence[Line], *, whole: bool = True) -> list[str]:
    """What does not hold, one sentence each.

    Args:
        cases: lines of the file.
        refused: lines of the file.
        whole: whether all cases were run, so that their number counts.
    """
    sentences = [
        f"{line['id']}: expected it to finish, found {line['reported']}" for line in cases if not line["finished"]
    ]
    sentences += [
        f"{line['id']}: expected the same losses without and with us, found others; read {RESULT}"
        for line in cases
        if line["finished"] and not line["losses_equal"]
    ]
    sentences += [
        f"{line['id']}: expected the sentinel to look at a step of a training in 16 bits, or to say why not"
        for line in cases
        if line["finished"] and line["low"] and not line["looked"] and not line["reported"]
    ]
    sentences += [
        f"{line['id']}: expected a refusal at construction, found none" for line in refused if not line["message"]
    ]
    if whole and len(cases) < CASES_NEEDED:
        sentences.append(f"expected at least {CASES_NEEDED} cases, found {len(cases)}")
    shapes = sum(bool(line["public_shape"]) for line in cases)
    if whole and shapes < PUBLIC_SHAPES_NEEDED:
        sentences.append(f"expected at least {PUBLIC_SHAPES_NEEDED} cases in a public script's shape, found {shapes}")
    return sentences


def show(cases: Sequence[Line], refused: Sequence[Line]) -> None:
    """For a person."""
    table = Table("case", "stack", "finished", "losses equal", "sentinel looked", "reported")
    for line in cases:
        table.add_row(*(str(line[name]) for name in ("id", "stack", "finished", "losses_equal", "looked", "reported")))
    for line in refused:
        table.add_row(str(line["id"]), "refused", "", "", "", str(line["message"]))
    console.print(table)


def main() -> int:
    """Train what is asked for, write, show."""
    load()
    parser = argparse.ArgumentParser(prog="python -m lab.harmless", description="Scripts, trained without and with us.")
    parser.add_argument("cases", nargs="*", help="which to run; all where none is named")
    wanted: list[str] = parser.parse_args().cases
    if unknown := sorted(set(wanted) - {*CASES, *REFUSALS}):
        parser.error(f"expected cases of {', '.join((*CASES, *REFUSALS))}; found {', '.join(unknown)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [case for name, case in CASES.items() if not wanted or name in wanted]
    cases: list[Line] = []
    for case in chosen:
        with step(case.id):
            cases.append(apart(case).line(case))
    chosen_refusals = [case for name, case in REFUSALS.items() if not wanted or name in wanted]
    refused: list[Line] = [{"id": case.id, "message": refused_apart(case)} for case in chosen_refusals]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"cases": cases, "refused": refused}, indent=1, allow_nan=False) + "\n")
    show(cases, refused)
    equal = sum(bool(line["losses_equal"]) for line in cases)
    shapes = sum(bool(line["public_shape"]) for line in cases)
    looked = sum(bool(line["looked"]) for line in cases)
    say(
        f"{len(cases)} cases, {shapes} in a public script's shape, {equal} with equal losses, {looked} that the sentinel "
        f"looked into, {len(refused)} refusals"
    )
    sentences = missed(cases, refused, whole=not wanted)
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
