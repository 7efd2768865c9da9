"""A skip that nobody has given a reason for makes CI red; a shuffled run has every test once, in another order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests import shuffled

pytest_plugins = "pytester"
ALLOWED = """
- {tests: "test_some.py::*", says: "needs tea*", why: there is none}
"""
SOME = """
import pytest

def test_tea():
    pytest.skip("needs tea: kettle on")

def test_fine():
    pass
"""
BARE = """
import pytest

@pytest.mark.skipif(True, reason="needs coffee")
def test_coffee():
    pass

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""
ASKED = ("-p", "tests.skips", "-p", "no:cacheprovider", "--allowed-skips", "allowed.yaml")


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.path.joinpath("allowed.yaml").write_text(ALLOWED)
    pytester.makepyfile(test_some=SOME)
    return pytester


def test_a_skip_with_a_listed_reason_is_green(folder: pytest.Pytester) -> None:
    assert folder.runpytest_inprocess(*ASKED, "--only-allowed-skips").ret == 0


@pytest.mark.parametrize("ci", [True, False])
def test_any_other_skip_is_red_in_ci_alone(folder: pytest.Pytester, ci: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if ci:
        monkeypatch.setenv("CI", "1")
    folder.makepyfile(test_bare=BARE)
    done = folder.runpytest_inprocess(*ASKED)
    assert done.ret == (1 if ci else 0)
    assert ("test_bare.py::test_coffee: needs coffee" in done.outlines) is ci
    assert not any("test_known:" in line or "test_tea:" in line for line in done.outlines)


def test_a_listed_reason_is_for_the_tests_that_it_names(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_other=SOME)
    done = folder.runpytest_inprocess(*ASKED, "--only-allowed-skips")
    assert done.ret == 1
    assert "test_other.py::test_tea: needs tea: kettle on" in done.outlines


def test_a_whole_file_that_is_skipped_is_seen(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_file='import pytest\npytest.importorskip("no_such_package")')
    done = folder.runpytest_inprocess(*ASKED, "--only-allowed-skips")
    assert done.ret == 1
    assert any(line.startswith("test_file.py: could not import 'no_such_package'") for line in done.outlines)


def test_the_skips_of_workers_are_seen(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_bare=BARE)
    done = folder.runpytest_inprocess(*ASKED, "--only-allowed-skips", "-p", "xdist", "-n", "1")
    assert done.ret == 1
    assert "test_bare.py::test_coffee: needs coffee" in done.outlines


def test_each_reason_of_ours_is_told() -> None:
    for one in yaml.safe_load(Path(__file__).with_name("allowed_skips.yaml").read_text()):
        assert set(one) == {"tests", "says", "why"}
        assert len(one["why"]) > 20


def test_a_seed_is_an_order_with_every_test_in_it() -> None:
    written = [f"test_{name}.py::test_{n}" for name in ("one", "two", "three") for n in range(5)]

    def order(seed: str | None) -> list[str]:
        items = [SimpleNamespace(nodeid=test) for test in written]
        shuffled.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: seed), items)  # type: ignore[arg-type]
        return [item.nodeid for item in items]

    assert order(None) == written
    assert order("1") == order("1")
    assert len({tuple(order(seed)) for seed in (None, "1", "2")}) == 3
    for seed in ("1", "2"):
        assert sorted(order(seed)) == sorted(written)
        files = [test.partition("::")[0] for test in order(seed)]
        assert sum(one != then for one, then in pairwise(files)) == 2, "the tests of a file stay together"
