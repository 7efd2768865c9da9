"""report.html: one run for a person, in one file that loads nothing. Pure: reads a Report, returns text.

No speed is shown beside results that are not those of the reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from npucompose.report.compare import origin
from npucompose.report.files import write_atomically
from npucompose.report.markup import Html, joined, page, table, tag
from npucompose.report.passes import tables_of_ablation, tables_of_passes
from npucompose.report.style import STYLE
from npucompose.report.svg import distributions, lanes, stacked
from npucompose.report.words import STATUS_WORDS, as_bytes, as_count, as_time
from npucompose.schema.figures import Figures
from npucompose.schema.flat import flat
from npucompose.schema.record import Report, facts_of

FILE_NAME = "report.html"
CUT = 200
"""Characters of a value in a table; report.json has all of them."""


def write(report: Report, folder: Path) -> Path:
    """Put report.html in the folder, whole or not at all, and return its path."""
    path = folder / FILE_NAME
    write_atomically(path, render(report))
    return path


def render(report: Report) -> str:
    """The whole document."""
    figures = Figures.of(report)
    title = " · ".join(str(v) for v in (figures.model, figures.target, figures.mode, figures.shapes) if v) or "a run"
    head = tag(
        "header",
        tag("h1", title),
        tag("span", STATUS_WORDS[report.status], class_=f"status {report.status}"),
        tag(
            "p", f"key {report.key[:12]}", " · nothing was run, all is stored" if report.reused else None, class_="dim"
        ),
    )
    sections = (_section(name, content) for name, content in _sections(report, figures) if content)
    return page(title, STYLE, head, *sections)


def _section(name: str, content: Sequence[Html]) -> Html:
    return tag("section", tag("h2", name), *content)


def _sections(report: Report, figures: Figures) -> Iterator[tuple[str, list[Html]]]:
    yield "What went wrong", list(_trouble(report))
    yield "Summary", [_tiles(report, figures)]
    yield "Where compile time went", list(_compile(report))
    yield "Latency", list(_latency(report))
    yield "Streams", list(_streams(report))
    yield "Graphs", list(_graphs(report))
    yield "Passes", list(tables_of_passes(report))
    yield "What each pass is worth", list(tables_of_ablation(report))
    yield "Sinking", [_tree(report.sinking)] if report.sinking is not None else []
    yield "TorchAir", list(_npu(report))
    yield "Options that do not act as asked", list(_effective(report))
    yield "Configuration, and who said so", list(_configuration(report))
    yield "Environment", list(_environment(report))


def _trouble(report: Report) -> Iterator[Html]:
    if report.error:
        yield tag("p", report.error, class_="bad")
    if report.last_lines:
        yield tag("pre", "\n".join(report.last_lines))
    missed = [e for e in report.expectations if not e.held]
    if missed:
        rows = [(f"expect.{e.name}", _value(e.wanted), _value(e.got)) for e in missed]
        yield table(("expected", "wanted", "came out"), rows)
    if report.numerics is not None and report.numerics.problems:
        yield tag("ul", *(tag("li", problem) for problem in report.numerics.problems))


def _tiles(report: Report, figures: Figures) -> Html:
    tiles: list[tuple[str, str]] = []
    if figures.p50_us is not None:
        tiles.append(("median latency", as_time(figures.p50_us)))
    if figures.speedup is not None:
        tiles.append(("times as fast as eager", f"{figures.speedup:.2f}×"))
    if report.numerics is not None:
        same = "bit for bit" if report.numerics.bitwise else "in tolerance" if report.numerics.passed else "no"
        tiles.append((f"equals {report.numerics.reference}", same))
    if report.graphs:
        kind = "dynamic" if any(g.fx == "dynamic" for g in report.graphs) else "static"
        tiles.append(("FX graph", f"{kind}" if len(report.graphs) == 1 else f"{len(report.graphs)} × {kind}"))
    if report.streams is not None:
        tiles.append((as_count(report.streams.events, "event"), as_count(report.streams.streams, "stream")))
    if figures.pool_bytes is not None:
        tiles.append(("memory pool", as_bytes(figures.pool_bytes)))
    if figures.compile_s is not None:
        tiles.append(("compile", as_time(figures.compile_s * 1e6)))
    boxes = (tag("div", tag("b", value), tag("span", name)) for name, value in tiles)
    return tag("div", *boxes, class_="tiles")


def _compile(report: Report) -> Iterator[Html]:
    times = report.stages.compile
    if times is not None:
        named = {"Dynamo": times.dynamo_s, "AOTAutograd": times.aot_s, "passes": times.passes_s}
        parts = {name: s for name, s in {**named, "backend": times.backend_s}.items() if s is not None}
        if parts:
            yield stacked(parts)
    if report.records:
        rows = [(r.stage, as_time(r.seconds * 1e6), "stored" if r.reused else "run") for r in report.records]
        yield table(("stage", "took", ""), rows)


def _latency(report: Report) -> Iterator[Html]:
    times = report.stages.benchmark
    if times is None:
        return
    if report.status == "numerics_failed" or (report.numerics is not None and not report.numerics.passed):
        yield tag("p", "Not shown: the results are wrong.", class_="bad")
        return
    candidates = {times.candidate: times, **times.baselines}
    yield distributions({name: t.samples_us for name, t in candidates.items()})
    rows = [
        (name, *(as_time(us) for us in (t.p50_us, t.p90_us, t.p99_us, t.mean_us)), len(t.samples_us))
        for name, t in candidates.items()
    ]
    yield table(("", "p50", "p90", "p99", "mean", "samples"), rows)
    ratios = [(f"{times.candidate} against {name}", f"{ratio:.2f}×") for name, ratio in times.speedup.items()]
    ratios += [(f"compiled against {name}", f"{ratio:.2f}×") for name, ratio in times.speedup_compiled.items()]
    if ratios:
        yield table(("median of paired ratios", ""), ratios)
    if report.stages.capture is not None and report.stages.capture.why_attached:
        yield tag("p", f"No detached handle: {report.stages.capture.why_attached}")


def _streams(report: Report) -> Iterator[Html]:
    plan = report.streams
    if plan is None:
        return
    words = [as_count(plan.streams, "stream"), as_count(plan.events, "event"), as_count(len(plan.nodes), "node")]
    words.append("validated" if plan.validated else "not validated")
    for name, us in (("predicted", plan.predicted_us), ("on one", plan.serial_us), ("measured", plan.measured_us)):
        words += [f"{name} {as_time(us)}"] if us is not None else []
    yield tag("p", " · ".join(words))
    if plan.nodes:
        yield lanes(plan.nodes)
        yield tag("p", "From left to right in the order of the plan; widths are not times.", class_="dim")


def _graphs(report: Report) -> Iterator[Html]:
    if report.graphs:
        rows = [
            (g.id, g.fx, f"{g.nodes_before} → {g.nodes_after}", ", ".join(g.symbols), _code(g.fingerprint[:16]))
            for g in report.graphs
        ]
        yield table(("graph", "shapes", "nodes", "symbols", "fingerprint"), rows)
    if report.recompiles:
        yield table(("recompilation", "why"), [(r.compile_id, r.reason) for r in report.recompiles])


def _npu(report: Report) -> Iterator[Html]:
    npu = report.npu
    if npu is None:
        return
    where = "a device" if npu.platform == "device" else "the stand-in, which has no speed"
    yield tag("p", f"{npu.package} {npu.version} on {where}.")
    counted = {"captures": npu.captures, "replays": npu.replays, "task updates": npu.task_updates}
    counted |= {"streams": npu.streams, "event records": npu.event_records, "event waits": npu.event_waits}
    yield table(("counted", ""), [(name, number) for name, number in counted.items() if number is not None])
    if npu.ge_graphs:
        rows = [(g.name, g.nodes, g.shapes, len(g.control_edges)) for g in npu.ge_graphs]
        yield table(("GE graph", "nodes", "shapes", "control edges"), rows)


def _effective(report: Report) -> Iterator[Html]:
    if report.effective:
        rows = [(_code(e.option), _value(e.requested), _value(e.effective), e.why) for e in report.effective]
        yield table(("option", "asked for", "in effect", "why"), rows)


def _configuration(report: Report) -> Iterator[Html]:
    values = flat(report.experiment)
    if values:
        rows = [(_code(name), _value(value), origin(report.provenance, name)) for name, value in values.items()]
        yield tag("details", tag("summary", as_count(len(values), "value")), table(("option", "value", "from"), rows))


def _environment(report: Report) -> Iterator[Html]:
    if report.environment is not None:
        rows = [(_code(name), _value(value)) for name, value in flat(facts_of(report.environment)).items()]
        yield tag("details", tag("summary", report.environment.platform), table(("", ""), rows))


def _tree(value: Any) -> Html:
    """Plain data as nested lists."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return tag("ul", *(tag("li", _code(str(key)), " ", _tree(item)) for key, item in items))
    if isinstance(value, (list, tuple)):
        return tag("ol", *(tag("li", _tree(item)) for item in cast("Sequence[Any]", value)))
    return joined([_value(value)])


def _code(text: str) -> Html:
    return tag("code", text)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= CUT else f"{text[:CUT]}…"
