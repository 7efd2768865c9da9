"""report.html: one run for a person, in one file that loads nothing. Pure: reads a Report, returns text.

No speed is shown beside results that are not those of the reference. The pages are in templates/, where every text of a
report is escaped; here is what stands in them, the few sentences first that say what came of the run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from airflow_free.store import write_atomically
from npucompose.npu.capture.explanation import budget_lines, captured_rows
from npucompose.npu.static_graph.explanation import TITLES, path_words, value_words
from npucompose.report import pictures
from npucompose.report.generation import (
    HEAD,
    generation_bars,
    generation_cells,
    generation_lines,
    generation_memory,
)
from npucompose.report.graph_view import graph_view
from npucompose.report.json import PAGE
from npucompose.report.overview import overview
from npucompose.report.plan_words import stream_words
from npucompose.report.terminal import stream_line
from npucompose.report.words import (
    WAYS,
    as_count,
    as_time,
    builds_ge_graphs,
    is_wrong,
    joined,
    log_words,
    mode_cells,
    modes_sentence,
    numerics_notes,
    overwrites_words,
    partition_words,
    ran_as,
    rule_words,
    status_words,
    variant_cells,
    why_untimed,
    winner_words,
    written,
)
from npucompose.results.effective import COMMAND_LINE, origin
from npucompose.results.graphs import GraphDrawing, rules_together
from npucompose.results.record import Figures, Report
from npucompose.results.streams import Timelines
from npucompose.schema.sizes import as_bytes
from npucompose.table.structure import facts_of, flat

CUT = 200
"""Characters of a value in a table; report.json has all of them."""
FOLDER = Path(__file__).with_name("templates")
Drawings = Mapping[str, GraphDrawing]
"""{graph: what is drawn of it}."""
NO_DRAWINGS: Drawings = {}


@cache
def environment() -> Any:
    """The templates: all is escaped, nothing may be missing, and line breaks of a template are no text of a page."""
    import jinja2
    from jinja2.ext import Extension

    class Lines(Extension):
        def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
            beside_a_tag = re.sub(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])", "", source)
            return re.sub(r"\s*\n\s*", " ", beside_a_tag).strip()

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        extensions=[Lines],
        finalize=_nothing_for_none,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters.update(number=number, value=value_words_cut)  # pyright: ignore[reportUnknownMemberType]
    made.globals.update(as_bytes=as_bytes, as_count=as_count, as_time=as_time, digest=digest, joined=joined)  # pyright: ignore[reportUnknownMemberType]
    return made


def _nothing_for_none(value: Any) -> Any:
    return "" if value is None else value


def page(template: str, title: str, *, style: str, script: str = "", **values: object) -> str:
    """A whole document that loads nothing; `style` and `script` are names of ours in templates/."""
    from markupsafe import Markup

    sources = [Markup("".join(map(source, names.split()))) for names in (style, script)]
    return (
        environment()
        .get_template(template)
        .render(title=title, style=sources[0], script=sources[1], contents=[], **values)
    )


def source(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """What a page's policy allows: `'sha256-…'`, or `'none'`."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" if text else "'none'"


