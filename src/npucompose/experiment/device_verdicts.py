"""What result files of devices say, kept beside the store, and asked whenever an experiment for an NPU is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_free.keys import digest
from npucompose.errors import ConfigError
from npucompose.experiment.lock import EXCLUDED
from npucompose.experiment.orchestrator import default_store
from npucompose.results import premises
from npucompose.schema.experiment import Experiment
from npucompose.untrusted import read_text

FOLDER, FILE = "device", "verdicts.json"
WHERE_IT_RUNS = frozenset({"target", "pipeline", "benchmark", "executor", "search", "tracker", "retry", "expect"})
"""Sections that a kit does not take along: where and how an experiment is run here."""


def folder_of(device: str) -> Path:
    return default_store().root / FOLDER / device


def recipe_key(values: Mapping[str, Any]) -> str:
    """Of an experiment, wherever it is run: by it a kit's claims about itself are known again."""
    return digest({name: value for name, value in values.items() if name not in EXCLUDED | WHERE_IT_RUNS})


def stored() -> Iterator[premises.Results]:
    for file in sorted((default_store().root / FOLDER).glob(f"*/{FILE}")):
        yield premises.read(file, read_text(file))


def check(experiment: Experiment, values: Mapping[str, Any]) -> None:
    """ConfigError where an experiment for an NPU rests on a claim that a device refuted."""
    problems = [
        sentence
        for results in stored()
        for sentence in premises.refuted(experiment, results, own_claims(results, recipe_key(values)))
    ]
    if problems:
        raise ConfigError(*problems)


def own_claims(results: premises.Results, key: str) -> tuple[str, ...]:
    """The claims of a kit about its own recipe, where it is this one."""
    if results.data.get("recipe") != key:
        return ()
    return tuple(name for name in results.claims if name.startswith("kit"))
