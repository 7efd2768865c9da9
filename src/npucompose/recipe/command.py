"""`npucompose recipe eject | import | export`: text on the screen or into a file, what is missing on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from npucompose.errors import ConfigError, unknown


def eject(arguments: argparse.Namespace) -> int:
    from npucompose.recipe.ejected import eject as made

    script = made(*arguments.overrides, config_dirs=arguments.config_dir, config_name=arguments.config_name)
    return _written(script, arguments.out)


def import_(arguments: argparse.Namespace) -> int:
    from npucompose.recipe.imported import import_file

    imported = import_file(arguments.file, torch_npu_version=arguments.torch_npu)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    for line in imported.unread:
        print(f"not read: {line}", file=sys.stderr)
    return _written(imported.yaml(Path(arguments.file).name), arguments.out)


def export(arguments: argparse.Namespace) -> int:
    from npucompose.recipe.vllm_ascend import EXPORTS

    if arguments.to not in EXPORTS:
        raise ConfigError(unknown("project", arguments.to, tuple(EXPORTS), "--to"))
    exported = EXPORTS[arguments.to](
        *arguments.overrides, config_dirs=arguments.config_dir, config_name=arguments.config_name
    )
    return _written(json.dumps(exported.as_dict(), indent=2) + "\n", arguments.out)


def migrate(arguments: argparse.Namespace) -> int:
    """1 where the recipe has to be changed."""
    from npucompose.recipe.migrate import migrate_file

    found = migrate_file(arguments.file, arguments.to, arguments.since)
    print(found.text(), end="")
    return 1 if found.problems else 0


def _written(text: str, out: str | None) -> int:
    if out is None:
        print(text, end="")
        return 0
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}.") from None
    print(f"written: {out}", file=sys.stderr)
    return 0
