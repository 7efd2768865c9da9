"""Cases of configurations that did not come with the package: folders of --config-dir, before and after composing."""

from __future__ import annotations

import errno
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import evolve

from npucompose.compose.check import check, torch_npu_of
from npucompose.compose.references import resolved
from npucompose.compose.sources import Files, Loader, run_application
from npucompose.compose.tree import Composed, compose
from npucompose.compose.untrusted_config import path_problems, read_foreign
from npucompose.schema.experiment import Choice
from npucompose.serving.generate import read_checked
from npucompose.table.structure import flat
from npucompose.targets.npu_offline.wheel import UnpackedWheel
from npucompose.vendor.compiler import CompilerOptions
from tests.refusals.case import Case, Unread

GROUPS = ("model", "mode", "experiment", "passes")
GLOBAL = "# @package _global_\n"


def foreign(text: str, config_path: str = "experiment/mine") -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / "mine.yaml").write_text(text)
        return read_foreign(folder / "mine.yaml", config_path, GROUPS.__contains__)

    return read


def loaded(files: Mapping[str, str], config_path: str) -> Callable[[Path], Any]:
    """What Hydra is handed of one file in a folder of --config-dir."""

    def read(folder: Path) -> Any:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        return Loader(Files([folder])).repository.load_config(config_path)

    return read


def led_outside(folder: Path) -> Any:
    (folder / "given" / "model").mkdir(parents=True)
    (folder / "secret.yaml").write_text("name: mlp\n")
    (folder / "given" / "model" / "mine.yaml").symlink_to(folder / "secret.yaml")
    return Loader(Files([folder / "given"])).repository.load_config("model/mine")


def tree(raw: Mapping[str, Any]) -> Callable[[Path], Any]:
    return lambda folder: resolved(raw)


@cache
def default() -> Composed:
    return compose([])


def checked(**sections: Any) -> Callable[[Path], Any]:
    """The default experiment with these sections, which a stranger's file says, against all that there is to check."""

    def read(folder: Path) -> Any:
        origins = dict.fromkeys(flat(sections), "conf/experiment/mine.yaml")
        tree = {**default().tree, **sections}
        return check(Composed(tree=tree, provenance={**default().provenance, **origins}))

    return read


def written_by_the_vendor(folder: Path) -> None:
    """As for a target whose compiler is the vendor's; another has no effect of it, and does not ask."""
    compiler = checked(compiler={"debug": {"graph_dump": {"path": "/tmp"}}})(folder).experiment.compiler
    if found := list(path_problems(compiler, lambda key: "conf/experiment/mine.yaml")):
        raise Unread(*found)


def dimension(**said: Any) -> Callable[[Path], Any]:
    return checked(search={"name": "optuna", "objectives": {"p50_us": "minimize"}, "space": {"seed": said}})


def another_wheel(folder: Path) -> Any:
    found = UnpackedWheel(tree=folder, version="2.13.0", by="the test")
    asked = check(default()).experiment
    return torch_npu_of(
        evolve(asked, compiler=CompilerOptions(torch_npu_version="2.9.0"), target=Choice(name="npu_offline")),
        lambda: found,
        runs=True,
    )


