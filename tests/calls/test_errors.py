"""Calls that fail: each alone, with words that help."""

from __future__ import annotations

import asyncio
import builtins
import traceback

import pytest

import shmrpc
from shmrpc.wire import remote_errors
from tests.helpers import services
from tests.helpers.loops import one_loop
from tests.helpers.server_process import ServerProcess

SHARED_SERVER = True


async def test_a_builtin_exception_is_caught_as_itself_and_as_remote(client: shmrpc.Client) -> None:
    with pytest.raises(ValueError, match="odd") as caught:
        await client.fail("odd")
    error = caught.value
    assert isinstance(error, shmrpc.RemoteError)
    assert error.args == ("odd",)
    assert error.type_name == "builtins.ValueError"
    assert "in fail" in error.remote_traceback
    assert "tests/helpers/services.py" in "".join(traceback.format_exception(error))


async def test_the_remote_traceback_begins_at_the_endpoint(client: shmrpc.Client) -> None:
    for call in (client.fail("odd"), client.fail_later("odd")):
        with pytest.raises(ValueError, match="odd") as caught:
            await call
        assert isinstance(caught.value, shmrpc.RemoteError)
        assert "shmrpc/server/server.py" not in caught.value.remote_traceback
        assert "shmrpc/server/eager_start.py" not in caught.value.remote_traceback
        assert "tests/helpers/services.py" in caught.value.remote_traceback


async def test_a_custom_exception_arrives_with_its_name(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.RemoteError, match="custom text") as caught:
        await client.fail("custom")
    assert type(caught.value) is shmrpc.RemoteError
    assert caught.value.type_name == "tests.helpers.services.CustomError"
    assert any("tests.helpers.services.CustomError" in note for note in caught.value.__notes__)


async def test_a_custom_exception_is_still_the_builtin_it_derives_from(client: shmrpc.Client) -> None:
    with pytest.raises(ValueError, match="derived text") as caught:
        await client.fail("derived")
    assert isinstance(caught.value, shmrpc.RemoteError)
    assert caught.value.type_name == "tests.helpers.services.CustomValueError"


async def test_exceptions_with_arguments_of_their_own(client: shmrpc.Client) -> None:
    with pytest.raises(KeyError) as key:
        await client.fail("key")
    assert key.value.args == ("missing",)
    with pytest.raises(FileNotFoundError) as missing:
        await client.fail("os")
    assert (missing.value.errno, missing.value.strerror) == (2, "No such file")
    with pytest.raises(UnicodeDecodeError) as decode_error:
        await client.fail("unicode")
    assert decode_error.value.object == b"\xff"


@pytest.mark.parametrize("kind", ["unprintable", "unencodable args", "group", "stop", "syntax"])
async def test_exceptions_that_cannot_travel_whole_still_arrive(client: shmrpc.Client, kind: str) -> None:
    with pytest.raises(shmrpc.RemoteError):
        await client.fail(kind)
    assert await client.add(1, 2) == 3


#: Made from five arguments or from exceptions, or unable to leave a coroutine.
PLAIN = {
    "Exception", "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup",
    "StopIteration", "StopAsyncIteration",
}  # fmt: skip


def test_every_builtin_exception_has_a_remote_one() -> None:
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            error = remote_errors.remote_error("text", type_name=f"builtins.{name}", base=name, remote_traceback="")
            assert isinstance(error, shmrpc.RemoteError), name
            if name not in PLAIN:
                assert isinstance(error, kind), name


def test_a_peer_cannot_name_a_class_that_is_no_exception() -> None:
    for base in ("eval", "BaseException", "KeyboardInterrupt", "object", "__import__", "nothing", ""):
        error = remote_errors.remote_error("text", type_name="x", base=base, parts={"args": ["1"]}, remote_traceback="")
        assert type(error) is shmrpc.RemoteError


async def test_an_error_of_ours_that_an_endpoint_raises_is_remote(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.RemoteError) as caught:
        await client.fail("invalid arguments")
    assert not isinstance(caught.value, shmrpc.InvalidArguments)
    assert caught.value.type_name == "shmrpc.errors.InvalidArguments"


