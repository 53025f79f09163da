"""A CRD's schema applied without a cluster: defaults, structure, and its CEL rules. The API server has the last word.

Structure is checked by jsonschema (MIT), rules by cel-expr-python (Apache-2.0, 0.1.3 of June 2026): Google's binding of
cel-cpp, sibling of the cel-go in the API server. It depends on nothing; import and all rules take 20 ms and 9 MiB.
cel-python needs 0.8 s and 23 MiB for that, brings seven packages and compares no whole number with a fraction;
common-expression-language is imported in 1 s and 33 MiB. Its price is 50 MiB on disk, so both libraries are in the extra
``lint``, which the operator's image leaves out, and only ``lint`` imports them.
"""

import copy
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.errors import ConfigurationError

if TYPE_CHECKING:
    from cel_expr_python import cel
    from jsonschema import ValidationError

Schema = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the API server would refuse."""

    path: str
    message: str


def faults(schema: Schema, value: object, path: str) -> tuple[Fault, ...]:
    """All that is wrong with ``value``: the structure first, as the server does, and the rules once that is right.

    Raises ConfigurationError where the libraries of the extra are not installed.
    """
    for library in ("jsonschema", "cel_expr_python.cel"):
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise ConfigurationError(
                f"lint expected the library {library}, found none ({error}): "
                "in a checkout `pip install '.[operator,lint]'`, or ask the API server: "
                "kubectl apply --dry-run=server -f FILE"
            ) from error
    whole = defaulted(schema, value)
    found = tuple(dict.fromkeys(_structure(schema, whole, path)))
    return found or tuple(_rules(schema, whole, path))


def defaulted(schema: Schema, value: object) -> object:
    """The value with the schema's defaults filled in; null counts as absent."""
    if isinstance(value, dict):
        fields = mapping(schema.get("properties"))
        filled = {k: v for k, v in value.items() if v is not None}
        for name, child in fields.items():
            inner = mapping(child)
            if name not in filled and "default" in inner:
                filled[name] = copy.deepcopy(inner["default"])
            if name in filled:
                filled[name] = defaulted(inner, filled[name])
        return filled
    if isinstance(value, list):
        return [defaulted(mapping(schema.get("items")), item) for item in value]
    return value


def _structure(schema: Schema, value: object, path: str) -> Iterator[Fault]:
    from jsonschema import Draft4Validator  # the draft that writes exclusiveMinimum as OpenAPI 3.0 does

    errors = list(Draft4Validator(_closed(schema)).iter_errors(value))
    mistyped = [error.absolute_path for error in errors if error.validator == "type"]
    for error in (e for e in errors if e.validator == "type" or e.absolute_path not in mistyped):
        where = path + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.absolute_path)
        limit, found, fields = error.validator_value, error.instance, mapping(mapping(error.schema).get("properties"))
        if error.validator == "required":
            yield from (Fault(f"{where}.{name}", "is required") for name in limit if name not in found)
        elif error.validator == "additionalProperties":
            unknown = [name for name in found if name not in fields]
            yield from (
                Fault(f"{where}.{name}", f"is no field; expected one of {', '.join(fields)}") for name in unknown
            )
        else:
            yield Fault(where, _told(error))


def _closed(schema: Schema) -> dict[str, object]:
    """The schema as JSON schema has it: no unknown fields, and each item of a set once."""
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {name: _closed(mapping(child)) for name, child in mapping(schema["properties"]).items()}
        closed.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties"):
        if isinstance(child := schema.get(name), dict):
            closed[name] = _closed(child)
    if schema.get("x-kubernetes-list-type") == "set":
        closed["uniqueItems"] = True
    return closed


def _told(error: "ValidationError") -> str:
    """What was expected and what was found; the library's words where we have none."""
    limit: Any = error.validator_value
    found: Any = error.instance
    match error.validator:
        case "type":
            return f"expected type {limit}, found {found!r}"
        case "enum":
            return f"expected one of {', '.join(map(str, limit))}, found {found!r}"
        case "pattern":
            return f"expected a text like {limit}, found {found!r}"
        case "uniqueItems":
            return f"expected each item once, found {found}"
        case "minimum":
            least = "more than" if mapping(error.schema).get("exclusiveMinimum") else "at least"
            return f"expected {least} {limit}, found {found}"
        case "maximum":
            most = "less than" if mapping(error.schema).get("exclusiveMaximum") else "at most"
            return f"expected {most} {limit}, found {found}"
        case "minLength" | "minItems":
            return f"expected at least {limit} {_COUNTED[type(found)]}, found {len(found)}"
        case "maxLength" | "maxItems" | "maxProperties":
            return f"expected at most {limit} {_COUNTED[type(found)]}, found {len(found)}"
    return error.message


_COUNTED: Mapping[type, str] = {str: "characters", list: "items", dict: "fields"}


def _rules(schema: Schema, value: object, path: str) -> Iterator[Fault]:
    for rule in map(mapping, sequence(schema.get("x-kubernetes-validations"))):
        if _evaluated(text(rule.get("rule")), value) is not True:
            yield Fault(path + text(rule.get("fieldPath")), _stated(rule, value))
    if isinstance(value, dict):
        fields = mapping(schema.get("properties"))
        for name, item in value.items():
            yield from _rules(mapping(fields.get(name, schema.get("additionalProperties"))), item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rules(mapping(schema.get("items")), item, f"{path}[{index}]")


def _stated(rule: Schema, value: object) -> str:
    """What the API server says where the rule is broken; and a text that was found, where it leaves that out."""
    said = _evaluated(text(rule.get("messageExpression", "''")), value)
    found = f" (found {value})" if isinstance(value, str) else ""
    return said if isinstance(said, str) and said else text(rule.get("message")) + found


def _evaluated(expression: str, value: object) -> object:
    """What CEL says of ``self``; None where it cannot tell, as of a field that is absent."""
    from cel_expr_python import cel

    said = _compiled(expression).eval(data={"self": value})
    return None if said.type() == cel.Type.ERROR else said.value()


@cache
def _compiled(expression: str) -> "cel.Expression":
    return _environment().compile(expression)


@cache
def _environment() -> "cel.Env":
    """CEL with what the API server adds to it, as far as our rules use that: ``isSorted``."""
    from cel_expr_python import cel

    is_sorted = cel.Overload(
        "list_is_sorted",
        return_type=cel.Type.BOOL,
        parameters=[cel.Type.List(cel.Type.DYN)],
        is_member=True,
        impl=lambda items: all(a <= b for a, b in pairwise(items)),
    )
    functions = [cel.FunctionDecl("isSorted", [is_sorted])]
    return cel.NewEnv(variables={"self": cel.Type.DYN}, functions=functions)
