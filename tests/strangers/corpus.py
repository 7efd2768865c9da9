# ruff: noqa: E501  tables
"""What a stranger could send: configuration folders, recipes, scripts, logs, dumps, reports, ledgers, made from tables.

A case is files in a folder `theirs`, and a command beside it. `->x` as content is a link to x, `|` a named pipe.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib import metadata
from typing import Any

import yaml
from attrs import field, frozen

from tests.strangers.folders import LONG_PARTS, folders

SECRET = "hunter2-7f3a9c"
"""The value of the variable SECRET while a case runs."""
TOUCH = "touch executed"
TEXTS: dict[str, str] = {
    "shell": "$(touch executed); `touch executed` | touch executed && touch executed",
    "python": "'; __import__('os').system('touch executed') #",
    "python in a docstring": '"""\nimport os\nos.system("touch executed")\n"""',
    "a format": "{0.__class__.__mro__} %s%n {{7*7}}",
    "html": "</script><script>window.ran=1</script><img src=x onerror=alert(1)>",
    "bidirectional": "safe\u202egnp.exe\u2066x",
    "escapes": "\x1b]0;owned\x07\x1b[2J\x9b31m",
    "lines": "a\ntrust: true\r\nb",
    "NUL": "a\x00b",
    "up": "../../../../etc/passwd",
    "absolute": "/etc/passwd",
    "home": "~/.ssh/id_rsa",
    "a device": "/dev/zero",
    "a formula": "=cmd|' /C calc'!A0",
    "long": "x" * 20_000,
    "a number": "9" * 5000,
    "a module": "os:system",
    "an address": "http://stranger.example/x",
    "a resolver": "${oc.env:SECRET}",
    "marks of rich": "[link=file:///etc/passwd][/red] :boom:",
}
NUMBERS = (10**30, -1, 1e308, -1e308, float("inf"), float("nan"), 2**63, 1e-320)
TAGS = (
    "!!python/object/apply:os.system ['touch executed']", "!!python/name:os.system ''", "!!python/module:os ''",
    "!!python/object/new:os.system ['touch executed']", "!!binary aGk=", "!!set {a}", "!!omap [a: 1]", "!mine {a: 1}",
    "!!python/tuple [1]", "!!timestamp 2020-01-01", "!<tag:yaml.org,2002:python/object/apply:os.system> [id]",
)  # fmt: skip
REFERENCES = (
    "${oc.env:SECRET}", "${ oc.env : SECRET }", "${oc.env:SECRET,none}", "${oc.env:${name}}", "a${oc.env:SECRET}b",
    "${${tracker.experiment}:SECRET}", "${oc.${seed}:SECRET}", "${oc.decode:'${oc.env:SECRET}'}", "${oc.create:{a: 1}}",
    "${oc.select:seed}", "${hydra:runtime.cwd}", "${hydra.run.dir}", "${now:%Y}", "${python_version:}", "${env:SECRET}",
    "\\${oc.env:SECRET}", "\\\\${oc.env:SECRET}", "${..seed}", "${.name}", "${model.${seed}}", "${", "${}", "}${",
    "${seed[0]}", "${oc.deprecated:seed}", "${oc.dict.keys:model}", "${oc.dict.values:model}", "${name}", "${a.b.c.d}",
    "${oc.env:\nSECRET}", "${oc\u200b.env:SECRET}", "${OC.ENV:SECRET}", "${${${seed}}}",
)  # fmt: skip
PACKAGES = (
    "hydra", "_global_.hydra", "hydra.run", "_group_.hydra", "seed._global_.hydra", "_name_", "a b", "../x",
    "_global_.hydra.job", "HYDRA", "_here_.hydra", "_global_._global_.hydra", "passes", "_global_:hydra", "hydra.job.env_set",
)  # fmt: skip
DEFAULTS = (
    "- override /hydra/job_logging: evil", "- /x@_global_.hydra: b", "- /stranger@hydra.callbacks.c: touch",
    "- hydra: run", "- override hydra/launcher: evil", "- /model@hydra: add", "- optional /hydra/launcher: evil",
    "- override /model: ../../secret", "- override /model: /etc/passwd", "- /model@_global_.hydra.run: add",
    "- model@seed._global_.hydra: add", "- override /model@_global_: add", "- /../../etc/passwd", "- {a: {b: c}}",
    "- 1", "- null", "- [model, add]", "- override /model: ${oc.env:SECRET}", "- override /model: [add, mlp]",
    "- _self_\n- _self_", "- override /mode: eager\n- override /mode: eager", "- experiment/evil", "- override /x/y: z",
)  # fmt: skip
HYDRAS = (
    "job: {env_set: {PYTHONPATH: theirs}}", "job_logging: {handlers: {file: {filename: victim}}}",
    "run: {dir: ../outside}", "sweep: {dir: ../outside, subdir: x}", "searchpath: ['file:///tmp']",
    "callbacks: {c: {_target_: subprocess.run, args: [touch, executed]}}", "launcher: {_target_: os.system}",
    "sweeper: {params: {trust: 'true'}}", "output_subdir: ../outside", "job: {chdir: true}", "hydra_logging: {version: 1}",
)  # fmt: skip
FIELDS = (
    "model.name", "mode.name", "shapes.name", "target.name", "streams.name", "pipeline.name", "tracker.experiment",
    "tracker.export_name", "compiler.debug.graph_dump.path", "executor.partition", "search.name", "sinking.name",
    "logs.levels.root", "check", "strict", "retry",
)  # fmt: skip


@frozen(kw_only=True)
class Case:
    name: str
    files: dict[str, str | bytes]
    command: tuple[str, ...]
    alone: bool = False
    """Runs in a process of its own: it may start workers."""
    pinned: dict[str, str] = field(factory=dict)


def tree_of(path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: tree_of(rest, value) if rest else value}


def _yaml(tree: Any) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's writes the same in a tenth of the time
    return yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True)


def _bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def _configurations() -> Iterator[Case]:
    """Each as a choice of a group; where it is legal, nothing but its values is asked for."""

    def case(name: str, text: str | bytes, group: str = "experiment", **more: str | bytes) -> Case:
        chosen = "passes=[evil]" if group == "passes" else f"{group}=evil"
        files = {f"theirs/{group}/evil.yaml": text, **{f"theirs/{k}": v for k, v in more.items()}}
        command = ("explain", "--options", "--json", "--config-dir", "theirs", chosen)
        return Case(name=f"configuration/{name}", files=files, command=command)

    top = "# @package _global_\n"
    for n, tag in enumerate(TAGS):
        for group in ("model", "experiment", "passes"):
            yield case(f"tag {n} in {group}", f"name: {tag}\n", group)
    for n, text in enumerate(("seed: 1\nseed: 2\n", "model: {name: add, name: mlp}\n", "{seed: 1, seed: 2}\n",
                              "'seed': 1\nseed: 2\n", "? seed\n: 1\n? seed\n: 2\n", "a: {b: {c: 1, c: 2}}\n")):  # fmt: skip
        yield case(f"duplicate keys {n}", top + text)
    for n, text in enumerate(("<<: {hydra: {run: {dir: ../outside}}}\n", "x: &x {trust: true}\n<<: *x\n",
                              "<<: [{trust: true}, {seed: 1}]\n", "model: {<<: {name: add}}\n")):  # fmt: skip
        yield case(f"merge keys {n}", top + text)
    for n, text in enumerate((_bomb(9, 10), _bomb(30, 2), "a: &a [*a]\n", "a: &a {b: *a}\n", "&a a: *a\n")):
        yield case(f"aliases {n}", text, "model")
    deep = {"flow lists": "a: " + "[" * 5000 + "]" * 5000, "flow maps": "a: " + "{a: " * 5000 + "1" + "}" * 5000,
            "block": "".join(f"{' ' * n}a:\n" for n in range(500)), "open": "[" * 50_000}  # fmt: skip
    for name, text in deep.items():
        yield case(f"deep {name}", text, "model")
    yield case("huge", "a: " + "x" * 2_000_000, "model")
    yield case("many keys", "".join(f"k{n}: 1\n" for n in range(60_000)), "model")
    for n, one in enumerate(REFERENCES):
        yield case(f"reference {n}", _yaml({"name": one}), "tracker")
        yield case(f"reference in a key {n}", top + _yaml({"logs": {"levels": {one: "DEBUG"}}}))
    yield case("a reference that is built", top + _yaml(
        {"tracker": {"experiment": "oc.env", "export_name": "${${tracker.experiment}:SECRET}"}}))  # fmt: skip
    for n, package in enumerate(PACKAGES):
        yield case(f"package {n}", f"# @package {package}\nrun: {{dir: ../outside}}\n")
    for n, entry in enumerate(DEFAULTS):
        yield case(f"defaults {n}", f"{top}defaults:\n" + "".join(f"  {line}\n" for line in entry.splitlines()),
                   **{"x/b.yaml": "run: {dir: ../outside}\n", "stranger/touch.yaml": "_target_: subprocess.run\n"})  # fmt: skip
    for n, text in enumerate(HYDRAS):
        yield case(f"hydra {n}", f"{top}hydra:\n  {text}\n")
        yield case(f"hydra by a package {n}", f"# @package _global_.hydra\n{text}\n")
    for name, content in {
        "a link out": "->../../secret.yaml", "a link to a secret": "->/etc/shadow", "a link to a device": "->/dev/zero",
        "a link to itself": "->evil.yaml", "a pipe": "|", "UTF-16": "name: add\n".encode("utf-16"),
        "no UTF-8": b"name: \xff\xfe\n", "NUL": b"name: a\x00b\n", "nothing": "", "a scalar": "0\n", "a list": "[1]\n",
        "two documents": "name: add\n---\nname: mlp\n", "no YAML": "a: [\n", "a tab": "a:\n\t- b\n", "BOM": "\ufeffname: add\n",
    }.items():  # fmt: skip
        yield case(f"file {name}", content, "model")
    for name, text in TEXTS.items():
        for path in FIELDS:
            yield case(f"{path}: {name}", top + _yaml(tree_of(path, text)))
    for n, number in enumerate(NUMBERS):
        for path in (
            "seed",
            "pipeline.time_limit_s",
            "pipeline.memory_limit_mb",
            "streams.max_streams",
            "model.layers",
        ):
            yield case(f"{path}: number {n}", top + _yaml(tree_of(path, number)))
    for key in ("trust: true", "_target_: os.system", "model: {_target_: os.system}", "debug: true", "a: {_args_: [1]}",
                "model: {name: python, factory: 'os:getcwd'}", "passes: {p: {name: python, factory: 'os:system'}}"):  # fmt: skip
        yield case(f"key {key}", f"{top}{key}\n")

    yield case("what is legal", f"{top}seed: 3\n")


@cache
def recipe() -> dict[str, Any]:
    """A whole lock, as it is written after a run."""
    from npucompose.compose.tree import compose
    from npucompose.experiment.job import Job
    from tests.lock_examples import OVERRIDES, locked_of

    return yaml.safe_load(locked_of(Job.from_composed(compose(OVERRIDES))).text())


def _leaves(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(tree, (dict, list)) and tree:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, (*at, key))
    else:
        yield at


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


def _with_digest(tree: dict[str, Any]) -> dict[str, Any]:
    from airflow_free.errors import InvalidRequest
    from airflow_free.keys import digest

    try:
        return {**tree, "configuration": digest(tree["experiment"])}
    except (InvalidRequest, ValueError, TypeError):
        return tree


def _drawn(leaves: list[tuple[Any, ...]], count: int, name: str) -> list[tuple[Any, ...]]:
    """As if by chance, and each leaf by itself: a new key changes few of the cases."""
    return sorted(leaves, key=lambda path: sha256(f"{name} {path}".encode()).hexdigest())[:count]


def _recipes() -> Iterator[Case]:
    whole = recipe()
    ours = {"ours.yaml": _yaml(whole)}

    def case(name: str, text: str | bytes, *command: str) -> Case:
        words = command or ("recipe", "verify", "theirs/recipe.lock.yaml", "--against", "ours.yaml")
        return Case(name=f"recipe/{name}", files={**ours, "theirs/recipe.lock.yaml": text}, command=words)

    show = ("recipe", "show", "theirs/recipe.lock.yaml")
    # One of what is installed and one of our own folders: which there are is no matter of a stranger's.
    leaves = [
        p for p in _leaves(whole) if p[0] not in ("versions", "sources") or p[1] in ("torch", "npucompose.vendor")
    ]
    for name, value in {**TEXTS, **{f"number {n}": v for n, v in enumerate(NUMBERS)}}.items():
        for n, path in enumerate(_drawn(leaves, 3, name)):
            text = _yaml(_with_digest(replaced(whole, path, value)))
            yield case(f"{'.'.join(map(str, path))}: {name}", text, *(show if n == 1 else ()))
    for n, tag in enumerate(TAGS):
        yield case(f"tag {n}", _yaml(whole) + f"more: {tag}\n", *show)
    for n, text in enumerate((_bomb(9, 10), "[" * 50_000, "schema: 1\nschema: 1\n", "a: &a [*a]\n", "", "x", "- 1\n")):
        yield case(f"text {n}", text, *show)
    yield case("a key given twice", _yaml(whole) + "schema: 1\n", *show)
    for name, content in {
        "a pipe": "|",
        "a device": "->/dev/zero",
        "a secret": "->/etc/shadow",
        "NUL": b"a: \x00",
    }.items():
        yield case(f"file {name}", content, *show)
    for name, change in {
        "trust": {"trust": True}, "a module": {"model": {"name": "python", "options": {"factory": "os:getcwd"}}},
        "native code": {"model": {"name": "transformers", "options": {"config": {"attn_implementation": "org/kernel"}}}},
        "a class": {"model": {"name": "transformers", "options": {"config_class": "TrainingArguments"}}},
    }.items():  # fmt: skip
        yield case(name, _yaml(_with_digest({**whole, "experiment": {**whole["experiment"], **change}})))
        yield case(f"{name}, run", _yaml(_with_digest({**whole, "experiment": {**whole["experiment"], **change}})),
                   "recipe", "verify", "theirs/recipe.lock.yaml")  # fmt: skip


SCRIPT = """import torch, torch_npu, torchair
config = torchair.CompilerConfig()
{}
model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
"""
LINES = (
    "import os; os.system('touch executed')", "__import__('os').system('touch executed')", "exec('open(\"executed\", \"w\")')",
    "open('executed', 'w').write('x')", "config.mode = open('/etc/passwd').read()", "config.mode = __import__('os').environ['SECRET']",
    "def f(c): f(c)\nf(config)", "config.mode = ''.join(['x'] * 10**9)", "config.mode = 'x' * 10**9", "config.mode = 9**9**9",
    "config.mode = (lambda: config)()", "while True: config.mode = 1", "config.__class__ = object", "config.mode = f'{config!r:{10**9}}'",
    "for i in range(10**9): config.mode = i", "config.mode = [i for i in range(10**9)]", "del config", "config = config.config",
    "setattr(config, 'mode', 'reduce-overhead')", "getattr(config, '__class__')", "class A(torchair.CompilerConfig): pass\nconfig = A()",
    "import theirs.other", "from . import other", "with open('executed', 'w') as f: pass", "lambda: 0", "config.mode = 1 << 10**6",
    "config.debug.graph_dump.path = '/etc/passwd'", "config.mode = 'a\\ntrust: true\\n#'", "\x0c\n", "config.mode = " + "(" * 150 + ")" * 150,
)  # fmt: skip


def _scripts() -> Iterator[Case]:
    def case(name: str, text: str | bytes) -> Case:
        return Case(name=f"script/{name}", files={"theirs/s.py": text}, command=("recipe", "import", "theirs/s.py"))

    for n, line in enumerate(LINES):
        yield case(f"line {n}", SCRIPT.format(line))
    for name, value in TEXTS.items():
        yield case(f"mode: {name}", SCRIPT.format(f"config.mode = {value!r}"))
        yield case(f"header: {name}", "# npucompose recipe, read by `npucompose recipe import`:\n#   mode: {name: "
                   + value.replace("\n", "\n#   ").replace("\x00", "") + "}\n# end of recipe\n" + SCRIPT.format(""))  # fmt: skip
    calls = "".join(f"def f{n}(c):\n    f{n + 1}(c)\n    f{n + 1}(c)\n" for n in range(40))
    for name, text in {
        "calls that double": f"{SCRIPT.format('')}{calls}def f40(c):\n    c.mode = 'max-autotune'\nf0(config)\n",
        "deep": "x = " + "-" * 20_000 + "1\n", "brackets": "(" * 10_000, "NUL": b"import torch\x00\n", "no UTF-8": b"# \xff\n",
        "a coding line": b"# coding: utf-7\n+AG8-\n", "empty": "", "long": "a = 1\n" * 200_000, "a pipe": "|", "a device": "->/dev/zero",
        "an error": "def (:\n",
    }.items():  # fmt: skip
        yield case(name, text)


def _artefacts() -> Iterator[Case]:
    log = "[INFO] TORCHAIR(1,python):2026-01-01 00:00:00 [npu_fx_compiler.py:1] {}\nDYNAMIC True\n"
    proto = 'graph {{ name: "{}" op {{ name: "{}" type: "Add" attr {{ key: "{}" value {{ s: "x" }} }} }} }}\n'
    for kind, flag, form in (("log", "--log", log), ("dump", "--dump", proto)):
        for name, value in TEXTS.items():
            text = form.format(*[value.replace("{", "(")] * form.count("{}"))
            yield Case(name=f"{kind}/{name}", files={"theirs/a.txt": text}, command=("explain", flag, "theirs/a.txt"))
        for name, content in {
            "deep": "graph { " * 20_000, "lists": "[" * 100_000, "JSON": '{"graph": ' * 20_000, "NUL": b"graph {\x00",
            "no UTF-8": b"graph { name: \"\xff\" }", "empty": "", "a line": "x" * 4_000_000, "lines": "\n" * 500_000,
            "a pipe": "|", "a device": "->/dev/zero", "a secret": "->/etc/shadow", "a number": "graph { version: " + "9" * 9999 + " }",
        }.items():  # fmt: skip
            yield Case(
                name=f"{kind}/file {name}", files={"theirs/a.txt": content}, command=("explain", flag, "theirs/a.txt")
            )


@cache
def report() -> dict[str, Any]:
    from npucompose.results.record import Report
    from tests.report.hostile import filled

    return json.loads(json.dumps(filled(Report).as_dict()))


def _reports() -> Iterator[Case]:
    whole = report()
    leaves = list(_leaves(whole))
    shows = (("report", "theirs"), ("report", "theirs", "--markdown"), ("report", "theirs", "--csv"),
             ("report", "theirs", "--html", "page.html"), ("report", "theirs", "theirs", "--diff"))  # fmt: skip

    def case(name: str, text: str | bytes, command: tuple[str, ...]) -> Case:
        return Case(name=f"report/{name}", files={"theirs/report.json": text}, command=command)

    for n, (name, value) in enumerate({**TEXTS, **{f"number {n}": v for n, v in enumerate(NUMBERS)}}.items()):
        for path in (*_drawn(leaves, 2, name), ("error",)):
            place = ".".join(map(str, path))[:60]
            yield case(
                f"{name} at {place}", json.dumps(replaced(whole, path, value)), shows[(n + len(place)) % len(shows)]
            )
    for name, content in {
        "deep": "[" * 100_000, "empty": "", "a number": "9" * 9999, "NaN": '{"schema": NaN}', "NUL": b"\x00", "no UTF-8": b"\xff",
        "twice": '{"schema": 1, "schema": 1}', "a list": "[]", "a pipe": "|", "a device": "->/dev/zero", "a secret": "->/etc/shadow",
        "points": '{"schema": 1, "status": "ok"}', "lone surrogate": '{"schema": 1, "status": "\\ud800"}',
    }.items():  # fmt: skip
        yield case(f"file {name}", content, shows[0])
    for name, content in {
        "empty": b"", "no database": b"x" * 4096, "half": b"SQLite format 3\x00" + b"\xff" * 200, "a pipe": "|", "a device": "->/dev/zero",
    }.items():  # fmt: skip
        yield Case(name=f"ledger/{name}", files={"theirs/sweeps.sqlite": content}, command=("report", "theirs"))
    for name, content in {
        "deep": "[" * 50_000,
        "texts": '{"points": "x"}',
        "keys": '{"points": [{"key": {}}]}',
        "a pipe": "|",
    }.items():
        yield Case(name=f"points/{name}", files={"theirs/points.json": content}, command=("report", "theirs"))


def _folders() -> Iterator[Case]:
    for one in folders():
        yield Case(name=one.name, files=one.files, command=one.command)
    line = "[INFO] TORCHAIR(1,python):2026-01-01 00:00:00 [npu_fx_compiler.py:1] "
    for name, part in LONG_PARTS.items():
        for times in (1, 60_000):
            yield Case(
                name=f"log/{name} x {times}",
                files={"theirs/a.txt": f"{line}{part * times}\n{part * times} graph id: 1\n"},
                command=("explain", "--log", "theirs/a.txt"),
            )


ALONE = (
    "what is legal",
    "hydra 0", "hydra 1", "hydra 2", "hydra 5", "hydra by a package 0", "hydra by a package 2", "a reference that is built",
    "package 0", "package 1", "package 4", "defaults 1", "defaults 2", "tag 0 in model", "file a link out", "file a pipe",
    "aliases 0", "key trust: true", "key model: {name: python, factory: 'os:getcwd'}", "reference 0", "reference 5",
    "merge keys 1", "duplicate keys 0", "tracker.experiment: shell", "tracker.experiment: escapes",
)  # fmt: skip
RUN = ("model=add", "pipeline=compile_only")


def _alone(cases: dict[str, Case]) -> Iterator[Case]:
    """Some of the configurations as real runs; those that are legal start a worker."""
    for name in ALONE:
        case = cases[f"configuration/{name}"]
        chosen = case.command[-1]
        more = RUN[1:] if chosen.startswith("model") else RUN
        command = ("run", "--config-dir", "theirs", *more, chosen)
        yield Case(name=f"run/{name}", files=case.files, command=command, alone=True)


def _modules() -> Iterator[Case]:
    """A folder with a module of each name that a Python could import, in place of the genuine one."""
    names = {*sys.stdlib_module_names, *metadata.packages_distributions()} - {*sys.builtin_module_names}
    files = {f"{name}.py": f"open('executed', 'a').write('{name}\\n')\n" for name in names if name.isidentifier()}
    for name, command in {
        "a run": ("run", *RUN), "a run on a wheel": ("run", "target=npu_offline", *RUN), "an explanation": ("explain", RUN[0]),
        "a report": ("report",),
    }.items():  # fmt: skip
        yield Case(name=f"module/{name}", files={**files}, command=command, alone=True)


@cache
def corpus() -> dict[str, Case]:
    """{name: case}, in the order of the tables."""
    kinds: tuple[Callable[[], Iterator[Case]], ...] = (
        _configurations, _recipes, _scripts, _artefacts, _reports, _folders,
    )  # fmt: skip
    found: dict[str, Case] = {}
    for kind in kinds:
        for case in kind():
            assert case.name not in found, case.name
            found[case.name] = case
    return {**found, **{case.name: case for case in (*_alone(found), *_modules())}}
