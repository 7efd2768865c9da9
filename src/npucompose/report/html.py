"""report.html: one run for a person, in one file that loads nothing. Pure: reads a Report, returns text.

No speed is shown beside results that are not those of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npucompose.report.differences import written
from npucompose.report.files import write_atomically
from npucompose.report.html_sinking import sinking
from npucompose.report.markup import Html, page, table, tag
from npucompose.report.modes import tables_of_modes
from npucompose.report.passes import tables_of_ablation, tables_of_passes
from npucompose.report.style import STYLE
from npucompose.report.svg import distributions, lanes, stacked
from npucompose.report.timeline import drawn
from npucompose.report.words import (
    as_bytes,
    as_count,
    as_time,
    is_wrong,
    log_words,
    numerics_notes,
    overwrites_words,
    partition_words,
    ran_as,
    status_words,
    stream_words,
    why_untimed,
)
from npucompose.schema.facts import facts_of
from npucompose.schema.figures import Figures
from npucompose.schema.flat import flat
from npucompose.schema.record import Report, Status
from npucompose.schema.setting import COMMAND_LINE, origin
from npucompose.schema.streams import Timelines

FILE_NAME = "report.html"
CUT = 200
"""Characters of a value in a table; report.json has all of them."""


def write(report: Report, folder: Path, timelines: Timelines = ()) -> Path:
    """Put report.html in the folder, whole or not at all, and return its path."""
    path = folder / FILE_NAME
    write_atomically(path, render(report, timelines))
    return path


def render(report: Report, timelines: Timelines = ()) -> str:
    """The whole document; `timelines` are those of trace.json."""
    figures = Figures.of(report)
    title = title_of(figures)
    head = tag(
        "header",
        tag("h1", title),
        status_chip(report.status, status_words(report)),
        tag(
            "p", f"key {report.key[:12]}", " · nothing was run, all is stored" if report.reused else None, class_="dim"
        ),
    )
    sections = (_section(name, content) for name, content in _sections(report, figures, timelines) if content)
    return page(title, STYLE, head, *sections)


def title_of(figures: Figures) -> str:
    return " · ".join(str(v) for v in (figures.model, figures.target, figures.mode, figures.shapes) if v) or "a run"


def status_chip(status: Status, words: str) -> Html:
    return tag("span", words, class_=f"status {status}")


def _section(name: str, content: Sequence[Html]) -> Html:
    return tag("section", tag("h2", name), *content)


def _sections(report: Report, figures: Figures, timelines: Timelines) -> Iterator[tuple[str, list[Html]]]:
    missed = any(not e.held for e in report.expectations)
    yield "What went wrong", list(_trouble(report))
    yield "Expectations", list(_expectations(report)) if missed else []
    yield "Summary", list(_summary(report, figures))
    yield "Latency", list(_latency(report))
    yield "Which mode won", list(tables_of_modes(report))
    yield "Where the time went", list(_split(report))
    yield "Streams", list(_streams(report, timelines))
    yield "Sinking", list(sinking(report.sinking)) if report.sinking is not None else []
    yield "Graphs", list(_graphs(report))
    yield "Passes", list(tables_of_passes(report))
    yield "What each pass is worth", list(tables_of_ablation(report))
    yield "Declared calls", list(_calls(report))
    yield "TorchAir", list(_npu(report))
    yield "Expectations", [] if missed else list(_expectations(report))
    yield "Options that do not act as asked", list(_effective(report))
    yield "Configuration, and who said so", list(_configuration(report))
    yield "Environment", list(_environment(report))


def _trouble(report: Report) -> Iterator[Html]:
    if report.error:
        yield tag("p", report.error, class_="bad")
    if words := log_words(report):
        yield tag("p", words)
    if report.last_lines:
        yield tag("pre", "\n".join(report.last_lines))
    if report.numerics is not None and report.numerics.problems:
        yield tag("ul", *(tag("li", problem) for problem in report.numerics.problems))


def _expectations(report: Report) -> Iterator[Html]:
    """What did not hold with all its evidence, what held with its evidence folded."""
    for e in report.expectations:
        chip = tag("span", "held" if e.held else "missed", class_=f"chip {'ok' if e.held else 'problem'}")
        words = f" expect.{e.name} wanted {_value(e.wanted)}, got {_value(e.got)}"
        evidence = tag("ul", *(tag("li", sentence) for sentence in e.evidence)) if e.evidence else None
        if e.held and evidence is not None:
            yield tag("details", tag("summary", chip, words), evidence)
        else:
            yield tag("div", chip, words, evidence)


def _summary(report: Report, figures: Figures) -> Iterator[Html]:
    boxes = (tag("div", tag("b", value), tag("span", name)) for name, value in _tiles(report, figures))
    yield tag("div", *boxes, class_="tiles")
    for note in numerics_notes(report):
        yield tag("p", note, class_="dim")


def _tiles(report: Report, figures: Figures) -> Iterator[tuple[str, str]]:
    if figures.p50_us is not None:
        yield "median latency", as_time(figures.p50_us)
    if figures.speedup is not None:
        yield "times as fast as eager", f"{figures.speedup:.2f}×"
    if report.numerics is not None:
        same = "bit for bit" if report.numerics.bitwise else "in tolerance" if report.numerics.passed else "no"
        yield f"equals {report.numerics.reference}", same
    if report.graphs:
        kind = "dynamic" if any(g.fx == "dynamic" for g in report.graphs) else "static"
        yield "FX graph", kind if len(report.graphs) == 1 else f"{len(report.graphs)} × {kind}"
    if report.sinking is not None:
        path = f"GE build, path {report.sinking.path}" if report.sinking.path is not None else "GE build"
        yield path, report.sinking.ge_build
    if report.streams is not None:
        yield as_count(report.streams.events, "event"), as_count(report.streams.streams, "stream")
    apart, taken = (report.memory.pool_bytes, report.memory.taken_bytes) if report.memory else (None, None)
    if report.memory is not None and apart is not None and taken is not None:
        label = f"shared pool, {as_bytes(apart)} apart" if taken < apart else "pool"
        without = report.memory.unplanned_bytes
        yield f"{label}, {as_bytes(without)} without reuse" if without else label, as_bytes(taken)
    if figures.peak_rss_bytes is not None:
        yield "process peak", as_bytes(figures.peak_rss_bytes)
    if report.memory is not None and report.memory.device_peak_bytes is not None:
        yield "device peak", as_bytes(report.memory.device_peak_bytes)
    if figures.compile_s is not None:
        yield "compile", as_time(figures.compile_s * 1e6)


def _split(report: Report) -> Iterator[Html]:
    if report.records:
        stored = [r.stage for r in report.records if r.reused]
        yield stacked("stages, with the start of their process", {r.stage: r.seconds for r in report.records})
        if stored:
            yield tag("p", f"Taken from the store, as it was when it ran: {', '.join(stored)}.", class_="dim")
    times = report.stages.compile
    if times is not None:
        named = {"Dynamo": times.dynamo_s, "AOTAutograd": times.aot_s, "passes": times.passes_s}
        parts = {name: s for name, s in {**named, "backend": times.backend_s}.items() if s is not None}
        if parts:
            yield stacked("compilation", parts)


def _latency(report: Report) -> Iterator[Html]:
    times = report.stages.benchmark
    if times is None:
        return
    if is_wrong(report):
        yield tag("p", f"Not shown: {why_untimed(report)}.", class_="bad")
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


def _streams(report: Report, timelines: Timelines) -> Iterator[Html]:
    plan = report.streams
    if plan is None:
        return
    words = [as_count(plan.streams, "stream"), as_count(plan.events, "event"), as_count(len(plan.nodes), "node")]
    words.append("validated" if plan.validated else "not validated")
    for name, us in (("predicted", plan.predicted_us), ("on one", plan.serial_us)) if not plan.trials else ():
        words += [f"{name} {as_time(us)}"] if us is not None else []
    words += [f"for {plan.device}"] if plan.device and plan.predicted_us is not None else []
    words += stream_words(plan)
    yield tag("p", " · ".join(words))
    if plan.why:
        yield tag("p", f"{'Applied' if plan.applied else 'Not applied'}: {plan.why}", class_="dim")
    pictures = list(drawn(timelines))
    yield from pictures
    if plan.nodes and not pictures:
        yield lanes(plan.nodes)
        yield tag("p", "From left to right in the order of the plan; widths are not times.", class_="dim")


def _graphs(report: Report) -> Iterator[Html]:
    if report.graphs:
        rows = [
            (g.id, g.fx, f"{g.nodes_before} → {g.nodes_after}", ", ".join(g.symbols), _code(g.fingerprint[:16]))
            for g in report.graphs
        ]
        yield table(("graph", "shapes", "nodes", "symbols", "fingerprint"), rows)
    outside = [(g.id, one) for g in report.graphs if g.partition is not None for one in g.partition.outside]
    if outside:
        yield tag("ul", *(tag("li", words) for words in partition_words(report)))
        rows = [(graph, one.operator, one.reason, one.source) for graph, one in outside]
        yield table(("graph", "outside recordings", "why", "line of the model"), rows, class_="prose")
    if repeated := overwrites_words(report):
        yield tag("ul", *(tag("li", words) for words in repeated))
    if report.recompiles:
        rows = [(r.compile_id, r.reason, r.call or "", r.avoid or "") for r in report.recompiles]
        yield table(("recompilation", "why", "in", "avoid it"), rows, class_="prose")


def _calls(report: Report) -> Iterator[Html]:
    made = report.stages.sequence
    if made is not None:
        yield tag("p", f"{as_count(made.graphs, 'graph')} and {as_count(made.captures, 'recording')} for all of them.")
        if made.ran is not None and (made.ran.eager or made.ran.replacements):
            yield tag("p", ran_as(made.ran))
        rows = [(c.call, c.recompiles, "equal" if c.passed else "not equal") for c in made.calls]
        yield table(("call", "recompilations", "against eager"), rows)


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
        rows = [
            (_code(e.option), _value(e.requested), _value(e.effective), e.why, origin(report.provenance, e.option))
            for e in report.effective
        ]
        yield table(("option", "asked for", "in effect", "why", "asked by"), rows, class_="prose")


def _configuration(report: Report) -> Iterator[Html]:
    """What the command line said is open, everything else one click away."""
    values = {name: (value, origin(report.provenance, name)) for name, value in flat(report.experiment).items()}
    said = {name: row for name, row in values.items() if COMMAND_LINE in row[1]}
    if said:
        yield _options(said)
    if values:
        yield tag("details", tag("summary", f"all {as_count(len(values), 'value')}"), _options(values))


def _options(values: Mapping[str, tuple[Any, str]]) -> Html:
    rows = [(_code(name), _value(value), said_by) for name, (value, said_by) in values.items()]
    return table(("option", "value", "from"), rows, class_="prose")


def _environment(report: Report) -> Iterator[Html]:
    if report.environment is not None:
        rows = [(_code(name), _value(value)) for name, value in flat(facts_of(report.environment)).items()]
        yield tag("details", tag("summary", report.environment.platform), table(("", ""), rows))


def _code(text: str) -> Html:
    return tag("code", text)


def _value(value: Any) -> str:
    text = written(value)
    return text if len(text) <= CUT else f"{text[:CUT]}…"
