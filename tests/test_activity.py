"""What a process says of itself to whoever waits for it."""

from __future__ import annotations

import pytest

from npucompose import activity


def test_what_begins_is_said_to_all_who_listen_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_listeners", [])
    activity.doing("nobody listens")
    heard: list[tuple[int, str]] = []
    for number in (1, 2):
        activity.listen(lambda words, number=number: heard.append((number, words)))
    activity.doing("tracing the model")
    assert heard == [(1, "tracing the model"), (2, "tracing the model")]
