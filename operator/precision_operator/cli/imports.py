"""What the start of a verb leaves out of two libraries that it imports: half of the CPU that they would cost.

The operator imports them whole, for it starts once.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Where OpenSSL looks for a machine's certificates; kept as they are where a user has set them."""


def prepare_imports() -> None:
    """Import kubernetes.aio's connection and kubeconfig, and what they need, and nothing else of it."""
    _without_the_synchronous_client()
    with _without_the_machines_certificates():
        _without_the_models_client()


def _without_the_synchronous_client() -> None:
    """Let ``client`` and ``config`` of ``kubernetes.aio`` be imported alone: its packages import all the rest first.

    They do so still, once something else of them is asked for.
    """
    for name in ("kubernetes", "kubernetes.aio"):
        spec = importlib.util.find_spec(name)
        if spec is not None and name not in sys.modules:
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            module.__dict__["__getattr__"] = partial(_of_the_whole, module)
            if name != "kubernetes":
                sys.modules["kubernetes"].__dict__["aio"] = module


@contextmanager
def _without_the_machines_certificates() -> Iterator[None]:
    """aiohttp reads them twice as it is imported, for contexts that no connection here uses: each brings its own."""
    before = {name: os.environ.get(name) for name in _CERTIFICATES}
    os.environ.update(dict.fromkeys(_CERTIFICATES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _without_the_models_client() -> None:
    """Let the kubeconfig's loader be imported alone: it names ``ApiClient``, whose imports are a quarter of all CPU.

    Who asks the package for it afterwards gets it.
    """
    import kubernetes.aio.client as package

    if "ApiClient" not in vars(package):
        vars(package)["ApiClient"] = None
        importlib.import_module("kubernetes.aio.config")
        del vars(package)["ApiClient"]


def _of_the_whole(package: ModuleType, name: str) -> object:
    """An attribute of a package that was not run yet."""
    del package.__dict__["__getattr__"]
    if package.__spec__ is not None and package.__spec__.loader is not None:
        package.__spec__.loader.exec_module(package)
    return getattr(package, name)
