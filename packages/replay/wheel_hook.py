"""What `make dist` adds to the wheel: the native replayer, compiled for the torch, the Python and the platform of this
process. Hatchling runs it where HATCH_BUILD_HOOK_ENABLE_CUSTOM=true says so; any other wheel is for every platform.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CarryReplayer(BuildHookInterface[Any]):
    """The wheel gets the tag of its platform, and beside the replayer's sources the extension and its digest."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        sources = Path(self.root) / "src"
        sys.path.insert(0, str(sources))
        from npucompose.machine import CACHE_VARIABLE
        from npucompose_replay.executor import build

        # A cache of its own: what the user's holds may come from another checkout's compiler flags.
        self.folder = tempfile.TemporaryDirectory(prefix="npucompose-wheel-")
        os.environ[CACHE_VARIABLE] = self.folder.name
        place = build.prebuilt().relative_to(sources)
        made = build.file()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for file in (made, made.with_suffix(".sha256")):
            build_data["force_include"][str(file)] = str(place / file.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        self.folder.cleanup()
