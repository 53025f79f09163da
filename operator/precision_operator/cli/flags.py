"""The flags that kubectl has, too."""

import argparse
from pathlib import Path


def connection_flags() -> argparse.ArgumentParser:
    """The flags that kubectl has for where to go; they may stand before or after the verb."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    where = common.add_argument_group("connection, as in kubectl")
    where.add_argument("-n", "--namespace", help="default: the context's")
    where.add_argument("--context", help="default: the current one")
    where.add_argument(
        "--kubeconfig", type=Path, help="default: $KUBECONFIG, ~/.kube/config, or the pod's service account"
    )
    where.add_argument("-o", "--output", choices=("text", "json"), help="json: for programs (default text)")
    return common
