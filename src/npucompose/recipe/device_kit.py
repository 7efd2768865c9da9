"""A device kit: one folder of plain scripts with which the owner of an NPU proves a recipe on their own model.

Written here, run there without npucompose, and read here again: `device-kit read` makes of the result file what the
engine uses. The scripts are those of kit_files/, as they stand; compiled.py is the ejected recipe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import yaml
from attrs import frozen

from npucompose.compose.check import Checked
from npucompose.compose.tree import Composed
from npucompose.recipe.ejected import script_of
from npucompose.results import premises
from npucompose.table.modes import GE
from npucompose.vendor.compiler import EVERY_LEAF
from npucompose.version import __version__

FILES = ("README.txt", "my_model.py", "run_kit.py", "observe.py")
RECORD, SCOPE = ".air.record.default", ".scope_enter.default"
"""How an ejected script writes the edits that make an event and a side stream."""
OPAQUE = ("pool", "names", "code")
"""Kinds of options whose value is an object of the vendor's that says no name."""
COSTS = {"launch_us": "launch_us", "gbytes_s": "gbytes_s"}
"""{figure of a kit: the field of streams.device that it replaces}."""


def texts(composed: Composed, checked: Checked, configuration: str) -> dict[str, str]:
    """{file: text} of a kit."""
    script = script_of(composed, checked)
    kit = json.dumps(about(checked, script, configuration), indent=1) + "\n"
    plain = {name: (resources.files("npucompose.recipe") / "kit_files" / name).read_text("utf-8") for name in FILES}
    return {**plain, "compiled.py": script, "kit.json": kit}


def about(checked: Checked, script: str, configuration: str) -> dict[str, Any]:
    """kit.json: what the scripts expect to see."""
    experiment = checked.experiment
    changed = experiment.compiler.changed()
    options = {
        EVERY_LEAF[path].genuine_path: {
            "asked": _plain(value),
            "default": _plain(EVERY_LEAF[path].default),
            "opaque": EVERY_LEAF[path].kind in OPAQUE,
        }
        for path, value in changed.items()
    }
    return {
        "recipe": configuration,
        "npucompose": __version__,
        "mode": experiment.mode.name,
        "seed": experiment.seed,
        "options": options,
        "events": script.count(RECORD),
        "side_streams": script.count(SCOPE),
        "sink": experiment.mode.name == GE and experiment.tiling.schedule == "sink",
        "eager_graph": bool(changed.get("npugraph_ex.force_eager") or changed.get("debug.run_eagerly")),
        "frozen": bool(checked.passes),
        "rests_on": list(premises.rests_on(experiment)),
    }


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@frozen(kw_only=True)
class Read:
    """What a result file of a kit says, in the words of a person and as files for the engine."""

    results: premises.DeviceResults

    def lines(self) -> Iterator[str]:
        data = self.results.data
        yield f"on {self.results.on}"
        for claim in self.results.claims.values():
            error = f": {' '.join(claim.error.split())}" if claim.error else ""
            yield f"  {claim.outcome:<8} {claim.name}: {claim.says}{error}"
        for option in _rows(data, "options"):
            differs = ", ".join(map(str, option.get("differs") or {}))
            words = {"seen": f"acted ({differs})", "not seen": "no effect was seen"}.get(str(option.get("acted")), "?")
            yield f"  option   {option.get('option')}={_shown(option.get('asked'))}: {words}"
        streams = _mapping(data, "streams")
        if streams:
            yield "  streams  " + ", ".join(f"{name} {_shown(value)}" for name, value in streams.items())
        yield from self._measured()
        yield from (f"  not looked at: {text}" for text in data.get("not_looked_at") or [])

    def _measured(self) -> Iterator[str]:
        medians = self.medians()
        if set(medians) == {"eager", "compiled"}:
            speedup = medians["eager"] / medians["compiled"]
            yield f"  times    eager {medians['eager']:.1f} µs, compiled {medians['compiled']:.1f} µs: {speedup:.2f} x"
        else:
            yield "  times    not run"
        kernels = sorted(_mapping(self.results.data, "kernels").items(), key=lambda row: -_number(row[1].get("us")))
        for name, row in kernels[:10]:
            yield f"  kernel   {name}: {row.get('calls')} calls, {_number(row.get('us')):.1f} µs"

    def medians(self) -> dict[str, float]:
        samples = _mapping(self.results.data, "times_us").items()
        return {name: sorted(map(_number, us))[len(us) // 2] for name, us in samples if us}

    def costs(self) -> dict[str, float]:
        """What replaces figures of the target's device model, as streams.device takes it."""
        found = _mapping(self.results.data, "costs")
        return {COSTS[name]: _number(value) for name, value in found.items() if name in COSTS and _number(value) > 0}


def result_files(read: Read) -> dict[str, str]:
    """{file: text}: verdicts.json, report.txt and, where something was measured, conf/streams/<device>.yaml."""
    found = {"verdicts.json": json.dumps(dict(read.results.data), indent=1) + "\n"}
    found["report.txt"] = "\n".join(read.lines()) + "\n"
    if costs := read.costs():
        head = f"# the streams are planned with what was measured on {read.results.on}\n"
        text = yaml.safe_dump({"kind": "auto", "device": costs}, sort_keys=False)
        found[f"conf/streams/{device_name(read.results)}.yaml"] = f"{head}name: {device_name(read.results)}\n{text}"
    return found


def device_name(results: premises.DeviceResults) -> str:
    """A plain name for files and choices: `Ascend910B4`."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", str(results.device.get("soc") or "unknown"))[:60].strip("_") or "unknown"


def _mapping(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return dict(found) if isinstance(found, Mapping) else {}


def _rows(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = data.get(name)
    return [dict(row) for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
