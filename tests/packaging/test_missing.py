"""A module that cannot be imported: not installed, or installed and broken."""

from __future__ import annotations

import importlib

import pytest

from shmrpc.basics.import_hints import describe_import_failure, is_not_installed
from shmrpc.values.sharing import empty_array
from shmrpc.wire.codec import get_codec


@pytest.mark.parametrize(
    ("module", "error", "absent"),
    [
        ("thing", ModuleNotFoundError("No module named 'thing'", name="thing"), True),
        ("thing.part", ModuleNotFoundError("No module named 'thing'", name="thing"), True),
        ("thing.part", ModuleNotFoundError("No module named 'thing.part'", name="thing.part"), True),
        ("thing", ModuleNotFoundError("No module named 'thin'", name="thin"), False),
        ("thing", ModuleNotFoundError("No module named 'other'", name="other"), False),
        ("thing", ModuleNotFoundError("No module named 'thing.part'", name="thing.part"), False),
        ("thing", ModuleNotFoundError("without a name"), False),
        ("thing", ImportError("libodd.so is missing", name="thing"), False),
    ],
)
def test_only_the_modules_own_absence_is_its_absence(module: str, error: ImportError, absent: bool) -> None:
    assert is_not_installed(module, error) is absent
    own = f"thing cannot be imported here: {type(error).__name__}: {error}"
    assert describe_import_failure(module, error) == ("thing is not installed here" if absent else own)
    assert describe_import_failure(module, error, "pip install thing") == ("pip install thing" if absent else own)


def test_a_table_is_not_sent_without_a_whole_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1]})

    def import_module(name: str) -> None:
        raise ImportError("libarrow.so is missing")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(TypeError, match=r"sending a Table needs pyarrow: pyarrow cannot be .*: libarrow.so is missing"):
        get_codec("msgspec").encode(table)


def test_empty_says_what_numpy_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise errors.pop()

    errors = [ModuleNotFoundError(name="numpy"), ImportError("libodd.so is missing")]
    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(ImportError) as broken:
        empty_array(bytearray, 3, "uint8")
    assert str(broken.value).endswith("numpy cannot be imported here: ImportError: libodd.so is missing")
    with pytest.raises(ImportError, match=r"not installed here: pip install numpy; or use buffer\(\)"):
        empty_array(bytearray, 3, "uint8")