def application(**said: Any) -> Callable[[Path], Any]:
    """A command line in a place where Hydra's folder of the run cannot be made."""
    names = ("run", "multirun", "cfg", "info", "shell_completion", "resolve", "help", "hydra_help", "package")

    def full(self: Any, **_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/run")

    def read(folder: Path) -> Any:
        with patch("hydra._internal.hydra.Hydra.run", full), patch("hydra._internal.hydra.Hydra.multirun", full):
            run_application(
                Namespace(**{**dict.fromkeys(names), "overrides": [], **said}), Loader(Files([])), "config", print
            )

    return read


FULL = "the folder of the run cannot be written"
FOREIGN, SOURCES = "npucompose.compose.untrusted_config", "npucompose.compose.sources"
APPLICATION = "npucompose.compose.sources"
REFERENCES, CHECK = (f"npucompose.compose.{name}" for name in ("references", "check"))
EXECUTOR = "npucompose.schema.sweep"
HYDRA = "a file may not hold hydra.*"
LIST = "the defaults list may not"
CHAIN = {f"a{n}": f"${{a{n + 1}}}" for n in range(3000)}
DOUBLED = {"a0": [1] * 10, **{f"a{n}": [f"${{a{n - 1}}}"] * 10 for n in range(1, 6)}}
MANY = {f"model/a{n}.yaml": f"defaults: [a{n + 1}, a{n + 1}]\n" for n in range(10)} | {"model/a10.yaml": "name: mlp\n"}
HANDED = "npucompose.serving.generate"


def served(text: str) -> Callable[[Path], Any]:
    """What an engine was given as its recipe."""

    def read(folder: Path) -> Any:
        (folder / "recipe.yaml").write_text(text)
        return read_checked(str(folder / "recipe.yaml"))

    return read


CASES = (
    Case(HANDED, "it holds no mapping", served("3"), "is no recipe: it holds no mapping", "TypeError"),
    Case(
        HANDED, "problem.replace", served("# @package _global_\nmode: {nome: eager}\n"), "as it is/recipe.yaml", "nome"
    ),
    Case(FOREIGN, "is no configuration", foreign("- 1\n"), "it must hold a mapping of keys", "AttributeError"),
    Case(
        FOREIGN, "{problem}' for problem", foreign("_target_: x", "model/x"), "mine.yaml:1: '_target_' would name code"
    ),
    Case(FOREIGN, "_group_problems :: hydra.*", foreign("a: 1", "hydra/launcher/mine"), HYDRA),
    Case(FOREIGN, "is no group of npucompose: a folder", foreign("a: 1", "mail/mine"), "'mail' is no group"),
    Case(FOREIGN, "is not known; a file may", foreign("# @packages _global_\nseed: 1"), "the header @packages is not"),
    Case(FOREIGN, "_package :: hydra.*", foreign("# @package hydra.run\nseed: 1"), HYDRA),
    Case(FOREIGN, "its package may be", foreign("# @package model\nseed: 1"), "its package may be _global_"),
    Case(FOREIGN, "_key_problems :: hydra.*", foreign("hydra: {}"), HYDRA),
    Case(FOREIGN, "_key_problems :: unknown", foreign(GLOBAL + "sead: 1"), "unknown key 'sead'"),
    Case(FOREIGN, "its defaults must be a list", foreign("defaults: {model: mlp}"), "its defaults must be a list"),
    Case(FOREIGN, "may not hold {entry!r}", foreign("defaults: [[model, mlp]]"), f"{LIST} hold ['model', 'mlp']"),
    Case(FOREIGN, "write `override /group", foreign("defaults: [{once /model: mlp}]"), f"{LIST} name 'once /model'"),
    Case(FOREIGN, "'{entry}': {OWN}", foreign("defaults: [{override /hydra/launcher: ray}]"), "may set Hydra"),
    Case(FOREIGN, "'CHOICE'}`", foreign("defaults: [{override model: mlp}]"), "write `override /model: mlp`"),
    Case(FOREIGN, "names no choice", foreign("defaults: [{override /model: null}]"), f"{LIST[:17]} names no choice"),
    Case(FOREIGN, "absolute, groups", foreign("defaults: [{/mail: a}]"), "unknown group 'mail'"),
    Case(FOREIGN, "has a choice already", foreign("defaults: [{/mode: eager}]"), "write `override /mode: eager`"),
    Case(
        FOREIGN,
        "a choice is a name",
        foreign("defaults: [{override /model: ../../mlp}]"),
        "'../../mlp': a choice is a name",
    ),
    Case(FOREIGN, "would name code to run", foreign("_target_: x", "model/x"), "'_target_' would name code"),
    Case(FOREIGN, "'{here}' {problem}", foreign("a: ${oc.env:HOME}", "model/x"), "'a' uses a resolver"),
    Case(FOREIGN, "uses a resolver", foreign("a: ${oc.env:HOME}", "model/x"), "'a' uses a resolver"),
    Case(FOREIGN, "is not understood", foreign("a: ${${b}}", "model/x"), "'a' is not understood"),
    Case(SOURCES, "lies outside", led_outside, "lies outside of the folder given"),
    Case(
        SOURCES,
        "without end",
        loaded({"model/a.yaml": "defaults: [b]\n", "model/b.yaml": "defaults: [a]\n"}, "model/a"),
        "model/a -> model/b -> model/a",
        "RecursionError",
    ),
    Case(SOURCES, "files in all", loaded(MANY, "model/a0"), "its defaults lists name more than 1,000 files in all"),
    Case(REFERENCES, "is not followed by", tree({"a": "${b", "b": 1}), "its ${ is not followed by a }"),
    Case(REFERENCES, "it uses a resolver", tree({"a": "${b:1}"}), "it uses a resolver", "a refers to ${b:1}, which"),
    Case(REFERENCES, "too often", tree(CHAIN), "references lead from one to the next too often", "RecursionError"),
    Case(REFERENCES, "refers to itself", tree({"a": "${b}", "b": "${a}"}), "a -> b -> a", "references lead"),
    Case(REFERENCES, "{error}", tree({"a": "${b"}), "a='${b': its ${ is not", "ValueError"),
    Case(REFERENCES, "values, its references", tree(DOUBLED), "a5 holds more than 200,000 values"),
    Case(REFERENCES, "is text and refers", tree({"a": {"b": 1}, "c": "of ${a}"}), "c is text and refers to a mapping"),
    Case(REFERENCES, "characters, its", tree({"a": "x" * 2000, "b": "${a}" * 501}), "b has more than 1,000,000"),
    Case(REFERENCES, "there is no such value", tree({"a": "${b}"}), "${b}, and there is no such value", "KeyError"),
    Case(
        REFERENCES,
        "which is not set",
        lambda folder: resolved({"a": "${oc.env:NOWHERE}"}, {"NOWHERE": None}),
        "a reads the environment variable NOWHERE, which is not set",
    ),
    Case(REFERENCES, "which is no place", tree({"a": "${b c}", "b c": 1}), "${b c}, which is no place"),
    Case(
        FOREIGN,
        "leads out of the run",
        written_by_the_vendor,
        "compiler.debug.graph_dump.path='/tmp' leads out of the run directory and comes from conf/experiment/mine.yaml",
    ),
    Case(
        FOREIGN,
        "executor.address",
        checked(executor={"name": "ray", "address": "evil:1"}),
        "executor.address=evil:1 comes from conf/experiment/mine.yaml",
    ),
    Case(CHECK, "_checked :: raise ConfigError(*problems)", checked(mode=3), "'mode'", "AttributeError"),
    Case(CHECK, "dict.fromkeys(problems)", checked(trust=True), "'trust' is true (it comes from conf/"),
    Case(CHECK, "'name' is missing", checked(model={"name": None}), "'name' is missing @ model"),
    Case(CHECK, "mapping of the pass's", checked(passes={"cse": 3}), "options: 3 @ passes.cse"),
    Case(CHECK, "'trust' is true", checked(trust=True), "'trust' is true (it comes from conf/"),
    Case(
        CHECK,
        "_untrusted(f'model",
        checked(model={"name": "python", "factory": "os:getcwd"}),
        "model=python imports code that the configuration names",
    ),
    Case(
        CHECK,
        "A {group} that a factory",
        checked(model={"name": "block", "factory": "os:getcwd"}),
        "unknown model 'block' @ model.name. A model that a factory of yours makes",
        "unknown model 'block'",
    ),
    Case(
        CHECK,
        "_untrusted(f'passes",
        checked(passes={"python": {"function": "os:getcwd"}}),
        "passes.python imports code that the configuration names",
    ),
    Case(
        CHECK,
        "makes constants",
        checked(mode={"name": "max-autotune"}, compile={"cache": True}, passes={"fold_parameters": {}}),
        "passes.fold_parameters makes constants of parameters, which compile.cache=true cannot have",
    ),
    Case(
        EXECUTOR,
        "option of sbatch",
        checked(executor={"name": "slurm", "parameters": {"x\nrm": 1}}),
        "unknown option of sbatch",
    ),
    Case(
        EXECUTOR,
        "one plain word",
        checked(executor={"name": "slurm", "partition": "a\nrm"}),
        "'partition' must be one plain word for sbatch",
    ),
    Case(EXECUTOR, "has either", dimension(one_of=[1], low=0, high=1), "a dimension has either 'one_of', or 'low'"),
    Case(EXECUTOR, "at least one value", dimension(one_of=[]), "'one_of' takes at least one value"),
    Case(EXECUTOR, "there is nothing", dimension(low=2, high=1), "from 'low' 2 to 'high' 1 by 'step' None"),
    Case(EXECUTOR, "'log' needs", dimension(low=0, high=1, log=True), "'log' needs a 'low' above 0"),
    Case(
        CHECK,
        "torch_npu_of :: raise_for",
        checked(mode={"name": "npugraph_ex"}, compiler={"torch_npu_version": "2.6.0"}),
        "mode=npugraph_ex: torch_npu 2.6.0.post5 (compiler.torch_npu_version) has no such package",
    ),
    Case(CHECK, "runs the genuine", another_wheel, "target=npu_offline runs the genuine classes of"),
    Case(
        APPLICATION,
        "cannot be written",
        application(),
        "the folder of the run cannot be written: a/run No space left",
        "OSError",
    ),
    Case(APPLICATION, "only one of", application(run=True, multirun=True), "only one of --run", FULL),
    Case(APPLICATION, "--resolve is for", application(run=True, resolve=True), "--resolve is for --cfg", FULL),
)
