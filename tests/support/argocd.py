"""Argo CD's part: it runs the scripts of ``manifests/argocd`` in Lua 5.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from lupa import lua51

_CONFIG = Path(__file__).parents[2] / "manifests" / "argocd" / "argocd-cm.yaml"
_DATA = yaml.safe_load(_CONFIG.read_text())["data"]
_ACTIONS = yaml.safe_load(_DATA["resource.customizations.actions.precision.genesis.ai_PrecisionPolicy"])

Json = dict[str, Any]


def health(policy: Json) -> Json:
    """What Argo CD shows of a policy."""
    return _lua(_DATA["resource.customizations.health.precision.genesis.ai_PrecisionPolicy"], policy)


def actions(policy: Json) -> Json:
    """What Argo CD shows of its actions."""
    return _lua(_ACTIONS["discovery.lua"], policy)


def offered(policy: Json) -> set[str]:
    """The names of the actions that can be clicked."""
    return {name for name, action in actions(policy).items() if not action["disabled"]}


def definitions() -> set[str]:
    """The names of the actions that there are."""
    return {made["name"] for made in _ACTIONS["definitions"]}


def clicked(action: str, policy: Json) -> Json:
    """What an action makes of a policy."""
    (code,) = (made["action.lua"] for made in _ACTIONS["definitions"] if made["name"] == action)
    return _lua(code, policy)


def unclicked(policy: Json) -> Json:
    """A policy as it comes back from Lua, which knows no lists."""
    return _lua("return obj", policy)


def _lua(code: str, policy: Json) -> Json:
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = runtime.table_from(policy, recursive=True)
    found: Json = _plain(runtime.execute(code))
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401  whatever Lua returns
    if lua51.lua_type(value) != "table":
        return value
    return {key: _plain(found) for key, found in value.items()}
