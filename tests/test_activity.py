"""What a process says that it is doing, and what a thread does beside it."""

from __future__ import annotations

import pytest

from npucompose import activity


def test_what_begins_is_said_to_all_who_listen_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_listeners", [])  # private: of this test alone
    activity.doing("nobody listens")
    heard: list[tuple[int, str]] = []
    for number in (1, 2):
        activity.listen(lambda words, number=number: heard.append((number, words)))
    activity.doing("tracing the model")
    assert heard == [(1, "tracing the model"), (2, "tracing the model")]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(activity, "_listeners", [found.append])  # private: of this test alone
    monkeypatch.setattr(activity, "_now", "")  # private: of this test alone
    return found


def test_what_goes_on_beside_is_named_until_it_is_done(said: list[str]) -> None:
    with activity.beside("building"):
        activity.doing("tracing the model")
        with activity.beside("building"):
            pass
    activity.doing("pass cse")
    assert said == [
        "building",
        "tracing the model, building",
        "tracing the model, building",
        "tracing the model, building",
        "tracing the model",
        "pass cse",
    ]


def test_what_fails_is_over_too(said: list[str]) -> None:
    with pytest.raises(KeyError), activity.beside("building"):
        raise KeyError
    activity.doing("waiting")
    assert said == ["building", "waiting"]
