"""What a table of refusals holds of a package: its cases, and its modules that read something and need none.

The rules are the statements of the readers that raise, or that give a sentence to who asks (`rules.py` finds them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from attrs import frozen

from tests.refusals.case import ACCEPTED, Case
from tests.refusals.rules import rules_of, without
from tools.layout import product

READS = re.compile(
    r"(?<!_)json\.loads?\(|yaml\.safe_load|yaml\.parse|\.read_(text|bytes)\(|\bread_text\(|sqlite3\.connect|ast\.parse"
)
NO_STRANGERS: Mapping[str, str] = yaml.safe_load(Path(__file__).with_name("no_strangers.yaml").read_text())
"""{module that reads something: why it has no case}."""


@frozen
class Table:
    packages: tuple[str, ...]
    """Import names."""
    cases: tuple[Case, ...] = ()
    of_programs: tuple[str, ...] = ()
    """Functions that refuse what a program passes to them, and read nothing of a stranger's."""

    @property
    def modules(self) -> list[str]:
        return list(dict.fromkeys(case.module for case in self.cases))

    def hold(self, case: Case, folder: Path) -> None:
        """The input is read as the product is, and with this one rule taken out of it."""
        (rule,) = case.found()
        assert case.said in case.outcome(folder / "as it is")
        with without(rule):
            otherwise = case.outcome(folder / "without")
        assert case.said not in otherwise
        assert otherwise == ACCEPTED if case.otherwise == ACCEPTED else case.otherwise in otherwise

    def without_a_case(self, module: str) -> list[str]:
        having = {rule for case in self.cases if case.module == module for rule in case.found()}
        rules = [rule for rule in rules_of(module) if not set(rule.within) & set(self.of_programs)]
        return [str(rule) for rule in rules if rule not in having]

    def hold_all_readers(self) -> None:
        """Every module that reads is in the table or named with a reason, and no other is named."""
        reading = set()
        for package, top in product().items():
            for file in top.rglob("*.py") if package in self.packages else ():
                if READS.search(file.read_text(encoding="utf-8")):
                    parts = [package, *file.relative_to(top).with_suffix("").parts]
                    reading.add(".".join(parts).removesuffix(".__init__"))
        named = {module for module in NO_STRANGERS if module.partition(".")[0] in self.packages}
        assert reading <= {*self.modules, *named}
        assert named <= reading
