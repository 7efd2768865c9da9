"""An experiment out of npucompose and in again: plain scripts, live configurations, other projects' JSON.

`eject("mode=reduce-overhead", …)` is a script, `import_file("train.py").yaml()` an experiment, `of_config(config)` the
tree of a live CompilerConfig, `export("mode=npugraph_ex", …)` vLLM-Ascend's JSON. Importing this loads no torch.

What turns experiments into files for others and back lies here. Nothing here runs a graph or an untrusted script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npucompose.recipe.dialects import Exported, export
    from npucompose.recipe.ejected import eject
    from npucompose.recipe.imported import Imported, import_command_line, import_file, import_script
    from npucompose.recipe.vendor_options import Unread, of_config

__all__ = [
    "Exported",
    "Imported",
    "Unread",
    "eject",
    "export",
    "import_command_line",
    "import_file",
    "import_script",
    "of_config",
]

_HOME = {
    "eject": "ejected",
    "Unread": "vendor_options",
    "of_config": "vendor_options",
    "Imported": "imported",
    "import_command_line": "imported",
    "import_file": "imported",
    "import_script": "imported",
    "Exported": "dialects",
    "export": "dialects",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
