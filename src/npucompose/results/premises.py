"""What was proven on a device, claim by claim, and which experiments rest on a claim. Loads no torch.

A result file comes from `make test-npu` or from a device kit. Its claims have the names of tests/npu/claims.py, or
start with `kit`. An experiment that rests on a refuted claim is an error: what the engine promises of it was seen to be
wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from attrs import field, frozen

from npucompose.errors import ConfigError, listed
from npucompose.schema.experiment import Experiment
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX, ModeSpec

SCHEMA = 2
"""Of result files; 1 had no verdict for claims that were not run."""

Outcome = Literal["proven", "refuted", "not run"]

MOST_WORDS = 400

DUMPS: Mapping[str, str] = {ACLGRAPH: "dump_config.enable_dump", NPUGRAPH_EX: "npugraph_ex.dump_tensor_data"}


@frozen(kw_only=True)
class ClaimResult:
    """One claim of a result file."""

    name: str
    outcome: Outcome
    says: str = ""
    error: str | None = None


@frozen(kw_only=True)
class DeviceResults:
    """A result file: the device, and what came of every claim."""

    file: str
    device: Mapping[str, Any]
    claims: Mapping[str, ClaimResult]
    data: Mapping[str, Any] = field(factory=dict[str, Any], repr=False)

    @property
    def on(self) -> str:
        """`Ascend910B4, torch_npu 2.13.0, torch 2.13.0, CANN 8.5.0`; what the file does not say is `?`."""
        said = [f"{name} {self.device.get(name) or '?'}" for name in ("torch_npu", "torch", "CANN")]
        said[-1] = f"CANN {self.device.get('cann') or '?'}"
        return ", ".join([str(self.device.get("soc") or self.device.get("name") or "?"), *said])


def read(path: Path, text: str) -> DeviceResults:
    """A result file's text; ConfigError says what is wrong with it."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    whole: Mapping[str, Any] = cast("Mapping[str, Any]", data) if isinstance(data, dict) else {}
    claims, device = whole.get("claims"), whole.get("device")
    if not isinstance(claims, list) or not isinstance(device, dict):
        raise ConfigError(f"{path} is no result file of a device: `make test-npu` and device kits write such files.")
    if whole.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path} has schema {whole.get('schema')!r}, and this version reads {SCHEMA}: prove it again."
        )
    found = [_claim(path, row) for row in cast("list[Any]", claims)]
    return DeviceResults(
        file=str(path),
        device=cast("Mapping[str, Any]", device),
        claims={claim.name: claim for claim in found},
        data=whole,
    )


def _claim(path: Path, row: Any) -> ClaimResult:
    outcomes: tuple[Outcome, ...] = get_args(Outcome)
    one: Mapping[str, Any] = cast("Mapping[str, Any]", row) if isinstance(row, dict) else {}
    name, outcome = one.get("name"), one.get("verdict")
    if not isinstance(name, str) or outcome not in outcomes:
        shown = repr(cast("object", row))[:120]
        raise ConfigError(f"{path}: each claim needs a name and a verdict, one of {listed(outcomes)}: {shown}.")
    error = one.get("error")
    return ClaimResult(
        name=name,
        outcome=outcome,
        says=str(one.get("says", "")),
        error=None if error is None else str(error)[-MOST_WORDS:],
    )


def rests_on(experiment: Experiment) -> tuple[str, ...]:
    """The names of the claims without which the engine could promise nothing of this experiment."""
    mode = experiment.mode.spec
    if not mode.compiles:
        return ()
    found = [name for name, rests in _premises(mode).items() if rests(experiment)]
    return tuple(dict.fromkeys(found))


Rests = Callable[[Experiment], bool]

MODELS = ("add", "mm_abs_sub", "linear_scalar", "attention_decode", "gpt_decode", "moe_shared_expert")
"""Of the claims that a whole run holds."""


def _always(_: Experiment) -> bool:
    return True


def _option(path: str) -> Rests:
    return lambda experiment: bool(experiment.compiler[path])


def _has(name: str) -> Rests:
    return lambda experiment: any(choice.name == name for choice in experiment.passes.values())


def _ran(model: str, plan: str) -> Rests:
    return lambda experiment: experiment.model.name == model and _has("stream_plan")(experiment) is (plan == "planned")


def _target(name: str) -> Rests:
    return lambda experiment: bool(experiment.target.options.get(name))


def _premises(spec: ModeSpec) -> Mapping[str, Rests]:
    """{claim: whether an experiment of this mode rests on it}."""
    mode, package = spec.name, NPUGRAPH_EX if spec.package == "npugraph_ex" else GE
    found: dict[str, Rests] = {"option_tree": _always, f"configuration[{package}]": _always}
    found |= {f"run[{mode}, {model}, {plan}]": _ran(model, plan) for model in MODELS for plan in ("plain", "planned")}
    found[f"cache[{mode}]"] = lambda e: e.compile.cache
    if spec.ge:
        return {**found, **OF_GE}
    return {
        **found,
        f"stream order[{mode}]": _has("stream_plan"),
        f"cores[{mode}]": _has("core_limit"),
        f"dumps[{mode}]": _option(DUMPS[mode]),
        f"task updates[{mode}]": lambda e: e.shapes.dynamic is True,
        f"task updates in a run[{mode}]": lambda e: e.shapes.dynamic is True,
        f"repeated[{mode}]": lambda e: not e.compile.fullgraph,
    }


OF_GE: Mapping[str, Rests] = {
    "ge[streams]": _has("stream_plan"),
    "ge[frozen inputs]": _option("experimental_config.frozen_parameter"),
    "ge[gears]": lambda e: bool(e.shapes.gears),
    "ge[sink]": lambda e: e.tiling.schedule == "sink",
    "ge[decomposition]": _target("decompose"),
    "ge[cores]": _has("core_limit"),
    "ge[super kernel]": _has("super_kernel"),
    "ge[export]": _option("export.export_mode"),
    "ge[training]": lambda e: e.compile.training,
    "ge[joint graph]": _option("experimental_config.aot_config_enable_joint_graph"),
    "ge[hcom]": _target("patch_for_hcom"),
}


def refuted(experiment: Experiment, results: DeviceResults, also: Sequence[str] = ()) -> tuple[str, ...]:
    """A sentence for each refuted claim that the experiment rests on; `also` are claims of a kit about itself."""
    sentences: list[str] = []
    for name in (*rests_on(experiment), *also):
        claim = results.claims.get(name)
        if claim is not None and claim.outcome == "refuted":
            last = (claim.error or "").strip().splitlines()
            why = f": {' '.join(last[-1].split())}" if last else ""
            sentences.append(f"refuted on {results.on}: {name}: {claim.says}{why}. See {results.file}.")
    return tuple(sentences)


def judged(experiment: Experiment, results: DeviceResults) -> str:
    """Each claim that the experiment rests on, with what came of it; the count last."""
    names = rests_on(experiment)
    outcomes = {name: results.claims[name].outcome if name in results.claims else "not run" for name in names}
    lines = [f"  {outcome:<8} {name}" for name, outcome in outcomes.items()]
    counts = [f"{sum(o == outcome for o in outcomes.values())} {outcome}" for outcome in get_args(Outcome)]
    return "\n".join([f"on {results.on}", *lines, f"claims that it rests on: {', '.join(counts)}"]) + "\n"
