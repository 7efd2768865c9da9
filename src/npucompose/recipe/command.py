"""`npucompose recipe eject | import | export`: text on the screen or into a file, what is missing on stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from npucompose import commands


def eject(arguments: argparse.Namespace) -> int:
    from npucompose.recipe.ejected import eject as made

    script = made(*arguments.overrides, **_composing(arguments))
    return _written(script, arguments.out)


def _composing(arguments: argparse.Namespace) -> dict[str, Any]:
    """What composing takes beside the overrides."""
    return {
        "config_dirs": arguments.config_dir,
        "config_name": arguments.config_name,
        "environment": arguments.env,
    }


def import_(arguments: argparse.Namespace) -> int:
    from npucompose.recipe.imported import import_command_line, import_file, only_scripts

    said = _is_command_line(arguments.file)
    if said:
        assumed = next(iter(arguments.assume), None)
        asked = {"--torch-npu": arguments.torch_npu, "--compilation": arguments.compilation, "--assume": assumed}
        only_scripts("the command line", asked)
        imported = import_command_line(arguments.file, vllm_ascend_version=arguments.vllm_ascend)
    else:
        imported = import_file(
            arguments.file,
            torch_npu_version=arguments.torch_npu,
            vllm_ascend_version=arguments.vllm_ascend,
            compilation=arguments.compilation,
            assume=arguments.assume,
        )
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    for line in imported.unread:
        print(f"not read: {line}", file=sys.stderr)
    return _written(imported.yaml("the command line" if said else Path(arguments.file).name), arguments.out)


def _is_command_line(text: str) -> bool:
    """Several words, options among them or none that looks like a file's name: a path may have a space, too."""
    several = len(text.split()) > 1 and not os.path.exists(text)
    return several and (" -" in text or " serve " in text or not Path(text).suffix)


def export(arguments: argparse.Namespace) -> int:
    from npucompose.recipe import dialects

    exported = dialects.export(*arguments.overrides, to=arguments.to, **_composing(arguments))
    for missing in exported.without_equivalent:
        print(f"no equivalent: {missing['option']}: {missing['why']}", file=sys.stderr)
    return _written(json.dumps(exported.as_dict(), indent=2) + "\n", arguments.out)


def _written(text: str, out: str | None) -> int:
    if out is None:
        print(text, end="")
        return 0
    commands.write(out, text)
    print(f"written: {out}", file=sys.stderr)
    return 0