def number(value: float) -> str:
    """`number(2.504)` is `2.5`, `number(3.0)` is `3`."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def value_words_cut(value: Any) -> str:
    text = written(value)
    return text if len(text) <= CUT else f"{text[:CUT]}…"


def write(report: Report, folder: Path, timelines: Timelines = (), drawings: Drawings = NO_DRAWINGS) -> Path:
    """Put report.html in the folder, whole or not at all, and return its path."""
    path = folder / PAGE
    write_atomically(path, render(report, timelines, drawings))
    return path


def render(report: Report, timelines: Timelines = (), drawings: Drawings = NO_DRAWINGS) -> str:
    """The whole document; `timelines` are those of trace.json, `drawings` those of graphs/."""
    view = graph_view(drawings, applied=report.streams is None or report.streams.applied)
    figures = Figures.from_report(report)
    return page(
        "run.html",
        " · ".join(str(v) for v in (figures.model, figures.target, figures.mode, figures.shapes) if v) or "a run",
        style="page.css graph.css" if view is not None else "page.css",
        script="graph.js" if view is not None else "",
        report=report,
        graph_view=view,
        status_words=status_words(report),
        log_words=log_words(report),
        figures=figures,
        builds_ge=builds_ge_graphs(report),
        numerics_notes=numerics_notes(report),
        titles=TITLES,
        path_words=path_words,
        value_words=value_words,
        ran_as=ran_as,
        stream_words=stream_words,
        timelines=list(pictures.timeline_drawings(timelines)),
        lanes=pictures.lanes,
        overview=overview(report, timelines),
        sentences=verdict(report),
        memory_drawings=list(pictures.memory_drawings(timelines, drawings)),
        **_measured(report),
        **_tables(report),
    )


def _measured(report: Report) -> dict[str, Any]:
    """Latency, modes, where the time went."""
    times, compiled, modes = report.stages.benchmark, report.stages.compile, report.stages.modes
    wrong, parts = is_wrong(report), dict[str, float]()
    if compiled is not None:
        named = {"Dynamo": compiled.dynamo_s, "AOTAutograd": compiled.aot_s, "passes": compiled.passes_s}
        parts = {name: s for name, s in {**named, "backend": compiled.backend_s}.items() if s is not None}
    seconds = {r.stage: r.seconds for r in report.records}
    return {
        "why_untimed": why_untimed(report) if times is not None and wrong else None,
        "latency": _latency(report) if times is not None and not wrong else None,
        "modes": {"sentence": modes_sentence(modes), "rows": [mode_cells(one) for one in modes.modes]}
        if modes is not None and not wrong
        else None,
        "generation": None if wrong else _generation(report),
        "stages": pictures.stacked("stages, with the start of their process", seconds) if seconds else None,
        "stored": [r.stage for r in report.records if r.reused],
        "compilation": pictures.stacked("compilation", parts) if parts else None,
    }


def _generation(report: Report) -> dict[str, Any] | None:
    facts = report.stages.generate
    if facts is None:
        return None
    return {
        "lines": generation_lines(facts),
        "bars": generation_bars(facts),
        "head": HEAD,
        "rows": [generation_cells(point, one) for point in facts.points for one in point.ways],
        "memory": generation_memory(facts),
    }


def _latency(report: Report) -> dict[str, Any]:
    times = report.stages.benchmark
    assert times is not None
    candidates = {times.candidate: times, **times.baselines}
    ratios = [(f"{times.candidate} against {name}", f"{ratio:.2f}×") for name, ratio in times.speedup.items()]
    ratios += [(f"compiled against {name}", f"{ratio:.2f}×") for name, ratio in times.speedup_compiled.items()]
    return {
        "picture": pictures.distributions({name: t.samples_us for name, t in candidates.items()}),
        "rows": [
            (name, *map(as_time, (t.p50_us, t.p90_us, t.p99_us, t.mean_us)), len(t.samples_us))
            for name, t in candidates.items()
        ],
        "ratios": ratios,
    }


def _tables(report: Report) -> dict[str, Any]:
    """The rows of every table."""
    npu, ablation, made = report.npu, report.stages.ablation, report.stages.sequence
    padding = report.stages.padding
    counts = ("captures", "replays", "task_updates", "streams", "event_records", "event_waits") if npu else ()
    options = [
        (name, value_words_cut(value), origin(report.provenance, name))
        for name, value in flat(report.experiment).items()
    ]
    outside = [(g.id, one) for g in report.graphs if g.partition is not None for one in g.partition.outside]
    environment = flat(facts_of(report.environment)) if report.environment is not None else {}
    return {
        "graphs": [
            (g.id, g.fx, f"{g.nodes_before} → {g.nodes_after}", ", ".join(g.symbols), g.fingerprint[:16])
            for g in report.graphs
        ],
        "outside": [(graph, one.operator, one.reason, one.source) for graph, one in outside],
        "partition_words": partition_words(report),
        "overwrites_words": overwrites_words(report),
        "winner_words": winner_words(report),
        "captured": captured_rows(report.capture),
        "capture_budget": list(budget_lines(report.capture)) if report.capture is not None else [],
        "recompiles": [(r.compile_id, r.reason, r.call, r.avoid) for r in report.recompiles],
        "passes": [
            (p.name, p.stage, p.graph, p.matches, f"{p.nodes_before} → {p.nodes_after}", as_time(p.seconds * 1e6))
            for p in report.passes
        ],
        "rules": [(r.rule, " · ".join(rule_words(r)[1:])) for r in rules_together(one.rules for one in report.passes)],
        "rejected": [(words,) for words in report.rejected],
        "padding": [(c.way, c.garbage, "; ".join(c.changed) or "none") for c in padding.checks] if padding else [],
        "ablation": [variant_cells(variant) for variant in ablation.variants] if ablation is not None else None,
        "calls": [(c.call, c.recompiles, "equal" if c.passed else "not equal") for c in made.calls] if made else [],
        "counted": [(name.replace("_", " "), n) for name in counts if (n := getattr(npu, name)) is not None],
        "ge_graphs": [(g.name, g.nodes, g.shapes, len(g.control_edges)) for g in npu.ge_graphs] if npu else [],
        "effective": [
            (e.option, value_words_cut(e.requested), value_words_cut(e.effective), e.why,
             origin(report.provenance, e.option))
            for e in report.effective
        ],
        "values": options,
        "said": [row for row in options if COMMAND_LINE in row[2]],
        "environment": [(name, value_words_cut(value)) for name, value in environment.items()],
    }  # fmt: skip


def verdict(report: Report) -> list[str]:
    """The most important first: `1.91x over eager: median ratio of …`, `equals eager bit for bit`, the stream plan."""
    return [*_speed(report), *_results(report), *_plan(report), *_attention(report)]


def _speed(report: Report) -> Iterator[str]:
    times = report.stages.benchmark
    if times is None:
        return
    if is_wrong(report):
        yield f"No speed is shown: {why_untimed(report)}."
        return
    faster = times.speedup.get("eager")
    if faster is None:
        yield f"{as_time(times.p50_us)}, median of {as_count(len(times.samples_us), 'call')}."
        return
    pairs = as_count(len(times.samples_us), "pair")
    yield f"{faster:.2f}x over eager ({WAYS[times.candidate]}): median ratio of {pairs} of calls made in turn."


def _results(report: Report) -> Iterator[str]:
    found = report.numerics
    if found is not None and found.passed:
        equal = "bit for bit" if found.bitwise else f"within tolerance, largest error {found.max_abs_err or 0:.3g}"
        yield f"Results equal {found.reference}'s {equal}."


def _plan(report: Report) -> Iterator[str]:
    if report.streams is not None and not is_wrong(report):
        yield f"Stream plan {stream_line(report.streams)}."


def _attention(report: Report) -> Iterator[str]:
    if report.recompiles:
        yield f"{as_count(len(report.recompiles), 'recompilation')}, see below."
    idle = sum(one.option != "target" for one in report.effective)
    if idle:
        yield f"{as_count(idle, 'option')} did not take effect as requested, see below."
