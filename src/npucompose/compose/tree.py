"""Hydra: overrides in, a plain tree and the origin of every leaf out.

Hydra keeps no record of where a value came from, so the defaults list is walked file by file, in Hydra's own order,
and the overrides after it. Mistakes in the overrides are collected and all reported at once, before anything is made.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from npucompose.compose.conf import added_dirs, conf_dir, line_that_names
from npucompose.compose.merge import Keys, completed, merged, with_overrides
from npucompose.compose.overrides import (
    LONGEST_KEY,
    group_problems,
    hydra_problem,
    missing_choice,
    named_twice,
    parsed_overrides,
    short,
    translate_hydra_errors,
    value_problem,
)
from npucompose.compose.references import CLOSED, Environment, reads_variables, resolved
from npucompose.compose.references import parsed as parsed_references
from npucompose.compose.untrusted_config import includes, is_hydra
from npucompose.errors import ConfigError
from npucompose.results.effective import COMMAND_LINE, DEFAULT
from npucompose.table.options import LONGEST as LONGEST_NAME
from npucompose.table.options import is_name
from npucompose.table.structure import flat, nested

if TYPE_CHECKING:
    from hydra.core.default_element import ResultDefault
    from hydra.core.override_parser.types import Override

    from npucompose.compose.sources import Application, Choice, Loader

    Brought = Sequence[tuple[ResultDefault, Choice]]


@frozen(kw_only=True)
class Composed:
    """What the YAML and the command line say, not yet checked against the schema.

    `provenance` is {dotted path of a leaf of `tree`: "command line" | "conf/…yaml"}; `problems` are mistakes found in
    the overrides, each one sentence: the tree is then composed without them, so that the rest can be checked too.
    Trees of one Composer share what is equal in them: nobody may change one.
    """

    tree: Mapping[str, Any]
    provenance: Mapping[str, str]
    overrides: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=())
    files: Mapping[str, str] = field(factory=dict[str, str])
    """{a file as `provenance` names it: where it lies}."""
    variables: tuple[str, ...] = ()
    """Leaves that say that they read the environment, of those in `tree`."""
    trust_with: str = "trust=true"
    """How trust is said on the command line that this came from."""


def compose(
    overrides: Sequence[str],
    *,
    config_dirs: Sequence[str] = (),
    config_name: str = "config",
    environment: Environment = CLOSED,
) -> Composed:
    """Compose `conf/<config_name>.yaml` with Hydra overrides; values may read the variables of `environment`.

    `compose(["mode=eager"]).provenance["mode.name"]` is "conf/mode/eager.yaml, chosen on the command line".
    The tree is the caller's own, to change as it likes.
    Raises ConfigError for text that is not an override and for YAML that cannot be read.
    """
    composed = composer_of(config_dirs, config_name, environment).compose(overrides)
    return composed if config_dirs or environment else evolve(composed, tree=deepcopy(composed.tree))


def composer_of(
    config_dirs: Sequence[str] = (), config_name: str = "config", environment: Environment = CLOSED
) -> Composer:
    """A new Composer for a person's folders or variables; over the package alone the one that this thread keeps."""
    if config_dirs or environment:
        return Composer(config_dirs=config_dirs, config_name=config_name, environment=environment)
    return _of_the_package(config_name)


_own = threading.local()
"""Of each thread, the Composers over the files of the package alone, which nobody edits while they are in use."""
MOST_COMBINATIONS, MOST_OVERRIDES = 100, 10_000
"""What they remember before others begin: a process may compose for months."""


def _of_the_package(config_name: str) -> Composer:
    kept: dict[tuple[Any, ...], Composer] = _own.__dict__.setdefault("kept", {})
    key = config_name, conf_dir(), *sys.path  # where packages may have folders of their own
    if key not in kept or kept[key].is_full:
        kept.clear()
        kept[key] = Composer(config_name=config_name)
    return kept[key]


