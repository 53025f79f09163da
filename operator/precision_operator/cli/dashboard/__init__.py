"""``dashboard``: a local page with the rights of the user's kubeconfig; it shows what the other verbs read and writes what
they write. It may import the other verbs, ``core``, ``incidents``, ``replay`` and ``signals``, and decides nothing itself.
"""

import argparse

from precision_operator.cli.flags import Commands
from precision_operator.cli.live import add_flags
from precision_operator.cli.session import Session


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "dashboard",
        parents=[common],
        help="a local web page of the fleet, with your own rights",
        description="Serve a page on 127.0.0.1 until Ctrl-C: the fleet by mode and verdict, each policy's phase, timeline "
        "and signals, incidents with their evidence, and the commands, each with a preview. It reads and writes with the "
        "rights of your kubeconfig. The address that is printed opens the page once, in one browser.",
    )
    verb.add_argument("--port", type=int, default=0, help="default: a free one")
    verb.add_argument("--open", action="store_true", help="open the page in the default browser")
    add_flags(verb, policy="the policy that the page opens with; default: the grid of all")
    verb.set_defaults(run=_dashboard)


async def _dashboard(session: Session, arguments: argparse.Namespace) -> int:
    from precision_operator.cli.dashboard.server import serve

    return await serve(session, arguments)