async def test_a_wrong_argument_is_explained(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.InvalidArguments, match=r"tested\.add\(\): parameter 'b'.*`int`.*`str`.*'x'"):
        await client.add(1, "x")
    with pytest.raises(shmrpc.InvalidArguments, match=r"parameter 'punctuation'.*`str`.*`int`"):
        await client.greet("Ada", punctuation=5)
    with pytest.raises(shmrpc.InvalidArguments, match=r"parameter 'rest\[1\]'.*`int`.*`str`"):
        await client.defaults(1, 2, 3, "x")
    with pytest.raises(shmrpc.InvalidArguments, match=r"parameter 'point'.*`int`.*`str`.*\$\.x"):
        await client.move({"x": "1", "y": 2})
    with pytest.raises(TypeError):
        await client.add(1, 2.5)


async def test_a_wrong_number_of_arguments_is_explained(client: shmrpc.Client) -> None:
    for call, words in [
        (client.add(1), r"tested\.add\(a: int, b: int\) -> int: missing.*'b'"),
        (client.add(1, 2, 3), "too many positional"),
        (client.add(1, 2, c=3), "unexpected keyword argument 'c'"),
        (client.add(1, b=2, a=3), "multiple values for argument 'a'"),
        (client.keyword_only(1), "too many positional"),
        (client.keyword_only(), "missing.*'a'"),
        (client.add(*range(20)), "too many positional"),
    ]:
        with pytest.raises(shmrpc.InvalidArguments, match=f"(?s){words}"):
            await call
    assert await client.add(1, 2) == 3


async def test_an_endpoint_that_is_not_there(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.EndpointNotFound, match=r"service 'tested' has no endpoint 'ad'; did you mean 'add'"):
        await client.ad(1, 2)
    with pytest.raises(AttributeError):
        await client.call("absent")
    assert not hasattr(client, "absent")


async def test_values_that_cannot_be_sent(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.EncodeError, match=r"echo.*object"):
        await client.echo(object())
    with pytest.raises(shmrpc.EncodeError, match=r"unencodable\(\) returned object"):
        await client.unencodable()
    with pytest.raises(shmrpc.EncodeError, match=r"unencodable_later\(\) returned object"):
        await client.unencodable_later()
    with pytest.raises(shmrpc.EncodeError, match=r"shmrpc.register\(object, encode, decode\)"):
        await client.echo({"deep": [object()]})
    assert await client.add(1, 2) == 3


async def test_bodies_over_max_frame_fail_alone(server: ServerProcess) -> None:
    async with shmrpc.connect("tested", max_frame=10_000) as client:
        other = asyncio.create_task(client.sleep(0.05, "other"))
        with pytest.raises(shmrpc.FrameTooLarge, match=r"echo\(\).*limit is 10000.*max_frame="):
            await client.echo(bytes(10_000))
        with pytest.raises(shmrpc.FrameTooLarge, match=r"result.*limit is 10000"):
            await client.zeros(10_000)
        assert len(await client.zeros(9_900)) == 9_900
        assert await other == "other"


async def test_the_smaller_max_frame_holds() -> None:
    with ServerProcess("tests.helpers.services:service", "--max-frame", "5000"):
        async with shmrpc.connect("tested") as client:
            with pytest.raises(shmrpc.FrameTooLarge):
                await client.echo(bytes(6000))
            assert await client.echo(bytes(4000)) == bytes(4000)


async def test_a_long_message_and_a_deep_traceback_still_fit(server: ServerProcess) -> None:
    async with shmrpc.connect("tested", max_frame=1024) as client:
        with pytest.raises(ValueError, match="x"):
            await client.fail("x" * 900)
    async with shmrpc.connect("tested") as client:
        with pytest.raises(shmrpc.RemoteError) as caught:
            await client.fail("x" * 100_000)
        assert len(str(caught.value)) <= 100_000


async def test_errors_do_not_mix_up_calls(client: shmrpc.Client) -> None:
    async def one(number: int) -> None:
        if number % 3 == 0:
            with pytest.raises(ValueError, match=str(number)) as caught:
                await client.fail_later(str(number))
            assert caught.value.args == (str(number),)
        elif number % 3 == 1:
            with pytest.raises(shmrpc.InvalidArguments):
                await client.add("x", number)
        else:
            assert await client.sleep(0.001, number) == number

    await asyncio.gather(*(one(number) for number in range(300)))


