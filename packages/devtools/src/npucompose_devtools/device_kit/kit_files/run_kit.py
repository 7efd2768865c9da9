"""Runs your model eager and compiled on the NPU, and writes results.json. Needs torch and torch_npu, nothing else.

python3 run_kit.py [--device npu:0] [--calls 50] [--no-options] [--no-times] [--no-profile] [--result results.json]

Each look at a compilation is a process of its own, for TorchAir's global options are set once in a process: the recipe
as it is, and then once without each of its options. What differs between the two is what the option does here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCHEMA = 2
LAST = 400
LOOKED_AT = (
    "captures",
    "replays",
    "task_updates",
    "records",
    "waits",
    "streams",
    "ge_options",
    "outputs_reused",
    "bitwise",
)
"""What of two observations is compared to say whether an option acted."""


def child(asked: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """What a process of its own observed, and the last of what it said where it did not come to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "observed.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--observe", json.dumps(asked), "--result", str(out)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = json.loads(out.read_text()) if out.is_file() else {}
        if done.returncode == 0 and "error" not in found:
            return found, ""
        if "error" in found:
            return None, found["error"]
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        return None, " ".join(last)[-LAST:] or f"exit status {done.returncode}"


def claims_of(kit: dict[str, Any], found: dict[str, Any] | None, error: str) -> Iterator[dict[str, Any]]:
    def claim(name: str, says: str, holds: bool | None, evidence: Any = None, why: str | None = None) -> dict[str, Any]:
        verdict = {True: "proven", False: "refuted", None: "not run"}[holds]
        return {"name": f"kit[{name}]", "says": says, "verdict": verdict, "evidence": evidence, "error": why}

    yield claim("compiles", "the recipe compiles and runs on this host", found is not None, None, error or None)
    if found is None:
        return
    plain = {path: option for path, option in kit["options"].items() if not option["opaque"]}
    unlike = {p: found["held"].get(p) for p, o in plain.items() if found["held"].get(p) != o["asked"]}
    yield claim("configuration", "the genuine object holds each option as it was asked for", not unlike, unlike)
    same = found["bitwise"] if kit["mode"] != "max-autotune" else found["close"]
    yield claim(
        "equals eager",
        "two calls give eager's values" + (", bit for bit" if kit["mode"] != "max-autotune" else ""),
        same,
        {name: found[name] for name in ("bitwise", "close", "max_abs_err", "compared")},
    )
    if kit["mode"] == "max-autotune":
        yield claim("graph", "TorchAir handed GE a graph", found["ge_graphs"] >= 1, found["ge_options"])
    elif not kit["eager_graph"]:
        counts = {name: found[name] for name in ("captures", "replays")}
        yield claim("graph", "one capture, and a replay for each call", found["captures"] >= 1, counts)
    if kit["events"] or kit["side_streams"]:
        seen = found["stream_labels"] if kit["mode"] == "max-autotune" else found["ordered"]
        enough = (
            len(found["stream_labels"]) >= 1 if kit["mode"] == "max-autotune" else found["ordered"] >= kit["events"]
        )
        yield claim("streams", "the plan's streams and events reach the device", enough, seen)
    if kit["sink"]:
        given = found["ge_options"].get("ge.tiling_schedule_optimize")
        yield claim("sink", "tiling sink reaches GE", given == "1", given)


def acted(kit: dict[str, Any], found: dict[str, Any], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each option once more at its default: what differs then is what it does here."""
    for path, option in kit["options"].items():
        row = {"option": path, "asked": option["asked"], "held": found["held"].get(path)}
        if arguments.no_options:
            yield {**row, "acted": "not run"}
            continue
        print(f"without {path} …", flush=True)
        other, error = child(_asked(arguments, without=path))
        if other is None:
            yield {**row, "acted": "seen", "differs": {"without it": error}}
            continue
        differs = {name: [found[name], other[name]] for name in LOOKED_AT if found[name] != other[name]}
        row["p50_us"] = [_p50(one) for one in (found, other)]
        yield {**row, "acted": "seen" if differs else "not seen", "differs": differs}


def _p50(found: dict[str, Any]) -> float | None:
    samples = found.get("times_us", {}).get("compiled")
    return statistics.median(samples) if samples else None


def _asked(arguments: argparse.Namespace, *, without: str | None = None, first: bool = False) -> dict[str, Any]:
    on_device = arguments.device.startswith("npu")  # a CPU has no NPU's speed
    return {
        "device": arguments.device,
        "without": without,
        "calls": arguments.calls if on_device and not arguments.no_times else 0,
        "profile": str(HERE / "profile") if on_device and first and not arguments.no_profile else None,
        "measure": on_device and first and not arguments.no_times,
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    kit = json.loads((HERE / "kit.json").read_text())
    print("the recipe as it is …", flush=True)
    asked = _asked(arguments, first=True)
    found, error = child(asked)
    lost: list[str] = []
    for name in ("profile", "measure"):  # what only looks must not hide what runs
        if found is None and asked[name]:
            lost.append(f"{name}: {error}")
            asked = {**asked, name: None}
            found, error = child(asked)
    return {
        "schema": SCHEMA,
        "kind": "device kit",
        "recipe": kit["recipe"],
        "mode": kit["mode"],
        "npucompose": kit["npucompose"],
        "device": (found or {}).get("device", {"soc": "unknown", "python": platform.python_version()}),
        "claims": list(claims_of(kit, found, error)),
        "options": list(acted(kit, found, arguments)) if found is not None else [],
        "streams": {k: found[k] for k in ("streams", "records", "waits", "ordered", "stream_labels")} if found else {},
        "times_us": (found or {}).get("times_us", {}),
        "kernels": (found or {}).get("profile", {}),
        "costs": (found or {}).get("costs", {}),
        "not_looked_at": lost,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="npu:0")
    parser.add_argument("--calls", type=int, default=50, help="timed calls of each")
    parser.add_argument("--result", type=Path, default=Path("results.json"))
    parser.add_argument("--observe", help=argparse.SUPPRESS)
    for name in ("options", "times", "profile"):
        parser.add_argument(f"--no-{name}", action="store_true")
    arguments = parser.parse_args()
    if arguments.observe:
        sys.path.insert(0, str(HERE))
        process: Any = importlib.import_module("observe")
        try:
            found = process.observe(json.loads(arguments.observe))
        except Exception as error:  # noqa: BLE001  it is the result, in one paragraph
            found = {"error": process.error_words(error)}
        arguments.result.write_text(json.dumps(found))
        return 0
    results = run(arguments)
    arguments.result.write_text(json.dumps(results, indent=1) + "\n")
    for claim in results["claims"]:
        print(
            f"{claim['verdict']:<8} {claim['name']}: {claim['says']}"
            + (f": {claim['error']}" if claim["error"] else "")
        )
    for option in results["options"]:
        print(f"{option['acted']:<8} {option['option']}={option['asked']}")
    print(f"written: {arguments.result}")
    return 1 if any(claim["verdict"] == "refuted" for claim in results["claims"]) else 0


if __name__ == "__main__":
    sys.exit(main())
