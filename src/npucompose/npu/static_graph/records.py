"""Will a graph sink? The verdicts, who is to blame, the numbered steps that led there; what TorchAir and GE made of it.

The packages `sinking` and `report` read and write these; nothing here knows a rule. Certainty:

- `proven`: read from an artefact that shows it (the GE graph itself, a log of TorchAir, a dump of GE);
- `derived`: concluded from the FX graph, the configuration and the operator table by documented rules;
- `unknown`: neither; `evidence` then says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from attrs import field, frozen

GraphKind = Literal["static", "mixed", "dynamic", "unknown", "failed"]
"""`mixed`: GE cuts the graph into parts, of which some are static. `failed`: the graph before it was not taken, and
there is none."""

Certainty = Literal["proven", "derived", "unknown"]

StepId = Literal["S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"]

StepStatus = Literal["ok", "problem", "unknown", "skipped"]

VerdictName = Literal["fx_graph", "ge_graph", "ge_build"]

STEP_IDS: tuple[StepId, ...] = get_args(StepId)

VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)

KINDS: tuple[GraphKind, ...] = get_args(GraphKind)


@frozen(kw_only=True)
class SinkingVerdict:
    """One answer: `SinkingVerdict(value="static", certainty="proven", evidence=("Data query [2, 1, 64]", …))`."""

    value: GraphKind
    certainty: Certainty
    evidence: tuple[str, ...] = ()


UNKNOWN = SinkingVerdict(value="unknown", certainty="unknown")


@frozen(kw_only=True)
class Blame:
    """One reason for which a graph is not static; the first of a list is the first node in the graph's order."""

    node: str
    """Name of the FX node, or of the GE node where only that is known."""
    operator: str
    """`npu.npu_incre_flash_attention.default`, `placeholder`, or GE's operator type."""
    reason: str
    """One sentence."""
    source: str | None = None
    """Where the model says it: `model.py:12 in forward: y = x.view(n, -1)`; None where nobody recorded it."""
    graph: str | None = None
    """Id of the graph (report.json's graphs.id)."""
    argument: str | None = None
    """The model's argument, or the operator's slot, that decides."""
    dimension: int | None = None
    symbol: str | None = None
    rule: str | None = None
    """Which decision rule: `rule 3` of the table in docs/sinking.md, …"""


@frozen(kw_only=True)
class Failure:
    """A graph that the vendor's compiler did not take: which operator, which line of the model, what it would take."""

    graph: str
    """Id of the FX graph (report.json's graphs.id)."""
    what: str
    """What was tried: `TorchAir has no GE converter for aten._local_scalar_dense`."""
    operator: str | None = None
    """`aten._local_scalar_dense.default`; None where the compiler named none."""
    node: str | None = None
    source: str | None = None
    """`model.py:12 in forward: …`."""
    reason: str = ""
    """The compiler's own words, their first line."""
    fix: str | None = None
    """What it would take in its place."""
    foreseen: bool = False
    """Concluded from the operator table, on a target that asks no vendor's compiler; what runs there may run."""

    @property
    def words(self) -> str:
        """The paragraph that the command line prints."""
        return f"{self.without_fix} What would be taken: {self.fix}" if self.fix else self.without_fix

    @property
    def without_fix(self) -> str:
        """What was tried, on which node, at which line, and the compiler's own words."""
        node = f" (node {self.node})" if self.node else ""
        line = f" at {self.source}" if self.source else ""
        said = f" It says: {self.reason}{'' if self.reason.endswith(('.', '!', '?')) else '.'}" if self.reason else ""
        return f"{self.what}{node}{line}.{said}"


@frozen(kw_only=True)
class Undecided(Failure):
    """What only CANN decides, which was not there to be asked: on a device with CANN the graph may be taken."""


@frozen(kw_only=True)
class DiagnosisStep:
    """One step of the diagnosis: `DiagnosisStep(id="S1", title="configuration", status="problem", fix="…")`."""

    id: StepId
    title: str
    status: StepStatus
    evidence: tuple[str, ...] = ()
    fix: str | None = None
    """The YAML or Python line that mends it; None where nothing is to be mended."""


@frozen(kw_only=True)
class SinkingFacts:
    """report.json's `sinking`. With several graphs, the values are those of the least static one."""

    path: int | None = None
    """One of PATHS; None where no operator's tiling depends on values, or nobody can say."""
    almost: str | None = None
    """The path that the lengths alone would make, and what else makes the build dynamic: `path 4, but dynamic by …`."""
    fx_graph: GraphKind = "unknown"
    ge_graph: GraphKind = "unknown"
    """As TorchAir hands it to GE."""
    ge_build: GraphKind = "unknown"
    """As GE builds it."""
    certainty: Mapping[str, Certainty] = field(factory=dict[str, Certainty])
    """{fx_graph | ge_graph | ge_build: how sure}."""
    evidence: Mapping[str, tuple[str, ...]] = field(factory=dict[str, tuple[str, ...]])
    """{fx_graph | ge_graph | ge_build: what it was concluded from}."""
    product: str | None = None
    """The product that was asked about (target.soc)."""
    blame: tuple[Blame, ...] = ()
    steps: tuple[DiagnosisStep, ...] = ()
    failure: Failure | None = None
    """Why there is no GE graph, or no recording: then nothing here is proven."""

    @staticmethod
    def from_verdicts(
        *,
        fx_graph: SinkingVerdict,
        ge_graph: SinkingVerdict,
        ge_build: SinkingVerdict,
        path: int | None = None,
        almost: str | None = None,
        product: str | None = None,
        blame: tuple[Blame, ...] = (),
        steps: tuple[DiagnosisStep, ...] = (),
        failure: Failure | None = None,
    ) -> SinkingFacts:
        """The report's flat form of three verdicts."""
        verdicts = {"fx_graph": fx_graph, "ge_graph": ge_graph, "ge_build": ge_build}
        return SinkingFacts(
            path=path,
            almost=almost,
            fx_graph=fx_graph.value,
            ge_graph=ge_graph.value,
            ge_build=ge_build.value,
            certainty={name: v.certainty for name, v in verdicts.items()},
            evidence={name: v.evidence for name, v in verdicts.items()},
            product=product,
            blame=blame,
            steps=steps,
            failure=failure,
        )

    def verdicts(self) -> Mapping[VerdictName, SinkingVerdict]:
        """The inverse of `from_verdicts`."""
        return {
            name: SinkingVerdict(
                value=getattr(self, name),
                certainty=self.certainty.get(name, "unknown"),
                evidence=tuple(self.evidence.get(name, ())),
            )
            for name in VERDICTS
        }
