"""The code blocks of README.md and docs/, in the order in which a reader meets them, and the commands in them.

The word behind the fence says what a block is, and so what is done with it:

    sh          lines for a shell; each is run in the page's folder and must end with 0, or as `# exit 1` says
    console     `$ command` and what it prints; run, and compared with every number left out
    python      run, all blocks of a page in one namespace
    yaml, toml  data
    text        no code

What is run nowhere, or not everywhere, is in `not_run.yaml` with the reason.

`<!-- file: serve.py -->` above a block puts it into the page's folder under that name (and runs nothing of it).
`<!-- sh … -->` and `<!-- python … -->` are blocks that a reader does not see: what has to be there first.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
"""The pages that print commands; records of decisions print none."""
OTHERS = (
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    *sorted(ROOT.glob("packages/*/docs/decisions/*.md")),
    *(
        ROOT / name
        for name in ("CHANGELOG.md", "SECURITY.md", "airflow_free/README.md", "examples/extension/README.md")
    ),
)
SHELL = ("sh", "console")
KINDS = {*SHELL, "python", "yaml", "toml", "text"}
FOUND = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$"
    r"|^<!-- (?P<hidden>sh|python)\n(?P<said>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
REMARK = re.compile(r"(?:^|\s+)#(?: .*)?$")


@frozen(kw_only=True)
class Block:
    page: str
    line: int
    kind: str
    body: str
    file: str | None = None
    hidden: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """By which not_run.yaml knows a block of Python."""
        return self.body.lstrip().partition("\n")[0]

    def put(self, folder: Path) -> None:
        """Write the file that the block is."""
        assert self.file is not None
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.body)

    def commands(self) -> Iterator[Command]:
        """Lines for a shell, continued ones joined; those of a console after their `$`, with what they print."""
        if self.kind == "console":
            for text, printed in self._printed():
                yield Command(block=self, line=text, printed=printed)
        elif self.kind in SHELL:
            for line in self.body.replace("\\\n", " ").splitlines():
                if REMARK.sub("", line):
                    yield Command(block=self, line=line.strip())

    def _printed(self) -> Iterator[tuple[str, str]]:
        command, lines = "", list[str]()
        for line in [*self.body.splitlines(), "$ "]:
            if line.startswith("$ "):
                if command:
                    yield command, "\n".join(lines)
                command, lines = line[2:], []
            else:
                lines.append(line)


@frozen(kw_only=True)
class Command:
    block: Block
    line: str
    printed: str | None = None

    @property
    def text(self) -> str:
        """Without the remark behind it."""
        return REMARK.sub("", self.line)

    @property
    def where(self) -> str:
        return f"{self.block.where}: {self.line}"

    @property
    def status(self) -> int:
        """What the page says that it ends with."""
        said = re.search(r"#.*\bexit (\d)", self.line)
        return int(said[1]) if said else 0


def blocks(page: Path) -> tuple[Block, ...]:
    text = page.read_text(encoding="utf-8")
    return tuple(
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 1,
            kind=found["hidden"] or found["kind"],
            body=textwrap.dedent(found["body"] if found["body"] is not None else found["said"]),
            file=found["file"],
            hidden=found["hidden"] is not None,
        )
        for found in FOUND.finditer(text)
    )


ALL = tuple(block for page in (*PAGES, *OTHERS) for block in blocks(page))
