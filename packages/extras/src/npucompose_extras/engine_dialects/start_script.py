"""A start script, or one command line, as commands of words: quotes, comments, continued lines and here-documents as a
shell takes them. Nothing is run and no variable is read: what only a shell could put in is a gap that keeps its text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from attrs import define, evolve, field, frozen

from npucompose.errors import ConfigError

MOST_CHARACTERS = 64 * 2**10
"""Of a text, and of what its variables make of it: the longest script of the public repositories has 20,000."""
GAP = re.compile("\ue000(\\d+)\ue001")
"""What stands in a word for the expansion of this number, in characters that no script needs."""
ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=")
_SHELL = r"(?P<shell>`|\$(?=[\w({@*#?!$-]))"
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\r?\n)+)|(?P<comment>(?<![^\s;&|()<>])#[^\n]*)|(?P<single>'[^']*')|\\(?P<escaped>.)"
    rf'|(?P<double>")|{_SHELL}|(?P<blank_to_fill><[A-Za-z][\w-]*>(?=[\s\\"\']|\Z))|(?P<end>\n|;;?|&&|\|\|?|&(?!>))|(?P<paren>[()])'
    r"|(?P<redirect>\d*(?:<<<|<<-?|>>|[<>]&?)|&>>?)|(?P<plain>[^\s'\"\\$`;&|()<>]+|.)",
    re.DOTALL,
)
_IN_QUOTES = re.compile(rf'(?P<plain>[^"\\$`]+)|\\(?P<escaped>.)|(?P<end>")|{_SHELL}|(?P<sign>\$)', re.DOTALL)
_IN_BRACKETS = re.compile(r"\\.|'[^']*'|[^\\'(){}]+|.", re.DOTALL)
_IN_TICKS = re.compile(r"`(?:[^\\`]|\\.)*`", re.DOTALL)
_NAME = re.compile(r"\$(\w+|.)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|\{(\w+)\[[@*]\]\})")
_SINGLE_QUOTED = re.compile(r"\$\{\w+\}|\$[A-Za-z_]\w*")
_OPENS, _CLOSES = {"if", "while", "until", "for", "case", "select", "function", "{"}, {"fi", "done", "esac", "}"}
_KEPT, _GOES_ON = {"for", "case", "select", "function"}, {"then", "else", "elif", "do", "!", "time"}
DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SETS, _SETS_ANY = ("for", "read", "unset", "getopts", "printf"), ("source", ".", "eval")


@frozen
class Expansion:
    """`$NAME`, `${NAME:-x}`, `$(command)`: what a shell puts into a word."""

    text: str
    quoted: bool
    """One word, whatever it holds."""
    literal: bool = False
    """It stands in single quotes, where a shell leaves it as it is."""


@frozen
class Word:
    text: str
    line: int
    items: tuple[Word, ...] | None = None
    """Of a list, `ARGS=(--a 1)`."""


@frozen
class Command:
    words: tuple[Word, ...]
    aside: tuple[str, ...] = ()
    """Its redirections."""
    certain: bool = True
    """It stands in no condition, loop, function or subshell."""
    documents: tuple[Word, ...] = ()
    """Texts of its here-documents."""

    @property
    def assigns(self) -> tuple[Word, ...]:
        """The variables that it sets for the commands after it, `NAME=value`."""
        words = [word for word in self.words if word.text not in DECLARES and not word.text.startswith("-")]
        only = len(words) < len(self.words) or all(ASSIGNED.match(word.text) for word in words)
        return tuple(word for word in words if only and ASSIGNED.match(word.text))


@define
class Script:
    """The commands of a text in their order, each with the variables in it that are certain put in."""

    text: str
    name: str
    expansions: list[Expansion] = field(factory=list[Expansion])
    commands: list[Command] = field(factory=list[Command])

    def __attrs_post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            raise ConfigError(
                f"{self.name} has {len(self.text):,} characters; a command line has at most {MOST_CHARACTERS:,}."
            )
        self.commands = [*self._filled(_Reader(GAP.sub("?", self.text), self.name, self.expansions).read())]

    def shown(self, text: str) -> str:
        """The text as it was written."""
        return GAP.sub(lambda gap: self.expansions[int(gap[1])].text, text)

    def _filled(self, commands: list[Command]) -> Iterator[Command]:
        times = Counter(name for command in commands for name in _names(command))
        known: dict[str, tuple[Word, ...]] = {}
        for command in commands:
            filled = evolve(command, words=tuple(word for one in command.words for word in self._put_in(one, known)))
            yield filled
            if command.words and command.words[0].text in _SETS_ANY:
                known.clear()
            for word in filled.assigns if command.certain else ():
                name, _, value = word.text.partition("=")
                whole = word.items if word.items is not None else (Word(value, word.line),)
                if times[name] == 1 and sum(len(one.text) for one in whole) < MOST_CHARACTERS:
                    known[name] = whole

    def _put_in(self, word: Word, known: Mapping[str, tuple[Word, ...]]) -> Iterator[Word]:
        """The word, or those that a list or an unquoted variable makes of it."""
        if word.items is not None:
            yield evolve(word, items=tuple(inner for one in word.items for inner in self._put_in(one, known)))
            return
        gap = GAP.fullmatch(word.text)
        whole = self._value(int(gap[1]), known) if gap else None
        if gap and whole is not None:
            split = not self.expansions[int(gap[1])].quoted
            for one in whole:
                yield from (Word(part, word.line) for part in (one.text.split() if split else [one.text]))
            return
        yield evolve(word, text=GAP.sub(lambda one: self._text(one, known), word.text))

    def _value(self, number: int, known: Mapping[str, tuple[Word, ...]]) -> tuple[Word, ...] | None:
        asked = self.expansions[number]
        found = None if asked.literal else _VARIABLE.fullmatch(asked.text)
        value = known.get(found[1] or found[2] or found[3]) if found else None
        listed = found is not None and bool(found[3])
        return value if value is not None and (listed or len(value) == 1) else None

    def _text(self, gap: re.Match[str], known: Mapping[str, tuple[Word, ...]]) -> str:
        """Within a word: a value that an unquoted variable would split stays a gap."""
        value = self._value(int(gap[1]), known)
        one = value[0].text if value is not None and len(value) == 1 else None
        return gap[0] if one is None or (re.search(r"\s", one) and not self.expansions[int(gap[1])].quoted) else one


def _names(command: Command) -> Iterator[str]:
    """The variables that a command may set; one that is set only for a while, too."""
    for word in command.words:
        if found := ASSIGNED.match(word.text):
            yield from (found[1],) * (2 if found[0].endswith("+=") else 1)
        elif command.words[0].text in _SETS:
            yield from (word.text,) * 2


@define
class _Reader:
    text: str
    name: str
    expansions: list[Expansion]
    commands: list[Command] = field(factory=list[Command])
    line: int = 1
    depth: int = 0
    parens: int = 0
    conditional: bool = False
    word: Word | None = None
    words: list[Word] = field(factory=list[Word])
    array: list[Word] | None = None
    aside: list[str] = field(factory=list[str])
    follows: str = ""
    """The redirection whose target is read next."""
    documents: list[tuple[str, str]] = field(factory=list[tuple[str, str]])

    def read(self) -> list[Command]:
        at = 0
        while found := _TOKEN.match(self.text, at):
            at = self._take(found)
            self.line += self.text.count("\n", found.start(), at)
        if self.array is not None:
            raise self._refused("( is not closed")
        self._end("")
        return self.commands

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.name}:{self.line}: {problem}: nothing of it is read.")

    def _take(self, found: re.Match[str]) -> int:
        """Where the next token begins."""
        kind, text, end = found.lastgroup, found[0], found.end()
        if kind == "single":
            self._add(_SINGLE_QUOTED.sub(lambda one: self._gap(one[0], quoted=True, literal=True), text[1:-1]))
        elif kind == "double":
            return self._quoted(end)
        elif kind == "shell":
            end = self._expansion_end(found.start())
            self._add(self._gap(self.text[found.start() : end], quoted=False))
        elif kind == "blank_to_fill":  # of an example, `vllm serve <model>`
            self._add(self._gap(text, quoted=True))
        elif kind in ("plain", "escaped"):
            if text == "'":
                raise self._refused("a quote ' is not closed")
            self._add(found[kind])
        elif kind == "paren":
            self._paren(text)
        elif kind == "redirect":
            self._flush()
            self.follows = text
        elif kind == "end" and (self.array is None or text != "\n"):
            self._end(text)
            return self._here_documents(end) if text == "\n" else end
        else:
            self._flush()
        return end

    def _add(self, text: str) -> None:
        self.word = Word((self.word.text if self.word else "") + text, self.word.line if self.word else self.line)

    def _gap(self, text: str, *, quoted: bool, literal: bool = False) -> str:
        self.expansions.append(Expansion(text, quoted, literal))
        return f"\ue000{len(self.expansions) - 1}\ue001"

    def _quoted(self, at: int) -> int:
        parts: list[str] = []
        while found := _IN_QUOTES.match(self.text, at):
            at = found.end()
            if found.lastgroup == "end":
                self._add("".join(parts))
                return at
            if found.lastgroup == "shell":
                at = self._expansion_end(found.start())
                parts.append(self._gap(self.text[found.start() : at], quoted=True))
            else:
                escaped = found["escaped"]
                parts.append("" if escaped == "\n" else escaped if escaped and escaped in '$`"\\' else found[0])
        raise self._refused('a quote " is not closed')

    def _expansion_end(self, at: int) -> int:
        after = self.text[at + 1 : at + 2]
        if self.text[at] == "`" or after not in ("(", "{"):
            found = (_IN_TICKS if self.text[at] == "`" else _NAME).match(self.text, at)
            if found is None:
                raise self._refused("` is not closed")
            return found.end()
        depth, position = 0, at + 1
        while found := _IN_BRACKETS.match(self.text, position):
            position = found.end()
            depth += (found[0] in ("(", "{")) - (found[0] in (")", "}"))
            if depth == 0:
                return position
        raise self._refused(f"${after} is not closed")

    def _paren(self, sign: str) -> None:
        if sign == "(" and self.word is not None and ASSIGNED.fullmatch(self.word.text):
            self.array = []
            self.words, self.word = [*self.words, self.word], None
        elif sign == ")" and self.array is not None:
            self._flush()
            self.words[-1] = evolve(self.words[-1], items=tuple(self.array))
            self.array = None
        else:
            self._end("")
            self.parens = max(0, self.parens + (1 if sign == "(" else -1))

    def _flush(self) -> None:
        """End the word."""
        if self.word is not None and self.follows:
            self.aside.append(self.follows + self.word.text)
            if "<<" in self.follows and not self.follows.endswith("<<<"):
                self.documents.append((self.word.text, r"\t*" if self.follows.endswith("-") else ""))
            self.follows = ""
        elif self.word is not None:
            (self.words if self.array is None else self.array).append(self.word)
        self.word = None

    def _end(self, sign: str) -> None:
        """End the command; words that only open and close others are no part of it."""
        self._flush()
        self.follows = ""
        while self.words and self.words[0].text in _OPENS | _CLOSES | _GOES_ON:
            first = self.words[0].text
            self.depth = max(0, self.depth + (first in _OPENS) - (first in _CLOSES))
            if first in _KEPT:
                break
            self.words.pop(0)
        if self.words or self.aside:
            certain = not (self.depth or self.parens or self.conditional)
            self.commands.append(Command(tuple(self.words), tuple(self.aside), certain))
        self.conditional = sign in ("&&", "||")
        self.words, self.aside = [], []

    def _here_documents(self, at: int) -> int:
        """Where the texts end that the commands of this line are given."""
        for word, tabs in self.documents:
            found = re.compile(rf"((?:.*\n)*?){tabs}{re.escape(word)}\r?(?:\n|\Z)").match(self.text, at)
            if found is None:
                raise self._refused(f"the text up to a line {word} has no end")
            text = Word(found[1], self.line + 1)
            self.commands[-1] = evolve(self.commands[-1], documents=(*self.commands[-1].documents, text))
            at = found.end()
        self.documents = []
        return at
