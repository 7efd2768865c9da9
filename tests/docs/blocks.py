"""The code blocks of README.md and docs/, in the order in which a reader meets them.

The word behind the fence says what a block is, and so what is done with it:

    sh              lines for a shell; each is run in the page's folder and must end with 0, or as `# exit 1` says
    sh elsewhere    the same on another machine (a device, a network, an installation): looked at, not run
    console         `$ command` and what it prints; run, and compared with every number left out
    python          run, all blocks of a page in one namespace
    python part     looked at, not run: a piece of something larger
    yaml            data
    text            no code

`<!-- file: serve.py -->` above a block puts it into the page's folder under that name (and runs nothing of it).
`<!-- sh … -->` and `<!-- python … -->` are blocks that a reader does not see: what has to be there first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
KINDS = {
    "sh", "sh elsewhere", "console", "python", "python part", "yaml", "text"
}  # fmt: skip
FOUND = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$"
    r"|^<!-- (?P<hidden>sh|python)\n(?P<said>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)


@frozen(kw_only=True)
class Block:
    page: str
    line: int
    kind: str
    body: str
    file: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[str]:
        """Lines for a shell, continued ones joined; those of a console after their `$`."""
        text = self.body.replace("\\\n", " ")
        for line in text.splitlines():
            if self.kind == "console":
                if line.startswith("$ "):
                    yield line[2:]
            elif line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()

    def printed(self) -> Iterator[tuple[str, str]]:
        """(command, what the page says that it prints) of a console."""
        command, lines = "", list[str]()
        for line in [*self.body.splitlines(), "$ "]:
            if line.startswith("$ "):
                if command:
                    yield command, "\n".join(lines)
                command, lines = line[2:], []
            else:
                lines.append(line)


def blocks(page: Path) -> tuple[Block, ...]:
    text = page.read_text(encoding="utf-8")
    return tuple(
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 1,
            kind=found["hidden"] or found["kind"],
            body=found["body"] if found["body"] is not None else found["said"],
            file=found["file"],
        )
        for found in FOUND.finditer(text)
    )


ALL = tuple(block for page in PAGES for block in blocks(page))
