"""Runs of models that are right and not eager's bit for bit, and of models that no result can be compared with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nursery import command

ROOT = Path(__file__).resolve().parents[2]

MODELS = '''
import torch
from torch import nn

CALLS = [0]


class Counting(nn.Module):
    def forward(self, x, scale=None, shift=None):
        CALLS[0] += 1
        return x * CALLS[0] + shift


def counting():
    return Counting(), {"shift": torch.ones(3), "x": torch.ones(3)}


def misspelt():
    return Counting(), {"x": torch.ones(3), "shfit": torch.ones(3)}


class Decode(nn.Module):
    """A decoder with a StaticCache of its own, which lies in no buffer."""

    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

        config = LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=128, max_position_embeddings=64,
        )
        self.model = LlamaForCausalLM(config)
        self.cache = StaticCache(config=config, max_cache_len=32)
        self.cache.early_initialization(1, 2, 16, torch.float32, torch.device("cpu"))

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, past_key_values=self.cache, use_cache=True).logits


def static_cache():
    return Decode(), {"input_ids": torch.arange(4)[None]}


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, use_cache=True):
        return self.model(input_ids=input_ids, use_cache=use_cache).logits


def mamba():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128, state_size=8))
    return Logits(model), {"use_cache": False, "input_ids": torch.arange(16)[None]}
'''


def run(folder: Path, factory: str, *overrides: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (folder / "subjects.py").write_text(MODELS)
    chosen = ["model=python", "trust=true", f"model.factory=subjects:{factory}", "hydra.run.dir=out", *overrides]
    done = subprocess.run(command("run.py", *chosen), cwd=folder, capture_output=True, text=True, check=False)
    report = folder / "out" / "report.json"
    return done, json.loads(report.read_text()) if report.is_file() else {}


def test_a_model_that_differs_from_itself_is_told_so_and_not_that_its_results_are_wrong(tmp_path: Path) -> None:
    done, report = run(tmp_path, "counting", "mode=eager", "pipeline=check")
    assert (done.returncode, report["status"], report["numerics"]["cause"]) == (1, "numerics_failed", "model")
    assert "the model differs from itself: called twice from one state, eager differs by up to 1; none" in done.stderr
    assert "wrong results" not in done.stdout + done.stderr
    assert "result    differs from itself · subjects.counting" in done.stdout


def test_an_input_whose_name_does_not_bind_ends_before_anything_runs(tmp_path: Path) -> None:
    done, report = run(tmp_path, "misspelt", "pipeline=check")
    assert (done.returncode, report) == (2, {})
    assert "it has no parameter 'shfit' (did you mean 'shift'?). Its signature is (x, scale=None, shift=None)." in (
        done.stderr
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["static_cache", "mamba"])
def test_the_replay_of_a_model_whose_tracing_differs_is_exact(factory: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done, report = run(tmp_path, factory, "benchmark=quick")
    assert done.returncode == 0, done.stderr
    found = report["numerics"]
    assert (found["passed"], found["bitwise"], found["replay"]["bitwise"]) == (True, False, True)
    assert "equals eager within tolerance, largest error " in done.stdout
    assert report["stages"]["capture"]["detached"]
    if factory == "static_cache":
        assert "keeps state outside its buffers, in 'cache.layers[0].keys'" in found["model"]