def test_errors_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    with pytest.raises(ValueError, match="odd"):
        sync_client.fail("odd")
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'b'"):
        sync_client.add(1, "x")
    with pytest.raises(shmrpc.EndpointNotFound):
        sync_client.absent()
    with pytest.raises(shmrpc.EncodeError):
        sync_client.echo(object())
    with shmrpc.sync.connect("tested", max_frame=2000) as small:
        with pytest.raises(shmrpc.FrameTooLarge):
            small.echo(bytes(2001))
        with pytest.raises(shmrpc.FrameTooLarge):
            small.zeros(2001)
    assert sync_client.add(1, 2) == 3


async def test_a_handler_that_cancels_itself(client: shmrpc.Client) -> None:
    for _ in range(3):
        assert await client.cancel_itself() is None
        assert await client.sleep(0.001, 1) == 1


def test_functions_that_cannot_be_endpoints_are_rejected() -> None:
    service = shmrpc.Service("wrong")
    service.endpoint(services.add)
    with pytest.raises(ValueError, match="has an endpoint or a group 'add' already"):
        service.endpoint(services.add)
    with pytest.raises(TypeError, match="expected a function"):
        service.endpoint(5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="leading underscore"):
        service.endpoint(lambda: None)
    with pytest.raises(ValueError, match="leading underscore"):
        service.endpoint(name="_hidden")(services.move)

    def takes_two_structures(value: services.Order | services.Point) -> None: ...

    with pytest.raises(TypeError, match=r"endpoint 'wrong\.takes_two_structures': parameter 'value'"):
        service.endpoint(takes_two_structures)

    def unresolvable(value: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.raises(TypeError, match=r"endpoint 'wrong\.unresolvable'.*Missing.*run time"):
        service.endpoint(unresolvable)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ("asyncio.nope", "an annotation cannot be resolved: AttributeError: .*nope"),
        ("1 +", "an annotation cannot be resolved: SyntaxError: "),
        ("{}['a']", "an annotation cannot be resolved: KeyError: 'a'"),
        ("int[str]", ".*not subscriptable"),
    ],
)
def test_an_annotation_that_cannot_be_evaluated_is_a_type_error(annotation: str, words: str) -> None:
    def function(value: int) -> None: ...

    function.__annotations__["value"] = annotation
    with pytest.raises(TypeError, match=rf"endpoint 'wrong\.function': {words}"):
        shmrpc.Service("wrong").endpoint(function)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a..b", ".a", "a.", "-a", "a" * 65, "a b", "a\0", "ä"])
def test_names_that_a_service_cannot_have(name: str) -> None:
    with pytest.raises(ValueError, match="service name"):
        shmrpc.Service(name)


def test_options_out_of_range() -> None:
    service = shmrpc.Service("options")
    for make in (lambda **o: shmrpc.serve(service, **o), lambda **o: shmrpc.connect("options", **o)):
        for option in (
            {"max_frame": 10},
            {"max_frame": 1 << 40},
            {"spin": -1},
            {"spin": 1e9},
            {"codec": "json"},
        ):
            with pytest.raises(ValueError, match=next(iter(option))):
                make(**option)
    with pytest.raises(ValueError, match="timeout"):
        shmrpc.connect("options", timeout=-1)
    with pytest.raises(TypeError, match=r"shmrpc\.Service"):
        shmrpc.serve("options")  # type: ignore[arg-type]


async def test_a_result_that_is_not_what_it_is_declared_as(client: shmrpc.Client) -> None:
    def echo(value: object) -> int: ...  # type: ignore[empty-body]

    with pytest.raises(shmrpc.DecodeError, match=r"echo\(\).*`int`.*`str`"):
        await client.call(echo, "text")
    assert await client.call(echo, 5) == 5
    with shmrpc.sync.connect("tested") as threads, pytest.raises(shmrpc.DecodeError):
        threads.call(echo, "text")


@one_loop
async def test_too_many_endpoints_for_a_welcome() -> None:
    service = shmrpc.Service("crowded")
    for number in range(500):
        service.endpoint(name=f"endpoint_with_a_{'long_' * 50}name_{number:08}")(services.add)
    with pytest.raises(ValueError, match="split it into several services"):
        async with shmrpc.serve(service):
            pass