class Composer:
    """Composes any number of points over the same folders: Hydra runs once for each combination of choices, values
    are merged into what it gave. A file that changes meanwhile is not read again.
    """

    def __init__(
        self, *, config_dirs: Sequence[str] = (), config_name: str = "config", environment: Environment = CLOSED
    ) -> None:
        """`environment` holds the variables that the person lets this command's configuration read."""
        if not is_name(config_name):
            raise ConfigError(
                f"--config-name {config_name[:LONGEST_NAME]}: the name of a file of conf/, without .yaml."
            )
        from npucompose.compose.sources import Files, Loader

        self.config_name = config_name
        self.environment = environment
        self.loader = Loader(Files(added_dirs(config_dirs), environment))
        self._combinations: dict[tuple[str, ...], _Combination] = {}
        self._is_group = cache(self.loader.repository.group_exists)
        self._problems = cache(self._found_problems)
        self._tried: set[tuple[str, ...]] = set()

    def compose(self, overrides: Sequence[str], *, followed: bool = True) -> Composed:
        """As the function of this name; references of the tree stay as text where they are not to be `followed`."""
        parsed = parsed_overrides(overrides)
        problems: list[str] = []
        chosen, values = [], []
        for o in parsed:
            wrong = self._problems(str(o.input_line))
            problems += wrong
            if not wrong:
                (chosen if self.is_group(o) else values).append(o)
        with translate_hydra_errors(problems):
            combination = self._combination(chosen, _extensions(values))
        good = []
        for o in values:
            problem = value_problem(combination.tree, combination.keys, o)
            if problem:
                problems.append(problem)
            elif not o.is_hydra_override():
                good.append(o)
        with translate_hydra_errors(problems):
            tree, provenance = combination.with_values(good, self.environment, followed=followed)
            self._try_hydra(chosen, values)
        return Composed(
            tree=tree,
            provenance=provenance,
            overrides=tuple(overrides),
            problems=(*problems, *combination.problems),
            files=combination.files,
            variables=combination.variables(good, self.environment),
        )

    def application(self) -> Application:
        """For Hydra around a run: it has what is composed here."""
        from npucompose.compose.sources import Application

        return Application(self.loader.files, lambda texts, followed: self.compose(texts, followed=followed).tree)

    @property
    def is_full(self) -> bool:
        """Whether it remembers more than a process should keep."""
        return len(self._combinations) > MOST_COMBINATIONS or self._problems.cache_info().currsize > MOST_OVERRIDES

    def is_group(self, o: Override) -> bool:
        """Whether the override chooses a file and does not set a value."""
        return self._is_group(o.key_or_group)

    def _found_problems(self, text: str) -> list[str]:
        (o,) = parsed_overrides([text])
        if refused := hydra_problem(o):
            return [refused]
        if len(o.key_or_group) > LONGEST_KEY:
            return [f"'{short(o.key_or_group)}' is no key: it has {len(o.key_or_group):,} characters."]
        if self.is_group(o):
            return group_problems(self.loader, o)
        if not o.is_hydra_override():
            try:
                parsed_references(text, self.environment)
            except ValueError as error:
                return [f"'{text}' is refused: {error}."]
        return []

    def _combination(self, chosen: Sequence[Override], extensions: tuple[str, ...]) -> _Combination:
        from hydra.errors import MissingConfigException

        texts = (*(str(o.input_line) for o in chosen), *extensions)
        if texts not in self._combinations:
            try:
                self._combinations[texts] = _Combination.of(self.loader, self.config_name, chosen, extensions)
            except MissingConfigException as error:
                raise ConfigError(self._missing(error)) from error
        return self._combinations[texts]

    def _missing(self, error: Any) -> str:
        """Of `mode/eagre`, which is not there: the file and line of the defaults list that asks for it."""
        missing = str(error.missing_cfg_file).removesuffix(".yaml")
        group, _, name = missing.rpartition("/")
        asks = self.loader.files.that_names(missing)
        where = "a defaults list" if asks is None else line_that_names(str(asks), group, name)
        return missing_choice(error, where, self.loader.get_group_options(group) if group else ())

    def _try_hydra(self, chosen: Sequence[Override], values: Sequence[Override]) -> None:
        """Hydra's own choices and values, those that are not refused, are Hydra's to check: here, because later it
        would end with a traceback."""
        from hydra.types import RunMode

        said = (*chosen, *values)
        own = tuple(str(o.input_line) for o in said if o.is_hydra_override() and not o.is_sweep_override())
        if own and own not in self._tried:
            texts = [*(str(o.input_line) for o in chosen if not o.is_hydra_override()), *own]
            self.loader.load_configuration(self.config_name, texts, run_mode=RunMode.RUN, from_shell=False)
            self._tried.add(own)


