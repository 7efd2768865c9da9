"""The command `npucompose explain`: its arguments, and what it prints. Loads no torch: a worker compiles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from npucompose.errors import CompileError, ConfigError, RejectedError
from npucompose.results.sinking import Explanation

if TYPE_CHECKING:
    from rich.console import Console


def declare(parser: argparse.ArgumentParser) -> None:
    """`npucompose explain experiment=fa_path4`, `npucompose explain --log run.log --dump ge_proto_00000012.txt`."""
    parser.add_argument("overrides", nargs="*", help="the experiment: group=choice key=value …")
    parser.add_argument("--config-dir", "-cd", action="append", default=[], help="a folder with choices of your own")
    parser.add_argument("--config-name", "-cn", default="config", help="another file than config.yaml")
    told = "; without overrides nothing is compiled and only the file speaks"
    parser.add_argument(
        "--log", action="append", default=[], metavar="FILE", help=f"a log of TorchAir, GE, torch{told}"
    )
    parser.add_argument("--dump", action="append", default=[], metavar="FILE", help=f"a dump of a GE graph{told}")
    parser.add_argument(
        "--options", action="store_true", help="instead: every value of the experiment, and who said so"
    )
    parser.add_argument("--under", default="", metavar="PATH", help="with --options: those below this path")
    parser.add_argument("--adapt", action="store_true", help="what the rules of adapt=… would do, as a diff; a dry run")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(act=act)


def act(arguments: argparse.Namespace) -> int:
    """0 when there is a graph to explain, whatever is said of it: `expect:` is for what must come out.

    A model of which no graph was made ends as the run itself would, and so does a dry run of rules that reject a node:
    3.
    """
    from npucompose.console import console

    if arguments.adapt and arguments.options:
        raise ConfigError("explain takes one of --options and --adapt.")
    if arguments.options:
        return _options(arguments, console())
    if arguments.under:
        raise ConfigError("--under is for --options.")
    if arguments.adapt:
        return _dry_run(arguments, console())

    from npucompose.report.explain import as_json, render

    explanation = _explanation(arguments)
    if arguments.json:
        print(as_json(explanation))
    else:
        render(explanation, console())
    failure = explanation.sinking.failure
    return CompileError.exit_status if failure is not None and not failure.foreseen else 0


def _options(arguments: argparse.Namespace, console: Console) -> int:
    from npucompose.compose.check import check
    from npucompose.compose.tree import compose
    from npucompose.experiment.job import settings_of
    from npucompose.report.explain import render_settings, settings_json

    if arguments.log or arguments.dump:
        raise ConfigError("--options is about an experiment; --log and --dump are about graphs.")
    composed = compose(arguments.overrides, config_dirs=arguments.config_dir, config_name=arguments.config_name)
    found = settings_of(check(composed))
    if arguments.json:
        print(settings_json(found, under=arguments.under))
    else:
        render_settings(found, console, under=arguments.under)
    return 0


def _dry_run(arguments: argparse.Namespace, console: Console) -> int:
    from npucompose.compose.tree import compose
    from npucompose.experiment.explain_adapt import dry_run
    from npucompose.report.explain import as_json, render_dry_run

    if arguments.log or arguments.dump:
        raise ConfigError("explain --adapt reads the model's graphs: --log and --dump have no meaning there.")
    found = dry_run(compose(arguments.overrides, config_dirs=arguments.config_dir, config_name=arguments.config_name))
    if arguments.json:
        print(as_json(found))
    else:
        render_dry_run(found, console)
    return RejectedError.exit_status if found.rejections else 0


def _explanation(arguments: argparse.Namespace) -> Explanation:
    import attrs

    from npucompose.compose.tree import compose
    from npucompose.experiment.explain import explain
    from npucompose.sinking import read_artefact, with_artefacts

    files = [*arguments.log, *arguments.dump]
    told = [read_artefact(path) for path in files]
    if files and not arguments.overrides:
        names = {"file": ", ".join(Path(path).name for path in files)}
        return Explanation(asked=names, sinking=with_artefacts(None, told), compile_s=0.0, diagnosis_s=0.0)
    composed = compose(arguments.overrides, config_dirs=arguments.config_dir, config_name=arguments.config_name)
    explained = explain(composed)
    return attrs.evolve(explained, sinking=with_artefacts(explained.sinking, told)) if told else explained
