"""Options that installed packages add, below `extensions`: a section for each package, a class of options for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

from attrs import field, frozen

from npucompose.errors import ConfigError, raise_for
from npucompose.registry import Registry
from npucompose.table.structure import shown, structure


class Section:
    """The base of a class of options: `name` is its key below `extensions`, its fields are made by `option`."""

    name: ClassVar[str]

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Sizes that whoever reads this section captures of the experiment's model; (): it says nothing of them."""
        return ()


S = TypeVar("S", bound=Section)
SECTIONS: Registry[type[Section]] = Registry(kind="section", base=Section, group="npucompose.options")


@frozen
class Extensions:
    """The sections that an experiment names; a section that it does not name is at its defaults."""

    named: Mapping[str, Section] = field(factory=dict[str, Section])

    @classmethod
    def of_tree(cls, tree: Any, path: str) -> Extensions:
        if not isinstance(tree, Mapping):
            raise ConfigError(f"this must be a mapping of sections: {shown(tree)} @ {path}")
        named: dict[str, Section] = {}
        problems: list[str] = []
        for name, options in cast("Mapping[str, Any]", tree).items():
            try:
                named[name] = structure(SECTIONS.get(name, path), options, f"{path}.{name}")
            except ConfigError as error:
                problems += error.problems
        raise_for(problems)
        return cls(named)

    def section(self, cls: type[S]) -> S:
        """`experiment.extensions.section(Mine).level`, named or not."""
        return cast("S", self.named.get(cls.name) or cls())
