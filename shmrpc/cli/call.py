"""The command ``shmrpc call``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from shmrpc.cli import exit_codes
from shmrpc.cli.options import (
    allow_user_option,
    at_option,
    codec_option,
    connect_timeout_option,
    max_frame_option,
    option,
)
from shmrpc.cli.service_client import connected
from shmrpc.cli.values import is_text, read_argument, to_json, to_text

if TYPE_CHECKING:
    from shmrpc import sync


@click.command(context_settings={"allow_interspersed_args": False}, epilog=exit_codes.HELP)
@option("-k", "--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="Keyword argument. Repeatable.")
@option("--json", "as_json", is_flag=True, help="Print strict JSON, one line for each result or item.")
@connect_timeout_option
@max_frame_option
@codec_option
@allow_user_option
@at_option
@click.argument("service")
@click.argument("endpoint")
@click.argument("arguments", nargs=-1)
def call(
    service: str,
    endpoint: str,
    arguments: tuple[str, ...],
    keywords: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Call ENDPOINT of SERVICE and print the result, or each item of a stream on a line of its own.

    An argument such as 1, true or [1,2] is read as JSON if the parameter accepts it, otherwise as text; '"5"' is always
    text. @FILE stands for the bytes of a file, or the array of a .npy file, and @- for standard input; for a parameter
    that takes a stream, for the lines, each read like an argument. '"@x"' is the text @x. Options come before SERVICE;
    an argument that equals an option, such as --json, comes after a first --.
    """
    _check_no_options(endpoint, arguments)
    if "--" in arguments:  # Common before an argument that begins with a dash.
        dashes = arguments.index("--")
        arguments = arguments[:dashes] + arguments[dashes + 1 :]
    pairs = [keyword.partition("=") for keyword in keywords]
    if any(not name or not equals for name, equals, _ in pairs):
        raise click.UsageError("--keyword: expected NAME=VALUE")
    keyword_texts = {name: text for name, _, text in pairs}
    if len(keyword_texts) < len(pairs):
        names = [name for name, _, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise click.UsageError(f"--keyword: {twice} is given more than once")
    if [*arguments, *keyword_texts.values()].count("@-") > 1:
        raise click.UsageError("@- is given more than once: standard input can be read for one argument only")
    with connected(service, **options) as client:
        args, kwargs = _parse_arguments(client, endpoint, arguments, keyword_texts)
        result = client().call(endpoint, *args, **kwargs)
        if isinstance(result, Generator):
            for item in result:
                click.echo(to_json(item) if as_json else to_text(item, compact=True))
        else:
            click.echo(to_json(result) if as_json else to_text(result))


def _check_no_options(endpoint: str, arguments: Sequence[str]) -> None:
    """Print the help and exit if an argument asks for it; ignore arguments after ``--``.

    Raises UsageError if an option of the command follows the service.
    """
    ctx = click.get_current_context()
    own = {*ctx.help_option_names, *(name for parameter in ctx.command.params for name in parameter.opts)}
    for text in itertools.takewhile(lambda text: text != "--", (endpoint, *arguments)):
        name = text.partition("=")[0] if text.startswith("--") else text
        if name not in own or not name.startswith("-"):
            continue
        if name in ctx.help_option_names:
            click.echo(ctx.get_help())
            ctx.exit()
        raise click.UsageError(
            f"{name} comes after SERVICE: write options before it, and -- before arguments that begin with a dash"
        )


def _parse_arguments(
    client: Callable[[], sync.Client], endpoint: str, arguments: Sequence[str], keywords: Mapping[str, str]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and keyword arguments of a call.

    Asks the server for the types of the endpoint's parameters, unless all arguments are text. Leaves it to the call to
    reject an unknown endpoint or parameter. Raises UsageError for a file that cannot be read, or a text that a
    parameter does not accept.
    """
    if all(map(is_text, (*arguments, *keywords.values()))):
        return arguments, keywords
    description = client().describe()
    parameters = next((each.parameters for each in description.endpoints if each.name == endpoint), [])
    by_name = {each.name: each for each in parameters if each.kind != "positional only"}
    by_kind = {each.kind: each for each in parameters}
    positional = [each for each in parameters if each.kind.startswith("positional")]
    positions = itertools.chain(positional, itertools.repeat(by_kind.get("var positional")))
    return (
        [read_argument(text, each, description.types) for text, each in zip(arguments, positions, strict=False)],
        {
            name: read_argument(text, by_name.get(name, by_kind.get("var keyword")), description.types)
            for name, text in keywords.items()
        },
    )
