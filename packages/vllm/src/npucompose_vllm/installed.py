"""What the installed vLLM makes of a compilation configuration and a recipe.

`python -m npucompose_vllm.installed`, a process of its own: vLLM writes to its log and into its environment
as soon as it is imported.
"""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from attrs import frozen

from airflow_free.fresh_python import module_command
from npucompose.errors import ConfigError
from npucompose_vllm import installed_vllm

MARK = "VLLM: "
PLATFORM = "RecipePlatform"
LIMIT_S = 600
"""Importing vLLM takes seconds, on a busy machine a minute."""


@frozen(kw_only=True)
class Installed:
    version: str
    options: Mapping[str, Any]
    """As they act, by dotted name; members of enumerations by their names."""


def installed(recipe: str, compilation: Mapping[str, Any], most: int) -> Installed | None:
    """None where vLLM is not installed, or is for another device than a processor, on which no recipe acts.

    ConfigError where vLLM refuses the configuration.
    """
    if find_spec("vllm") is None:
        return None
    asked = json.dumps({"recipe": recipe, "compilation": dict(compilation), "most": most})
    ran = subprocess.run(
        module_command(__name__, asked),
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    line = next((line for line in ran.stdout.splitlines() if line.startswith(MARK)), None)
    if line is None:
        last = next((line for line in reversed(ran.stderr.splitlines()) if line.strip()), "it said nothing")
        raise ConfigError(f"vLLM {installed_vllm()} ended while it read the configuration: {last}")
    answer = json.loads(line.removeprefix(MARK))
    if refused := answer.get("refused"):
        raise ConfigError(f"vLLM {installed_vllm()} refuses the compilation configuration: {refused}")
    return Installed(version=installed_vllm(), options=answer["options"]) if answer["platform"] == PLATFORM else None


def main(asked: Mapping[str, Any]) -> None:
    """Prints one line behind MARK."""
    from vllm.config import SchedulerConfig, VllmConfig  # pyright: ignore[reportMissingImports]
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    most = asked["most"]
    scheduler = {"max_num_batched_tokens": most, "max_model_len": most, "max_num_seqs": min(most, 128)}
    try:
        made = VllmConfig(
            compilation_config=asked["compilation"],
            additional_config={"npucompose": asked["recipe"]},
            scheduler_config=SchedulerConfig(**scheduler, is_encoder_decoder=False),
        )
    except ValueError as error:
        answer: dict[str, Any] = {"refused": " ".join(str(error).split())[:500]}
    else:
        options = dict(_options(made.compilation_config))
        answer = {"platform": type(current_platform).__name__, "options": options}
    print(f"{MARK}{json.dumps(answer)}", flush=True)


def _options(config: Any) -> Any:
    from dataclasses import fields, is_dataclass

    for field in fields(config):
        value = getattr(config, field.name)
        if not field.init:
            continue
        if is_dataclass(value):
            yield from ((f"{field.name}.{one.name}", _plain(getattr(value, one.name))) for one in fields(value))
        elif isinstance(value, dict) and field.name.startswith("inductor"):
            yield from ((f"{field.name}.{name}", _plain(one)) for name, one in value.items())
        else:
            yield field.name, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