@frozen(kw_only=True, eq=False)
class _Combination:
    """What the option table and the chosen files give, before any value of the command line."""

    tree: Mapping[str, Any]
    """As it is written: references are not followed."""
    keys: Keys
    origins: Mapping[str, str]
    provenance: Mapping[str, str]
    """For each leaf of `tree`."""
    refers: bool
    """Something refers to something else."""
    problems: tuple[str, ...]
    files: Mapping[str, str]

    @staticmethod
    def of(loader: Loader, config_name: str, chosen: Sequence[Override], extensions: tuple[str, ...]) -> _Combination:
        from hydra.types import RunMode

        texts = [str(o.input_line) for o in chosen]
        found = loader.compute_defaults_list(config_name, texts, RunMode.RUN).defaults
        ours = [(d, str(d.config_path)) for d in found if not is_hydra(str(d.config_path))]
        files = [(d, file) for d, path in ours if (file := loader.files.find(path)) is not None]
        origins = _origins(files, {o.key_or_group for o in chosen})
        tree = completed(_merged(files), extensions)
        return _Combination(
            tree=tree,
            keys=Keys.of(tree),
            origins=origins,
            provenance=_provenance(tree, origins),
            refers=any("$" in str(value) for value in flat(tree).values()),
            problems=tuple(_repeated_passes(files)),
            files={_named(d): str(file.file) for d, file in files if file.file is not None},
        )

    def variables(self, values: Sequence[Override], environment: Environment) -> tuple[str, ...]:
        """The leaves that say that they read the environment."""
        if not environment:
            return ()
        written = flat(with_overrides(self.tree, values, self.keys))
        return tuple(path for path, value in written.items() if reads_variables(value, environment))

    def with_values(
        self, values: Sequence[Override], environment: Environment, *, followed: bool
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The tree and its provenance with values of the command line in it, and references followed."""
        tree = with_overrides(self.tree, values, self.keys)
        if self.refers or any("$" in str(o.input_line) for o in values):
            tree = resolved(tree, environment) if followed else tree
        elif all(_is_of_leaf(self.provenance, o) for o in values):
            return tree, {**self.provenance, **{o.key_or_group: COMMAND_LINE for o in values}}
        origins = dict(self.origins)
        for o in values:
            if not o.is_delete():
                for path in [p for p in origins if p.startswith(f"{o.key_or_group}.")]:
                    origins[path] = COMMAND_LINE
                origins[o.key_or_group] = COMMAND_LINE
        return tree, _provenance(tree, origins)


def _extensions(values: Sequence[Override]) -> tuple[str, ...]:
    """The sections of installed packages that overrides name."""
    keys = [o.key_or_group.split(".") for o in values if o.key_or_group.startswith("extensions.")]
    return tuple(dict.fromkeys(key[1] for key in keys))


PROVIDERS = ("main", "command-line")
"""Whose files conf/ and a person's own folders are; installed packages stand for themselves."""


def _is_of_leaf(provenance: Mapping[str, str], o: Override) -> bool:
    """Whether the override leaves all paths of the tree as they are."""
    return o.key_or_group in provenance and not o.is_delete() and not isinstance(o.value(), dict)


def _merged(files: Brought) -> dict[str, Any]:
    """What the files say, later ones above."""
    tree: dict[str, Any] = {}
    for d, file in files:
        tree = merged(tree, nested({d.package: file.values} if d.package else file.values))
    return tree


def _repeated_passes(files: Brought) -> list[str]:
    """Passes that two files of the defaults list bring, as in `passes=[clean,cse]` where clean holds cse already."""
    bringers: dict[str, list[str]] = {}
    for d, file in files:
        for label in file.values if d.package == "passes" else ():
            preset = d.parent if d.parent and d.parent.startswith("passes/") else d.config_path
            bringers.setdefault(str(label), []).append(str(preset))
    return [named_twice("passes", label, " and ".join(by)) for label, by in bringers.items() if len(by) > 1]


def _named(d: ResultDefault) -> str:
    """A file as a person is told it."""
    return f"conf/{d.config_path}.yaml"


def _origins(files: Brought, chosen: set[str]) -> dict[str, str]:
    """{dotted path: origin}, later files last, as they are merged."""
    origins: dict[str, str] = {}
    choosers = _choosers(files)
    for d, file in files:
        key = d.override_key or _of_a_list(d)
        by = "on the command line" if key in chosen else choosers.get(key)
        said = f", chosen {by}" if by else ""
        named = _named(d) if file.file is not None else d.config_path
        brought = f" of {file.provider}" if file.provider not in PROVIDERS else ""
        for path in flat(file.values):
            origins[f"{d.package}.{path}" if d.package else path] = f"{named}{brought}{said}"
    return origins


def _choosers(files: Brought) -> dict[str, str]:
    """{group: "by conf/target/npu_offline.yaml"} of the groups that a file of the defaults list overrides."""
    return {
        entry.split()[-1].strip("/"): f"by {_named(d)}"
        for d, file in files
        for entry, _, _ in includes(file.defaults, "")
        if "override" in entry.split()[:-1]
    }


def _of_a_list(d: ResultDefault) -> str:
    """The group that a file was chosen in by a list, `passes=[cse]`; empty for one that a preset of it brings."""
    assert d.config_path is not None
    group = d.config_path.rpartition("/")[0]
    return "" if (d.parent or "").startswith(f"{group}/") else group


def _provenance(tree: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, str]:
    return {path: origins.get(path) or _nearest(origins, path) for path in flat(tree)}


def _nearest(origins: Mapping[str, str], path: str) -> str:
    """The origin of the closest parent: a mapping given whole on the command line has no entry for its leaves."""
    while "." in path:
        path = path.rpartition(".")[0]
        if path in origins:
            return origins[path]
    return DEFAULT
