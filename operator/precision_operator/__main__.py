"""``precision-operator``: read the settings, run until SIGTERM."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from precision_operator import __version__
from precision_operator.errors import ConfigurationError, OperatorError


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="precision-operator",
        description="Moves fleets of training workloads between FP32, BF16 and FP16, and back.",
    )
    parser.add_argument("--config", type=Path, default=Path("/etc/precision-operator/config.yaml"), help="settings")
    parser.add_argument("--kubeconfig", type=Path, help="outside of a cluster: the kubeconfig to use")
    parser.add_argument("--context", help="the context of that kubeconfig")
    parser.add_argument("--version", action="version", version=__version__)
    return parser.parse_args(argv)


async def _run(arguments: argparse.Namespace) -> None:
    from precision_operator import app
    from precision_operator.config_file import load_settings
    from precision_operator.kube.access import Access
    from precision_operator.observability import logging as json_logging

    settings = load_settings(arguments.config, environment=os.environ)
    json_logging.configure(settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await app.run(settings, Access(kubeconfig=arguments.kubeconfig, context=arguments.context), stop)


def main(argv: list[str] | None = None) -> int:
    """Run the operator; returns the exit code: 0 stopped as asked, 2 bad settings, 1 anything that needs a restart."""
    arguments = _arguments(argv)
    code = 0
    try:
        asyncio.run(_run(arguments))
    except* ConfigurationError as group:
        code = _complain(group, 2)
    except* OperatorError as group:
        code = _complain(group, 1)
    return code


def _complain(group: BaseExceptionGroup[OperatorError], code: int) -> int:
    for error in group.exceptions:
        print(f"precision-operator: {error}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
    return code


if __name__ == "__main__":
    sys.exit(main())
