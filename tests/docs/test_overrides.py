"""Every override that README.md and docs/ print in their text is taken as printed, and none needs a plus.

Whole commands are looked at in test_pages.py; here an override stands alone, beside the choice that its key belongs to.
"""

from __future__ import annotations

import re

import attrs
import pytest

from npucompose.compose.check import _sections
from npucompose.compose.conf import conf_dir
from npucompose.compose.tree import Composer
from npucompose.report.keys import keys
from npucompose.schema.experiment import Experiment
from npucompose.table.structure import structure
from tests.docs.blocks import PAGES, ROOT

NAMES = {field.name for field in attrs.fields(Experiment)} | {
    path.name for path in conf_dir().iterdir() if path.is_dir()
}
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
OVERRIDE = re.compile(
    rf"(?<![\w./-])([+~]{{0,2}}(?:{'|'.join(sorted(NAMES))})(?:\.[\w.-]+)?"
    r"=(?:\{[^}]*\}|\[[^\]]*\]|[^\s`'\"|;,)]+))"
)
EXAMPLES = (
    "model=my_model",
    "experiment=my_serving",
    "passes=square",
    "passes.square.",
    "passes=[square,",
    "compiler.a.b=value",
    "streams=<device>",
)
"""What the reader of a page has made, or puts in the place of a word."""
COMPOSER = Composer()


def printed() -> list[object]:
    """Overrides that README and docs print."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = FENCED.sub("", page.read_text(encoding="utf-8"))
        for span in SPAN.findall(text):
            for override in OVERRIDE.findall(" ".join(span.split())):
                found.setdefault(override, str(page.relative_to(ROOT)))
    told = {one: page for one, page in found.items() if "…" not in one and not one.startswith(EXAMPLES)}
    return [pytest.param(one, id=f"{page}:{one}") for one, page in told.items()]


def context(key: str) -> list[str]:
    """The choice that a key belongs to: the target, model, executor, … that has it, and the pass itself."""
    group, _, rest = key.partition(".")
    if group == "passes" and rest:
        return [f"passes={rest.partition('.')[0]}"]
    of = next((row["of"] for row in keys() if key == row["key"] or key.startswith(f"{row['key']}.")), ())
    return [f"{group}={of[0]}"] if of and group != "passes" else []


def test_the_pages_print_overrides() -> None:
    texts = [param.values[0] for param in printed()]  # type: ignore[attr-defined]
    assert len(texts) > 70
    assert {"shapes.gears={x.0: [2, 4]}", "logs.levels.torchair=DEBUG", "target.decompose=[aten.addmm]"} <= set(texts)
    assert not any(text.startswith(("+", "~")) for text in texts)


@pytest.mark.parametrize("override", printed())
def test_an_override_is_taken_as_it_is_printed(override: str) -> None:
    composed = COMPOSER.compose([*context(override.partition("=")[0]), override])
    assert composed.problems == ()
    for name, kind in _sections().items():
        structure(kind, composed.tree[name], name)
