"""tools/moved_tests.py finds the tests of an earlier commit again."""

from __future__ import annotations

from tools.moved_tests import found_again
from tools.moved_tests import tests_of as read  # by its own name pytest would take it for a test

OLD = """
def test_one(): assert 1 + 1 == 2
def test_two():
    for number in range(10):
        assert number * 2 == number + number
class TestThree:
    def test_inside(self): assert "inside"
def test_dropped(): assert "something else entirely, of which nothing is left"
def helper(): pass
"""
NEW = """
class TestThree:
    def test_inside(self): assert "inside"
def test_twice_is_a_sum():
    for number in range(12):
        assert number * 2 == number + number
"""


def test_a_test_is_found_by_its_file_by_its_name_and_by_its_body_and_else_it_is_gone() -> None:
    old = list(read("tests/test_a.py", OLD))
    new = [*read("tests/b/test_a.py", NEW), *read("tests/test_c.py", "def test_one(): assert 2 == 2")]
    made = {was.name: now and now.place for was, now in found_again(old, new, {}).items()}
    assert made == {
        "test_one": "tests/test_c.py::test_one",
        "test_two": "tests/b/test_a.py::test_twice_is_a_sum",
        "test_inside": "tests/b/test_a.py::test_inside",
        "test_dropped": None,
    }


def test_of_two_with_one_name_each_goes_to_its_own_file() -> None:
    old = [*read("tests/test_a.py", "def test_x(): assert 1"), *read("tests/test_b.py", "def test_x(): assert 2")]
    new = [*read("tests/new_b.py", "def test_x(): assert 2"), *read("tests/test_a.py", "def test_x(): assert 1")]
    made = found_again(old, new, {"tests/test_b.py": "tests/new_b.py"})
    assert {was.file: now and now.file for was, now in made.items()} == {
        "tests/test_a.py": "tests/test_a.py",
        "tests/test_b.py": "tests/new_b.py",
    }


def test_one_new_test_is_not_found_twice() -> None:
    old = [*read("tests/test_a.py", "def test_x(): assert 1"), *read("tests/test_b.py", "def test_x(): assert 1")]
    made = found_again(old, list(read("tests/test_c.py", "def test_x(): assert 1")), {})
    assert sorted(now is None for now in made.values()) == [False, True]
