"""Generated scripts, run for all values of their conditions, against what the import of their text states."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.recipe import Imported, paths
from npucompose.recipe.compilations import compilations
from npucompose.recipe.imported import _joined
from npucompose.recipe.reader import reading
from npucompose.recipe.values import MISSING, CompileCall
from npucompose.table.structure import flat
from npucompose.vendor.compiler import EVERY_LEAF
from tests.recipe.generated import FLAT, script
from tests.recipe.recording import Compiled, runs

SCRIPTS = 200
CONTROL = 50
DEFAULTS: Mapping[str, Any] = {leaf.path: leaf.default for leaf in EVERY_LEAF.values()}


def recorded(one: Compiled, values: Mapping[str, Any]) -> dict[str, Any]:
    """{path of YAML: value} of a run; the mode and the keywords of torch.compile with them."""
    options = {(f"npugraph_ex.{path}" if path in FLAT else path): value for path, value in values.items()}
    mode = {"mode": "npugraph_ex" if one.package == "npugraph_ex" else options.pop("mode", "max-autotune")}
    keywords = {"dynamic": one.keywords.get("dynamic"), "fullgraph": one.keywords.get("fullgraph", False)}
    return {**options, **mode, **keywords}


def stated(found: Imported) -> dict[str, Any]:
    """The same of an import: only what it states, and that it states nothing of an option that keeps its default."""
    tree = found.tree
    said = flat(tree.get("compiler", {}), leaves=EVERY_LEAF)
    said |= {"mode": tree["mode"]["name"]} if "mode" in tree else {}
    said |= {"dynamic": tree["shapes"]["dynamic"]} if "dynamic" in tree["shapes"] else {}
    return said | ({"fullgraph": tree["compile"]["fullgraph"]} if "fullgraph" in tree["compile"] else {})


def wrong(said: Mapping[str, Any], one: Compiled) -> dict[str, Any]:
    """What is stated of a compilation and was not so in a run."""
    found: dict[str, Any] = {}
    for values in (one.then, one.later):
        real = recorded(one, values)
        found |= {path: (value, real.get(path)) for path, value in said.items() if not _is(value, real, path)}
    return found


def _is(value: Any, real: Mapping[str, Any], path: str) -> bool:
    there = real.get(path, DEFAULTS.get(path))
    return type(there) is type(value) and there == value


def silent(found: Imported, said: Mapping[str, Any], one: Compiled) -> set[str]:
    """What a run sets to another value than the default, and the import neither states nor lists."""
    listed = "\n".join([*found.notes, *map(str, found.unread)])
    loose = any(words in listed for words in ("not a dict of this script", "in this script", "other options", "known"))
    real = recorded(one, one.then)
    names = {path for path, value in real.items() if value != DEFAULTS.get(path, value) and path not in said}
    return set() if loose else {path for path in names if path.rpartition(".")[2] not in listed}


def imports(text: str) -> tuple[Sequence[CompileCall], Sequence[Imported]]:
    """The compilations of a script, and what the import states without a number and with each."""
    facts = reading(ast.parse(text)).facts
    every = compilations(facts)
    return every, [_joined(facts, compilation=number or None) for number in range(len(every) + 1)]


def check(text: str) -> list[str]:
    """What the import of a script gets wrong, in words."""
    every, (default, *told) = imports(text)
    problems: list[str] = []
    for run in runs(text):
        for one in run:
            here = [found for found, call in zip(told, every, strict=True) if call.node.lineno == one.line]
            if not here:
                problems.append(f"line {one.line}: a compilation is not seen")
                continue
            differs = [wrong(stated(found), one) for found in here]
            if all(differs):
                problems.append(f"line {one.line}: stated and not so: {differs}")
            passed = [silent(found, stated(found), one) for found in here]
            if all(passed):
                problems.append(f"line {one.line}: neither stated nor listed: {passed}")
            several = sum(call.place == every[0].place for call in every) > 1
            if several and every[0].node.lineno == one.line and (lost := wrong(stated(default), one)):
                problems.append(f"line {one.line}: stated of one of several: {lost}")
    return problems


@pytest.mark.parametrize("part", range(8))
def test_what_the_import_states_is_so_in_every_run_and_all_else_is_listed(part: int) -> None:
    for seed in range(part, SCRIPTS, 8):
        text = script(seed)
        try:
            problems = check(text)
        except ConfigError as error:
            problems = [str(error)]
        assert problems == [], f"script {seed}:\n{text}"


def test_of_a_straight_script_everything_is_stated() -> None:
    for seed in range(60):
        text = script(seed, straight=True)
        (run, *_) = runs(text)
        every, (_, *told) = imports(text)
        for one in run:
            texts = [stated(found) for found, call in zip(told, every, strict=True) if call.node.lineno == one.line]
            same = {path: v for path, v in recorded(one, one.then).items() if one.then == one.later}
            late = "\n".join(str(line) for line in told[0].unread if paths.LATER in line.why)  # there and back again
            wanted = {path: value for path, value in same.items() if value != DEFAULTS.get(path, MISSING)}
            wanted = {path: value for path, value in wanted.items() if path.rpartition(".")[2] not in late}
            assert any(wanted.items() <= said.items() for said in texts), f"script {seed}:\n{text}\n{wanted}\n{texts}"


def test_without_the_grades_a_script_of_the_first_fifty_is_stated_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(values: Any, why: str, bound: bool = False) -> Any:
        return next((value for value in reversed(list(values)) if value is not MISSING), MISSING)

    monkeypatch.setattr(paths, "merge", last)
    assert any("stated and not so" in one for seed in range(CONTROL) for one in check(script(seed)))
