"""What a careless engineer does to C++: every such change to a file, by a small lexer.

It knows comments, texts, preprocessor lines, words, numbers and operators, and takes statements at their semicolons;
what it makes of them may fail to compile, and then counts for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from tools.mutants.mutation import Mutation, numbered
from tools.mutants.statements import LOCK, WAIT

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n\\]|\\.)*)
    |(?P<text>R"\((?:.|\n)*?\)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
    |(?P<number>\d[\w.']*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><=>|<<=|>>=|->|::|<=|>=|==|!=|&&|\|\||\+\+|--|<<|>>|[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
SIGNS = {"<=": "<", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "++": "--", "+=": "=", "-=": "="}
COMPARED = {"<": "<=", ">": ">="}
"""Only between blanks: elsewhere they are a template's."""
WORDS = {"true": "false", "false": "true", "min": "max", "max": "min", "all_of": "any_of", "any_of": "all_of"}
KINDS = {"&&": "dropped check", "||": "dropped check", "++": "off by one", "+=": "ignored part", "-=": "ignored part"}
LEAVES = {"return", "throw", "continue", "break"}
UNITS = {"1000": "1", "1024": "1000", "1000000": "1000"}
LOCKED = re.compile(r"^\s*(std::)?(lock_guard|unique_lock|scoped_lock)\b")
DECLARED = re.compile(
    r"^(return|throw|using|namespace|struct|class|typedef|static_assert|template|break|continue|goto|else)\b"
)
CALL = re.compile(r"^[A-Za-z_][\w.:]*(->[\w.]+)*(<[\w:]+>)?\(.*\)$", re.DOTALL)


@frozen
class Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def mutations(path: str, source: str) -> list[Mutation]:
    """Every mutation of a C++ file, in the order of the file."""
    tokens = list(lexed(source))
    made = [*_tokens(source, tokens), *_guards(tokens), *_statements(source, tokens)]
    return numbered(_mutation(path, source, kind, start, end, new) for kind, start, end, new in made)


def lexed(source: str) -> Iterator[Token]:
    """The tokens of a file, without blanks, comments and preprocessor lines."""
    for found in TOKEN.finditer(source):
        if found.lastgroup != "blank":
            yield Token(str(found.lastgroup), found.group(), found.start())


Made = tuple[str, int, int, str]


def _tokens(source: str, tokens: list[Token]) -> Iterator[Made]:
    for k, token in enumerate(tokens):
        if token.kind == "sign":
            new = SIGNS.get(token.text)
            if (
                token.text in COMPARED
                and source[token.start - 1].isspace()
                and source[token.end : token.end + 1].isspace()
            ):
                new = COMPARED[token.text]
            if new is not None:
                yield KINDS.get(token.text, "comparison"), token.start, token.end, new
        elif token.kind == "word" and token.text in WORDS:
            kind = "flag" if token.text in ("true", "false") else "quantifier"
            yield kind, token.start, token.end, WORDS[token.text]
        elif token.kind == "number" and re.fullmatch(r"\d+", token.text):
            if k and tokens[k - 1].text == "<" and tokens[k + 1].text == ">":
                continue  # a template's argument
            new = UNITS.get(token.text, str(int(token.text) + 1))
            yield "unit" if token.text in UNITS else "off by one", token.start, token.end, new


def _guards(tokens: list[Token]) -> Iterator[Made]:
    """`if (…) return;`, `if (…) { throw …` without its condition."""
    for k, token in enumerate(tokens[:-1]):
        if token.text != "if" or tokens[k + 1].text != "(":
            continue
        close = _closing(tokens, k + 1)
        after = next((t for t in tokens[close + 1 :] if t.text != "{"), None)
        if after is not None and after.text in LEAVES:
            yield "dropped check", tokens[k + 1].end, tokens[close].start, "false"


def _closing(tokens: list[Token], opening: int) -> int:
    depth = 0
    for k in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[k].text, 0)
        if depth == 0:
            return k
    return len(tokens) - 1


def _statements(source: str, tokens: list[Token]) -> Iterator[Made]:
    """Locks, waits and calls that stand alone, left out; results answered with nothing of them."""
    begun, depth = 0, 0
    for k, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text in ("{", "}") or (token.text == ":" and depth == 0):
            begun = k + 1
        elif token.text == ";" and depth == 0:
            if begun < k:
                yield from _statement(source, tokens[begun].start, token.start)
            begun = k + 1


def _statement(source: str, start: int, end: int) -> Iterator[Made]:
    text = source[start:end]
    if LOCKED.match(text):
        yield "removed lock", start, end, ""
    elif CALL.match(text) and not DECLARED.match(text):
        name = text.partition("(")[0]
        kind = "removed lock" if LOCK.search(name) else "dropped wait" if WAIT.search(name) else "dropped call"
        yield kind, start, end, ""


def _mutation(path: str, source: str, kind: str, start: int, end: int, new: str) -> Mutation:
    line = source.count("\n", 0, start) + 1
    old = source[start:end]
    before = len(source[:start].encode())
    return Mutation(
        path=path, scope="", line=line, first=line, last=line + old.count("\n"), start=before,
        end=before + len(old.encode()), old=old, new=new, kind=kind, text=source.splitlines()[line - 1].strip(),
    )  # fmt: skip
