"""Error texts for arguments that cannot be bound to parameters."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, Final

from shmrpc.basics.suggestions import closest_match

#: Options of a client's ``with_options``, which callers often pass as keywords of a call by mistake.
CALL_OPTIONS: Final = ("timeout", "metadata", "reply_metadata")
#: Kinds of parameters that accept positional arguments.
POSITIONAL_KINDS: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60


def describe_argument_errors(
    endpoint: str, signature: Signature, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> str:
    """Return the text of all faults of arguments that cannot be bound to parameters; "" if none is found."""
    parameters = signature.parameters.values()
    kinds = {p.kind for p in parameters}
    by_place = [p.name for p in parameters if p.kind in POSITIONAL_KINDS]
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    placed = by_place[: len(positional)]
    given = {*placed, *(keyword for keyword in keywords if keyword in by_name)}
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = dict.fromkeys(p.name for p in required if p.name not in given)
    wrong = []
    if len(positional) > len(by_place) and Parameter.VAR_POSITIONAL not in kinds:
        most = f"up to {len(by_place)}" if by_place else "none"
        wrong.append(f"too many positional arguments: expected {most}, got {len(positional)}")
    wrong += [f"multiple values for argument {name!r}" for name in placed if name in keywords]
    options = {}
    for keyword, value in keywords.items():
        if keyword in by_name or keyword in placed or Parameter.VAR_KEYWORD in kinds:
            continue
        if keyword in by_place:
            wrong.append(f"argument {keyword!r} is positional-only: pass it by position")
            missing.pop(keyword, None)
            continue
        free = [each for each in by_name if each not in given]
        meant = closest_match(keyword, free)
        if meant is None and keyword in CALL_OPTIONS:
            options[keyword] = value
        elif meant is None and len(missing) == 1 and (only := next(iter(missing))) in free:
            meant = only
        if meant is not None:
            missing.pop(meant, None)
        wrong.append(f"unexpected keyword argument {keyword!r}" + (f"; did you mean {meant!r}?" if meant else ""))
    if options:
        others = {keyword: value for keyword, value in keywords.items() if keyword not in options}
        call = (
            f"client.with_options({_format_arguments((), options)}).{endpoint}({_format_arguments(positional, others)})"
        )
        wrong.append(f"an option of the call is given as {call}")
    if missing:
        plural = "s" * (len(missing) > 1)
        wrong.append(f"missing {'a ' * (not plural)}required argument{plural}: {', '.join(map(repr, missing))}")
    return "; ".join(wrong)


def _format_arguments(positional: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """Return arguments as the source text of a call."""
    return ", ".join(
        [*map(short_repr, positional), *(f"{name}={short_repr(value)}" for name, value in keywords.items())]
    )


def short_repr(value: Any) -> str:
    """Return the shortened repr of an argument."""
    try:
        return _repr.repr(value)
    except Exception as error:  # For example an int of many thousand digits, or a failing __repr__.
        return f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"
