"""The result file of one seed, one line for each mutant, and what it amounts to for each package."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from attrs import define, frozen

from tools import result_file
from tools.mutants import draw
from tools.mutants.mutation import Mutation

OVERALL, IN_EACH, EQUIVALENT = 0.95, 0.90, 0.05
"""The share caught over all and in each area at least, in each package, and the share called equivalent at most."""
VERDICTS = ("caught", "survived", "timed out", "unsteady", "undecided", "equivalent")


def state(root: Path) -> str:
    """A digest of what verdicts depend on: the product, the tests and their settings."""
    digest = hashlib.sha256()
    folders = [*draw.SOURCES, "tests", "conf"]
    paths = [
        path
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".h", ".yaml")
    ]
    for path in sorted([*paths, root / "pyproject.toml"]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@define
class Results:
    """What was found for one seed. An entry holds while the file that its mutant is in stays as it is."""

    path: Path
    seed: int
    entries: dict[str, dict[str, Any]]

    @classmethod
    def begun(cls, path: Path, seed: int, afresh: bool) -> Results:
        """The file so far; SystemExit where it belongs to another seed."""
        if afresh or not path.is_file():
            return cls(path, seed, {})
        found = json.loads(path.read_text())
        if found["seed"] != seed:
            raise SystemExit(
                f"{path} was made with seed {found['seed']}: name another file with --out, or begin --afresh."
            )
        return cls(path, seed, {entry["key"]: entry for entry in found["mutants"]})

    def holds(self, root: Path, mutation: Mutation) -> bool:
        entry = self.entries.get(mutation.key)
        if entry is None or entry["verdict"] in ("unsteady", "undecided"):
            return False
        return entry["source"] == source_digest(root, mutation.path)

    def note(self, root: Path, mutation: Mutation, verdict: Mapping[str, Any], now: str) -> dict[str, Any]:
        entry = {
            "key": mutation.key, "package": draw.package_of(mutation.path), "place": mutation.place,
            "scope": mutation.scope, "line": mutation.text, "kind": mutation.kind, "change": mutation.change, **verdict,
            "source": source_digest(root, mutation.path), "state": now,
        }  # fmt: skip
        self.entries[mutation.key] = entry
        return entry

    def write(self, sample: Mapping[str, list[Mutation]], reasons: Mapping[str, str]) -> None:
        """The sample that was drawn, what came of it, and what is known of packages of which none was drawn; whole or
        not at all."""
        others = [entry for entry in self.entries.values() if entry["package"] not in sample]
        drawn = [e for mutations in sample.values() for m in mutations if (e := self.entries.get(m.key)) is not None]
        found = [*others, *drawn]
        tallies = tally(found, reasons)
        areas = by_area(found, reasons)
        head = {
            "seed": self.seed,
            "caught": {name: one.words for name, one in tallies.items()},
            "areas": {name: one.words for name, one in areas.items()},
        }
        # What a failing test said names paths and variables of this machine, and is for whoever watches.
        mutants = [{name: value for name, value in entry.items() if name != "words"} for entry in found]
        result_file.write(self.path, head, mutants=mutants)


def source_digest(root: Path, path: str) -> str:
    return hashlib.sha256((root / path).read_bytes()).hexdigest()[:8]


@frozen
class Tally:
    """How many mutants came to which end."""

    counts: Counter[str]

    @property
    def judged(self) -> int:
        """Those that tests can tell from the product, and did or did not."""
        return self.counts["caught"] + self.counts["survived"]

    @property
    def share(self) -> float:
        return self.counts["caught"] / self.judged if self.judged else 1.0

    @property
    def words(self) -> str:
        """`38/40 (95.0 %), 1 timed out`."""
        more = [f"{self.counts[verdict]} {verdict}" for verdict in VERDICTS[2:] if self.counts[verdict]]
        return ", ".join([f"{self.counts['caught']}/{self.judged} ({100 * self.share:.1f} %)", *more])


def tally(entries: list[dict[str, Any]], reasons: Mapping[str, str]) -> dict[str, Tally]:
    """For each package that has mutants, and for all together under "all"."""
    counts: dict[str, Counter[str]] = {}
    for entry in entries:
        unnoticed = entry["verdict"] in ("survived", "undecided")
        verdict = "equivalent" if unnoticed and entry["key"] in reasons else entry["verdict"]
        if verdict != "not compiled":
            for name in (entry["package"], "all"):
                counts.setdefault(name, Counter())[verdict] += 1
    return {name: Tally(counts[name]) for name in sorted(counts, key=lambda name: (name == "all", name))}


def by_area(entries: list[dict[str, Any]], reasons: Mapping[str, str]) -> dict[str, Tally]:
    """The same for each area that has mutants."""
    area = {package: name for name, packages in draw.AREAS.items() for package in packages}
    tallies = tally([{**entry, "package": area[entry["package"]]} for entry in entries], reasons)
    return {name: tallies[name] for name in draw.AREAS if name in tallies}


def complaints(entries: list[dict[str, Any]], reasons: Mapping[str, str]) -> list[str]:
    """Why the suite is not yet a net, a sentence for each reason; empty where it is."""
    found = []
    tallies = tally(entries, reasons)
    for name, one in tallies.items():
        wanted = OVERALL if name == "all" else IN_EACH
        if one.share < wanted:
            found.append(f"{name}: {100 * one.share:.1f} % caught, {100 * wanted:g} % are wanted")
    for name, one in by_area(entries, reasons).items():
        if one.share < OVERALL:
            found.append(f"the area {name}: {100 * one.share:.1f} % caught, {100 * OVERALL:g} % are wanted")
    total = tallies.get("all", Tally(Counter())).counts
    if total["undecided"]:
        found.append(f"{total['undecided']} mutants were judged by the nearest tests only")
    if total["equivalent"] > EQUIVALENT * total.total():
        found.append(
            f"{total['equivalent']} of {total.total()} mutants are called equivalent, {100 * EQUIVALENT:g} % may be"
        )
    caught = {entry["key"]: entry for entry in entries if entry["verdict"] == "caught"}
    found += [f"{key} is called equivalent, and {caught[key]['by']} notices it" for key in reasons if key in caught]
    return found


def equivalents(path: Path) -> dict[str, str]:
    """The reason by key, from the committed file. SystemExit where one has none."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    for entry in entries:
        if not entry.get("key") or not str(entry.get("reason") or "").strip():
            raise SystemExit(f"{path}: every mutant needs its key and a reason: {entry}")
    return {entry["key"]: entry["reason"] for entry in entries}
