"""HTML as values: whatever is not made by `tag` is escaped, so that no text of a report can become markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from typing import Any


class Html(str):
    """Markup made here."""

    __slots__ = ()


VOID = frozenset({"meta", "br", "rect", "line", "path", "circle"})
"""Elements without content: those of HTML, and of SVG those that are used here without children."""


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """`tag("td", "a < b", class_="x")` is `<td class="x">a &lt; b</td>`; `None` children and attributes are left out.

    A trailing underscore of an attribute's name goes, other underscores become hyphens.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Html(f"<{name}{shown}>" if name in ("meta", "br") else f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """One after the other; text is escaped."""
    return Html("".join(c if isinstance(c, Html) else html.escape(str(c)) for c in children if c is not None))


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def table(head: Iterable[object], rows: Iterable[Iterable[object]], *, class_: str | None = None) -> Html:
    """A table in a box that scrolls by itself where the page is narrow."""
    header = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = (tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    return tag("div", tag("table", tag("thead", header), tag("tbody", *body), class_=class_), class_="scroll")


def data_block(name: str, value: Any) -> Html:
    """Plain data for the page's own script; no text in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def page(title: str, style: str, *content: object, script: str = "") -> str:
    """A whole document that loads nothing; `style` and `script` are ours and not escaped.

    A browser runs this script and no other one, applies this style and no other one: the policy names both by content.
    """
    runs = f"'sha256-{_digest(script)}'" if script else "'none'"
    policy = f"default-src 'none'; style-src 'sha256-{_digest(style)}'; script-src {runs}; base-uri 'none'"
    head: tuple[Html, ...] = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=f"{policy}; form-action 'none'"),
        tag("title", title),
        Html(f"<style>{style}</style>"),
    )
    tail = Html(f"<script>{script}</script>") if script else None
    whole = tag("html", tag("head", *head), tag("body", tag("main", *content), tail), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
