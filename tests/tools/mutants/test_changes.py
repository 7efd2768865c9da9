"""What counts as a careless change: to Python, to C++, and what is drawn of them."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from tools.mutants import cpp, draw, python
from tools.mutants.mutation import Mutation, written
from tools.mutants.written import known

ROOT = Path(__file__).resolve().parents[3]


def of_python(source: str) -> list[Mutation]:
    text = textwrap.dedent(source)
    found = python.mutations("a.py", text)
    for mutation in found:
        assert mutation.applied(text.encode()).count(b"\n") == text.count("\n"), "lines keep their numbers"
    return found


def changes(found: list[Mutation]) -> set[tuple[str, str]]:
    return {(mutation.kind, mutation.change) for mutation in found}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", ("comparison", "a < b → (a <= b)")),
        ("return a[-1]", ("off by one", "-1 → 0")),
        ("return a[:2]", ("off by one", "2 → 3")),
        ("if a and b: raise E", ("dropped check", "a and b → False")),
        ("return a and b", ("dropped check", "a and b → (b)")),
        ("if overlaps(a): return b", ("ignored alias", "overlaps(a) → False")),
        ("return list(a)", ("ignored alias", "list(a) → (a)")),
        ("return f(a, b)", ("swapped arguments", "f(a, b) → (f(b, a))")),
        ("return a - b", ("swapped arguments", "a - b → (b - a)")),
        ("return a | b", ("ignored part", "a | b → (a)")),
        ("return [*a, *b]", ("ignored part", "[*a, *b] → ([*a])")),
        ("with a.lock: b()", ("removed lock", "with a.lock → if (True)")),
        ("os.fsync(a)", ("removed fsync or rename", "os.fsync(a) → pass")),
        ("os.replace(a, b)", ("removed fsync or rename", "os.replace(a, b) → pass")),
        ("a.wait(b)", ("dropped wait", "a.wait(b) → pass")),
        ("return close(a, 1e-5)", ("tolerance", "1e-5 → 0.01")),
        ("return a * 1e6", ("unit", "1e6 → 1000.0")),
        ("return a * 1024", ("unit", "1024 → 1000")),
        ("raise E", ("swallowed error", "raise E → pass")),
        ("return escape(a)", ("dropped sanitising", "escape(a) → (a)")),
        ("return a.resolve()", ("dropped sanitising", "a.resolve() → (a)")),
        ("return f(a)", ("None", "f(a) → None")),
        ("return f(a, strict=True)", ("flag", "True → False")),
        ("return all(a)", ("quantifier", "all → any")),
        ("return [x for x in a if f(x)]", ("dropped check", "f(x) → True")),
        ("return a if b else f", ("ignored case", "a if b else f → (f)")),
        ("for x in a: continue", ("left loop", "continue → break")),
        ("while a: break", ("left loop", "break → continue")),
        ("return {**a, 'x': b}", ("merged the other way", "{**a, 'x': b} → ({'x': b, **a})")),
        ("return a in ('x', 'y')", ("dropped item", "('x', 'y') → (('y',))")),
        ("key = (a, b.c)", ("dropped field", "(a, b.c) → ((a,))")),
        ("return a.low / b", ("other end", "a.low → (a.high)")),
        ("return dict(f(a))", ("ignored alias", "dict(f(a)) → (f(a))")),
    ],
)
def test_a_careless_engineer_would(line: str, expected: tuple[str, str]):
    found = of_python(f"def do(a, b):\n    {line}\n")
    assert expected in changes(found)
    assert all(mutation.scope == "do" and not mutation.at_import for mutation in found)


def test_a_function_that_makes_a_key_forgets_each_of_its_fields():
    found = of_python("def _cache_key(a, b):\n    return (a, b.shape)\n")
    dropped = [mutation.change for mutation in found if mutation.kind == "dropped field"]
    assert sorted(dropped) == ["(a, b.shape) → ((a,))", "(a, b.shape) → ((b.shape,))"]
    assert "dropped field" not in {mutation.kind for mutation in of_python("def both(a, b):\n    return (a, b)\n")}


def test_what_order_cannot_change_is_not_exchanged_and_an_assertion_of_zip_is_left_alone():
    found = of_python("def do(a, b):\n    first = max(a, b)\n    yield from zip(a, b, strict=True)\n")
    assert changes(found) == {
        ("quantifier", "max → min"),
        ("swapped arguments", "zip(a, b, strict=True) → (zip(b, a, strict=True))"),
    }


def test_what_nobody_could_notice_is_left_alone():
    source = '''
        """Words, 1 < 2."""
        from typing import TYPE_CHECKING, Literal
        if TYPE_CHECKING:
            import a_module
        __all__ = ["a" + b]

        @frozen(kw_only=True)
        class A(Protocol):
            x: int = 1

        @cache(maxsize=3)
        def f(a: Literal[1] = None) -> Literal[2]:
            """Words, 1 < 2."""
            assert a < 1
            g(f"{a < 1}")

        @overload
        def f(a: int) -> int:
            return a + 1
    '''
    assert changes(of_python(source)) == {("dropped call", 'g(f"{a < 1}") → pass')}


def test_what_is_written_over_lines_stays_over_lines():
    found = of_python(
        """
        def f(a, b):
            return g(
                a,
                b,
            )
        """
    )
    [swapped] = [mutation for mutation in found if mutation.kind == "swapped arguments"]
    assert (swapped.first, swapped.last) == (3, 6)
    assert swapped.new == "(g(b, a)\n\n\n)"


def test_a_header_is_covered_by_its_own_lines_only():
    [guard] = [
        m for m in of_python("def f(a):\n    if (a ==\n        b):\n        return\n") if m.kind == "dropped check"
    ]
    assert (guard.first, guard.last) == (2, 3)


def test_values_of_a_class_and_defaults_run_as_the_module_is_imported():
    found = of_python("LIMIT = 3\nclass A:\n    x = option(5)\ndef f(a=7):\n    return a + 9\n")
    assert {m.old: (m.scope, m.at_import) for m in found if m.kind == "off by one"} == {
        "3": ("", True), "5": ("A", True), "7": ("", True), "9": ("f", False),
    }  # fmt: skip


def test_a_key_outlives_lines_above_and_tells_equal_lines_apart():
    body = "def f(a):\n    a.pop(0)\n    a.pop(0)\n"
    before = [m.key for m in of_python(body)]
    assert [m.key for m in of_python(f"import os\n\n\n{body}")] == before
    assert len(set(before)) == len(before) == 4


def test_a_mutant_of_a_file_that_has_changed_is_refused():
    [mutation] = [m for m in of_python("x = 3\n") if m.kind == "off by one"]
    assert mutation.applied(b"x = 3\n") == b"x = 4\n"
    with pytest.raises(ValueError, match=r"a\.py:1 has changed"):
        mutation.applied(b"y = 3, x = 3\n"[:3] + b"\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if (a == b) return 1;", ("comparison", "== → !=")),
        ("if (a == b) return 1;", ("dropped check", "a == b → false")),
        ("if (f(a)) { throw E(); }", ("dropped check", "f(a) → false")),
        ("int a = b + 7;", ("off by one", "7 → 8")),
        ("std::lock_guard<std::mutex> hold(mutex_);", ("removed lock", "std::lock_guard<std::mutex> hold(mutex_) → ")),
        ("thread.join();", ("dropped wait", "thread.join() → ")),
        ("held->clear(a, b);", ("dropped call", "held->clear(a, b) → ")),
        ("bool a = b && c;", ("dropped check", "&& → ||")),
        ("a = b < c;", ("comparison", "< → <=")),
        ("flag.store(true);", ("flag", "true → false")),
    ],
)
def test_a_careless_engineer_would_in_cpp(line: str, expected: tuple[str, str]):
    assert expected in changes(cpp.mutations("a.cpp", f"void f() {{\n  {line}\n}}\n"))


def test_cpp_that_is_no_code_is_left_alone():
    source = "#include <a>\n#define A 1\n// a == 1\n/* 2\n 3 */\nstd::vector<int> a(\"4 == 5\", '6');\n"
    assert changes(cpp.mutations("a.cpp", source)) == set()


def test_a_change_that_is_written_down_needs_one_place():
    found = written("a.py", "a = 1\nb = 2\n", "2", "3")
    assert (found.line, found.applied(b"a = 1\nb = 2\n")) == (2, b"a = 1\nb = 3\n")
    with pytest.raises(ValueError, match=r"'a' stands there 2 times"):
        written("a.py", "a = a\n", "a", "b")


def test_written_changes_that_no_longer_fit_are_named_and_the_others_go_on(tmp_path: Path):
    (tmp_path / "a.py").write_text("a = 1\n")
    listed = tmp_path / "known.yaml"
    entries = [{"path": "a.py", "old": "1", "new": "2"}, {"path": "a.py", "old": "7", "new": "8"}, {"path": "b.py"}]
    listed.write_text(json.dumps([{"old": "1", "new": "2", **entry} for entry in entries]))
    found, unfit = known(tmp_path, listed)
    assert [mutation.change for mutation in found] == ["1 → 2"]
    assert [words.partition(":")[0] for words in unfit] == ["a.py", "[Errno 2] No such file or directory"]


LINES = [f"def f{k}(a):\n    return a + {k}\n" for k in range(40)]


def sample(texts: list[str], seed: int) -> list[str]:
    lines: dict[int, list[Mutation]] = {}
    for mutation in of_python("".join(texts)):
        lines.setdefault(mutation.line, []).append(mutation)
    return [m.key for m in draw.drawn(list(lines.values()), seed)][:10]


def test_a_seed_draws_the_same_sample_and_another_seed_another():
    assert sample(LINES, 1) == sample(LINES, 1)
    assert len(set(sample(LINES, 1)) & set(sample(LINES, 2))) < 9


def test_a_change_elsewhere_moves_no_other_mutant():
    drawn = sample(LINES, 1)
    undrawn = next(line for line in LINES if not set(sample([line], 1)) & set(drawn))
    assert sample(["import os\n", *[line for line in LINES if line != undrawn]], 1) == drawn


def test_every_source_belongs_to_one_package():
    packages = {draw.package_of(path) for path in draw.files(ROOT)}
    assert packages == set(draw.PACKAGES)
    assert draw.package_of("packages/replay/src/npucompose_replay/executor/src/front.cpp") == "replay, C++"
    assert draw.package_of("packages/replay/src/npucompose_replay/plan.py") == "packages/replay"
    assert draw.package_of("src/npucompose/input_safety.py") == "compose"
    assert draw.package_of("src/npucompose/api.py") == "the front"


def test_only_what_imports_vllm_is_left_to_the_tests_in_its_environment():
    served = (ROOT / "packages" / "vllm" / "src").rglob("*.py")
    of_vllm = {
        path.relative_to(ROOT).as_posix() for path in served if re.search(r"^from vllm", path.read_text(), re.MULTILINE)
    }
    assert of_vllm == set(draw.OF_AN_ENGINE)
    assert not of_vllm.intersection(draw.files(ROOT))
