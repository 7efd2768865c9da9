"""Ranks of a process that has process groups: whom it asks, how often, and what it need not ask again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.targets import process_groups
from npucompose.targets.process_groups import exchange

GROUPS = {"tp": [2, 0], "dp": [0, 4], "alone": [0]}


class Store:
    """What every rank would have said under a key; notes the turns that were asked."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.turns: list[str] = []
        self.theirs = "theirs"

    def set(self, key: str, text: str) -> None:
        self.said[key] = text
        self.turns.append(key.rpartition("/")[0])

    def get(self, key: str) -> bytes:
        return self.said.get(key, self.theirs).encode()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()

    def resolve(name: str) -> str:
        if name not in GROUPS:
            raise ValueError(name)
        return name

    c10d = SimpleNamespace(_resolve_process_group=resolve, _get_default_store=lambda: found)
    distributed: Any = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 0, distributed_c10d=c10d,
        get_process_group_ranks=GROUPS.__getitem__,
    )  # fmt: skip
    monkeypatch.setattr(process_groups, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(process_groups, "_TURNS", type(process_groups._TURNS)())  # private: as in another process
    monkeypatch.setattr(process_groups, "_AGREED", set())  # private: as in another process
    return found


def test_all_ranks_of_all_groups_are_asked_by_their_number_in_the_job(store: Store) -> None:
    assert exchange("mine", ("tp", "dp")) == {0: "mine", 2: "theirs", 4: "theirs"}
    assert store.said == {"npucompose/(0, 2, 4)/0/0": "mine"}


def test_what_is_asked_again_is_asked_under_another_turn_until_all_said_it_alike(store: Store) -> None:
    for _ in range(2):
        assert exchange("mine", ("tp",)) == {0: "mine", 2: "theirs"}
    store.theirs = "mine"
    assert exchange("mine", ("tp",)) == {0: "mine", 2: "mine"}
    assert store.turns == [f"npucompose/(0, 2)/{turn}" for turn in range(3)]
    assert exchange("mine", ("tp",)) == {0: "mine"}, "agreed on: nobody is asked"
    assert exchange("another", ("tp",)) == {0: "another", 2: "mine"}
    assert len(store.turns) == 4


def test_a_group_of_one_or_of_nobody_asks_nobody(store: Store) -> None:
    assert exchange("mine", ("alone", "traced elsewhere")) == {0: "mine"}
    assert store.turns == []
