"""``ack``: what a person acknowledges before what was rolled back is retried."""

import argparse
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from precision_operator.api.commands import Answer, Prerequisite, answer
from precision_operator.cli.flags import Commands, meant
from precision_operator.cli.output import console, said, write_json
from precision_operator.cli.session import CommandRefused, Session, Target
from precision_operator.cli.steer import waits_for_retry
from precision_operator.cli.summary import UNKNOWN_PERSON
from precision_operator.cli.write import Asked, Planned, Write, asked, carry_out, dry_run_flag, message_flag

MEANINGS = {
    Prerequisite.ROOT_CAUSE: "the root cause is known",
    Prerequisite.FIX: "it has been fixed",
    Prerequisite.STAGING_TESTED: "the fix was tested in staging",
    Prerequisite.MONITORING: "monitoring would see it again",
    Prerequisite.TEAM_NOTIFIED: "the team knows that it starts again",
    Prerequisite.ROLLBACK_READY: "a rollback was tried",
}


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    listed = "; ".join(f"{item}: {meaning}" for item, meaning in MEANINGS.items())
    verb = commands.add_parser(
        "ack",
        parents=[common],
        help="acknowledge what a retry needs",
        description=f"Acknowledge prerequisites of a retry after a rollback ({listed}). "
        "An acknowledgement counts for the rollback that it answers, not for a later one. "
        "Without an item: show which are given, and by whom.",
    )
    verb.add_argument("policy", nargs="?", help="default: the only one of the namespace, which is shown")
    verb.add_argument("items", nargs="*", metavar="ITEM", type=item_of, help=", ".join(Prerequisite))
    message_flag(verb)
    dry_run_flag(verb)
    verb.set_defaults(run=_ack)


def item_of(word: str) -> Prerequisite:
    """The prerequisite that is meant, also as ``root-cause`` or ``ROOTCAUSE``."""
    plain = word.replace("-", "").replace("_", "").lower()
    found = next((item for item in Prerequisite if item.lower() == plain), None)
    if found is None:
        expected = f"expected one of {', '.join(Prerequisite)}, found {word!r}"
        raise argparse.ArgumentTypeError(expected + meant(word, Prerequisite))
    return found


def _is_item(word: str | None) -> bool:
    try:
        return word is not None and bool(item_of(word))
    except argparse.ArgumentTypeError:
        return False


async def _ack(session: Session, arguments: argparse.Namespace) -> int:
    try:
        target = await session.policy(arguments.policy)
    except CommandRefused as error:
        forgotten = _is_item(arguments.policy)
        raise CommandRefused(f"{error}; the policy's name stands before the items") if forgotten else error from None
    if not arguments.items:
        return _show(target, arguments)
    return await carry_out(session, target, acknowledging(target, arguments.items, asked(arguments)), arguments)


def acknowledging(target: Target, items: Sequence[Prerequisite], said_with: Asked) -> Planned:
    """The acknowledgement of these prerequisites.

    Raises:
        CommandRefused: nothing waits for one.
    """
    if target.policy.deleted or not waits_for_retry(target):
        raise CommandRefused(
            f"{target.where} is {target.status.phase}: only what was rolled back waits for acknowledgements"
        )
    answer = said_with.answering(target)
    return Planned(Write({item.annotation: answer for item in items}), f"acknowledged {', '.join(items)}")


def _show(target: Target, arguments: argparse.Namespace) -> int:
    now, asked = target.status.transition_id, target.policy.spec.reenable.prerequisites
    given = {item: answer(target.policy.annotations, item.annotation) for item in Prerequisite}
    if arguments.output == "json":
        write_json({item: {"needed": item in asked, **_json(found, now)} for item, found in given.items()})
        return 0
    rows = Table.grid(padding=(0, 2))
    for item, found in given.items():
        rows.add_row(
            item, MEANINGS[item] + ("" if item in asked else " (this policy does not ask)"), _state(found, now)
        )
    console().print(rows)
    return 0


def _json(found: Answer | None, now: int) -> dict[str, object]:
    if found is None:
        return {"given": False, "by": None, "message": None}
    return {"given": found.transition_id == now, "by": found.by, "message": found.message}


def _state(found: Answer | None, now: int) -> Text:
    if found is None:
        return Text("missing", style="yellow")
    if found.transition_id != now:
        return Text("answers an earlier rollback: does not count", style="yellow")
    who = said(f"by {found.by or UNKNOWN_PERSON}", "green")
    return who.append_text(said(f": {found.message}")) if found.message else who
