"""The checks of util/ reject what they name, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import PurePath

import pytest

from util import check_rust_cycles as cycle_check
from util import check_words

RULES = check_words.Rules.of(
    {
        "words": {"frob|frobs": "turn", "no longer frob": "stop"},
        "openings": {"Why": "a verb"},
        "identifiers": {"Widget": "Control", "_old": "new"},
        "files": {"gadget": "device"},
        "public": {r"shmrpc\.old\b": "new"},
    }
)


def found(name: str, source: str) -> list[tuple[int, str]]:
    return [(each.line, each.found) for each in check_words.findings(PurePath(name), source, RULES)]


@pytest.mark.parametrize(
    "source",
    [
        '"""A module.\n\nfrobs """',
        "x = 1\n\n# frobs",
        'x = 1\n\ny = f"it frobs {x}"',
        "x = 1\n\nit_frobs = 2",
        "x = 1\n\nclass ItFrobs: pass",
        "x = 1\n\n# Why so",
        'x = 1\n\ndef f(): """Why so."""',
        "x = 1\n\ndef test_why_so(): pass",
        "x = 1\n\nWidget = 2",
        "x = 1\n\nself._old = 2",
    ],
)
def test_a_python_file_with_an_old_word_has_one_finding_at_its_line(source: str) -> None:
    assert [line for line, _ in found("a.py", source)] == [3]


@pytest.mark.parametrize(
    "source",
    [
        '"""A module: why so."""',
        '"""A module.\n\nWhy so: the second paragraph is no opening."""',
        "x = 1  # The frobbing of it",
        'x = "frob"  # A literal without a space is data.',
        "widget = old = Public = 1",
        "def why_so(): pass  # No test.",
    ],
)
def test_a_python_file_without_old_words_has_no_finding(source: str) -> None:
    assert not found("a.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "fn f() {}\n\n/// It frobs.",
        "fn f() {}\n\n//! Why so.",
        "fn f() {}\n\n/* It frobs. */",
        'fn f() {}\n\nlet x = "it frobs";',
        'fn f() {}\n\nlet x = r#"it "frobs""#;',
        "fn f() {}\n\nlet it_frobs = '\"';",
        "fn f() {}\n\nfn g(x: &'a Widget) {}",
    ],
)
def test_a_rust_file_with_an_old_word_has_one_finding_at_its_line(source: str) -> None:
    assert [line for line, _ in found("a.rs", source)] == [3]


def test_quotes_and_lifetimes_do_not_hide_the_code_behind_them() -> None:
    assert found("a.rs", "let a = ('\"', '\\'', b'\"'); // frob\nfn f<'a>(x: &'a str) {} // frob") == [
        (1, "frob"),
        (2, "frob"),
    ]


def test_a_phrase_is_found_across_the_lines_of_a_comment() -> None:
    assert (1, "no longer\nfrob") in found("a.py", "# no longer\n# frob")


def test_the_code_of_a_document_is_not_read() -> None:
    source = "A `frob` and\n\n```python\nfrob()\n```\n\nthey frob"
    assert found("a.md", source) == [(7, "frob")]


def test_files_are_named_by_the_product_s_words() -> None:
    assert found("shmrpc/gadget/a.py", "") == [(1, "gadget")]
    assert found("core/src/gadget.rs", "") == [(1, "gadget")]
    assert not found("tests/gadget.py", "")


def test_an_old_public_name_is_found_in_code_and_in_the_code_of_documents() -> None:
    assert found("a.py", "x = 1\nshmrpc.old(1)") == [(2, "shmrpc.old")]
    assert found("a.md", "Text.\n```python\nshmrpc.old()\n```") == [(3, "shmrpc.old")]
    assert not found("a.py", "shmrpc.older(1)") and not found("CHANGELOG.md", "shmrpc.old")


def test_pending_folders_are_excused_until_they_are_clean() -> None:
    finding = check_words.Finding(PurePath("a/b/c.py"), 1, "frob", "turn")
    assert check_words.verdict([finding], ["a/b"]) == ([], [])
    assert check_words.verdict([finding], ["a"]) == ([finding], ["a"]), "a folder's entry does not cover its folders"
    assert check_words.verdict([], ["a/b"]) == ([], ["a/b"])


def test_the_rules_of_the_project_compile() -> None:
    rules = check_words.Rules.of(tomllib.loads(check_words.RULES.read_text()))
    assert rules.words
    assert rules.identifiers


def cycles_of(**files: str) -> list[set[str]]:
    named = {f"{name.replace('__', '/')}.rs": text for name, text in files.items()}
    return cycle_check.cycles(cycle_check.Crate(named).dependencies())


def test_files_that_use_each_other_are_a_cycle() -> None:
    assert cycles_of(lib="mod a; mod b;", a="use crate::b::B;", b="fn f() { crate::a::g(); }") == [{"a.rs", "b.rs"}]
    assert cycles_of(a="use super::{b::{self, X}, c};", b="use super::c::{C as D};", c="use super::a::*;") == [
        {"a.rs", "b.rs", "c.rs"}
    ]


def test_a_module_that_declares_or_hands_on_another_does_not_depend_on_it() -> None:
    assert not cycles_of(a__mod="mod b; pub use b::B; pub struct A;", a__b="use super::A; pub struct B;")
    assert cycles_of(a__mod="mod b; pub use b::B; pub struct A(B);", a__b="use super::A; pub struct B;") == [
        {"a/b.rs", "a/mod.rs"}
    ]


def test_a_name_that_is_handed_on_is_one_of_the_file_that_defines_it() -> None:
    files = {"a__mod": "mod b; mod c; pub use b::B;", "a__b": "pub struct B; use super::c::C;"}
    assert cycles_of(**files, a__c="use crate::a::B; pub struct C;") == [{"a/b.rs", "a/c.rs"}]
    assert not cycles_of(**files, a__c="pub struct C;")


def test_tests_comments_and_strings_are_no_dependency() -> None:
    for text in (
        "#[cfg(test)] mod tests { use crate::b::B; fn f() { {} } }",
        "// crate::b::B\n",
        'const TEXT: &str = "crate::b::B";',
        "#[cfg(all(test, not(loom)))] mod tests;",
    ):
        assert not cycles_of(a=text, b="use crate::a::A;", a__tests="use crate::b::B;"), text
