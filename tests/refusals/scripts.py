"""Cases of scripts that a recipe is imported from, and of the recipe in such a script's header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from npucompose.recipe import header, import_file, import_script, reader
from npucompose.recipe.vendor_options import of_config, set_option
from tests.refusals.case import Case, Unread

CONFIG = """import logging, torch, torchair
config = torchair.CompilerConfig()
"""
BACKEND = CONFIG + "backend = torchair.get_npu_backend(compiler_config=config)\n"
HOOK = CONFIG + "config.post_grad_custom_pre_pass = mine\n"
GEARS = "torchair.inference.set_dim_gears(x, {0: [2, 4]})\n"
CACHED = "torchair.inference.cache_compile(m.forward, config=config"
DEEP = CONFIG + "config.mode = a" + ".b" * 900 + "\n"
CALLS = "def f0(c):\n    c.mode\n" + "".join(f"def f{n}(c):\n    f{n - 1}(c)\n    f{n - 1}(c)\n" for n in range(1, 9))
NOT_READ = "it is not known which configuration this is"


def script(text: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        imported = import_script(text)
        if imported.unread:
            raise Unread("\n".join(map(str, imported.unread)))
        return imported

    return read


def with_recipe(yaml: str, code: str = CONFIG, end: str = header.END) -> Callable[[Path], Any]:
    return script("\n".join([header.BEGIN, *(f"#   {line}" for line in yaml.splitlines()), end, code]))


def few_steps(folder: Path) -> Any:
    """Nine functions, each of which calls the one before it twice, where a script may take 100 steps."""
    with patch.object(reader, "MOST_STEPS", 100):
        return import_script(CONFIG + CALLS + "f8(config)\n")


def file(name: str, text: str, **asked: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / name).write_text(text)
        return import_file(folder / name, **asked)

    return read


def option(attribute: str, value: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> None:
        if why := set_option("torchair", {}, attribute, value):
            raise Unread(why)

    return read


HOOKED = SimpleNamespace(ge_config=None, post_grad_custom_pre_pass=print)
HEADER, IMPORTED, READER = "npucompose.recipe.header", "npucompose.recipe.imported", "npucompose.recipe.reader"
CALLED, PATHS, MARKS = "npucompose.recipe.calls", "npucompose.recipe.paths", "npucompose.recipe.marks"
CHOICES, PYTHON = (f"npucompose.recipe.{name}" for name in ("compilations", "python_calls"))
EXPRESSIONS, OPTIONS = "npucompose.recipe.expressions", "npucompose.recipe.vendor_options"
CASES = (
    Case(
        PATHS, "value.node", script(CONFIG + "if theirs:\n    config.mode = 'reduce-overhead'\n"), "against the default"
    ),
    Case(
        EXPRESSIONS, "a call on a configuration", script(CONFIG + "config.as_dict()\n"), "for a call on a configuration"
    ),
    Case(
        CALLED, "comes from", script(CONFIG + "CompilerConfig()\n"), "it is not known where CompilerConfig comes from"
    ),
    Case(CALLED, "WITHOUT_YAML", script(CONFIG + CACHED + ", cache_dir='x')\n"), "no YAML takes cache_dir"),
    Case(
        MARKS,
        "ENVIRONMENT",
        script(CONFIG + "import os\nos.putenv('HCCL_BUFFSIZE', '1')\n"),
        "YAML sets no environment",
    ),
    Case(CHOICES, "a constant are wanted", file("a.py", CONFIG, assume=("x",)), "a constant are wanted", "SyntaxError"),
    Case(IMPORTED, "Conditions that are", file("a.py", CONFIG, assume=("x=1",)), "does not depend on it"),
    Case(HEADER, "does not follow", with_recipe("mode: {}", end=""), "'# end of recipe' does not follow", "ValueError"),
    Case(
        HEADER,
        "mapping of {listed(SECTIONS)}",
        with_recipe("''"),
        "the recipe must be a mapping of mode",
        "AttributeError",
    ),
    Case(
        HEADER,
        "names to values",
        with_recipe("compiler: 3"),
        "compiler in the recipe must be a mapping",
        "AttributeError",
    ),
    Case(HEADER, "unknown section", with_recipe("pipeline: {}"), "unknown section pipeline in the recipe"),
    Case(IMPORTED, "is a script", file("a.py", CONFIG, vllm_ascend_version="0.18.0"), "it says its options itself"),
    Case(IMPORTED, "it is for scripts", file("a.yaml", "exe_mode: eager\n", compilation=2), "it is for scripts, and"),
    Case(CHOICES, "has that number", file("a.py", CONFIG, compilation=9), "no compilation of the script", "IndexError"),
    Case(IMPORTED, "is not Python", script("def ("), "the script:1 is not Python", "SyntaxError"),
    Case(IMPORTED, "lie too deep", script(DEEP), "its calls or expressions lie too deep", "RecursionError"),
    Case(IMPORTED, "reading it would not end", few_steps, "or its values depend on one another, too often", "TooLong"),
    Case(IMPORTED, "nothing found", script("x = 1\n"), "nothing found. Looked for", "IndexError"),
    Case(
        IMPORTED,
        "raise_for(problems)",
        with_recipe("passes: {cse: 3}", HOOK),
        "must be a mapping of the pass's options",
    ),
    Case(IMPORTED, "raise_for(problems)", with_recipe("streams: {max_streams: 0}"), "'max_streams' must be >= 1"),
    Case(PATHS, "raise TooLong", few_steps, "or its values depend on one another, too often"),
    Case(
        EXPRESSIONS,
        "no YAML is known for it",
        script(CONFIG + "torch._dynamo.config.x = 1\n"),
        "no YAML is known for it",
    ),
    Case(EXPRESSIONS, "which configuration", script(CONFIG + "mine.debug.x.y = 1\n"), NOT_READ),
    Case(
        PATHS, "self.unread(s, why)", script(CONFIG + "config.debug.graph_dump = 1\n"), "a whole sub-configuration is"
    ),
    Case(PATHS, "unread(s, why)", script(CONFIG + "config.mode = asked\n"), "'asked' is not a constant of this script"),
    Case(
        MARKS,
        "the level is none",
        script(CONFIG + "logging.getLogger('torchair').setLevel(3)\n"),
        "the level is none",
    ),
    Case(
        CALLED,
        "process_kwargs_options :: which configuration",
        script(CONFIG + "torchair.configs.npugraphex_config._process_kwargs_options(theirs, {'options': {}})\n"),
        NOT_READ,
    ),
    Case(
        CALLED,
        "torchair takes npugraph_ex",
        script(CONFIG + "torch.compile(m, backend='npu', options={'no_such': 1})\n"),
        "torchair takes npugraph_ex's names here",
    ),
    Case(CALLED, "{name}'", script(CONFIG + "torchair.use_everything(1)\n"), "no YAML is known for torchair.use_every"),
    Case(CALLED, "is handed to code", script(CONFIG + "theirs.tune(config)\n"), "a configuration is handed to code"),
    Case(
        MARKS,
        "bound :: some arguments",
        script(CONFIG + "torchair.get_npu_backend(compiler_config=config, x=1)\n"),
        "x of get_npu_backend",
    ),
    Case(
        CALLED,
        "_configuration :: which",
        script(CONFIG + "torchair.get_npu_backend(compiler_config=theirs)\n"),
        NOT_READ,
    ),
    Case(
        MARKS,
        "set_dim_gears :: why",
        script(CONFIG + "def f(x):\n    if theirs:\n        " + GEARS),
        "it depends on a condition",
    ),
    Case(
        MARKS,
        "set_dim_gears :: why",
        script(CONFIG + "torchair.inference.set_dim_gears(f(), {0: [2, 4]})\n"),
        "it is not known which input this is",
    ),
    Case(
        MARKS,
        "set_dim_gears :: why",
        script(CONFIG + "def f(x):\n    torchair.inference.set_dim_gears(x, {0: [1]})\n"),
        "YAML takes 2 to 100 constant sizes",
    ),
    Case(
        CALLED,
        "its backend",
        script(CONFIG + "torch.compile(m, backend='inductor')\n"),
        "its backend, 'inductor', is none",
    ),
    Case(
        CALLED,
        "which backend",
        script(CONFIG + "torch.compile(m, backend=theirs)\n"),
        "it is not known which backend",
    ),
    Case(
        MARKS,
        "bound :: some arguments",
        script(BACKEND + "torch.compile(m, backend=backend, mode='x')\n"),
        "no YAML is known for mode of torch.compile",
    ),
    Case(
        CALLED,
        "{name} is not a constant",
        script(BACKEND + "torch.compile(m, backend=backend, dynamic=theirs)\n"),
        "dynamic is not a constant",
    ),
    Case(
        PATHS,
        "self.unread(s, why)",
        script("import torch\ntorch.compile(m, backend='npu', options=theirs)\n"),
        "its options are not a dict",
    ),
    Case(
        MARKS,
        "_mark :: why",
        script(CONFIG + "def f(x):\n    torch._dynamo.mark_static(x, 0)\n"),
        "YAML marks whole tensors",
    ),
    Case(
        MARKS,
        "_mark :: why",
        script(CONFIG + "def f(x):\n    torch._dynamo.mark_dynamic(x, n)\n"),
        "YAML takes plain dimensions",
    ),
    Case(
        MARKS,
        "_mark :: why",
        script(CONFIG + "def f(x):\n    if theirs:\n        torch._dynamo.mark_static(x)\n"),
        "it depends on a condition",
    ),
    Case(
        MARKS,
        "_mark :: why",
        script(CONFIG + "torch._dynamo.mark_static(f())\n"),
        "it is not known which input this is",
    ),
    Case(
        MARKS,
        "only turn",
        script(CONFIG + "torch._logging.set_logs(graph_code=False)\n"),
        "YAML can only turn graph_code on",
    ),
    Case(
        MARKS,
        "set_dim_gears :: why",
        script(
            BACKEND
            + "torch.compile(m, backend=backend, dynamic=True)\n"
            + "def f(x):\n    torchair.inference.set_dim_gears(x, {0: [1, 2, 4]})\n"
        ),
        "torch makes a size of 1 a constant",
    ),
    Case(
        CALLED,
        "_configuration :: which",
        script(CONFIG + CACHED.replace("=config", "=theirs") + ")\n"),
        NOT_READ,
    ),
    Case(
        MARKS,
        "bound :: some arguments",
        script(CONFIG + CACHED + ", tp_rank=1)\n"),
        "tp_rank of cache_compile",
    ),
    Case(CALLED, "as a whole", script(CONFIG + CACHED + ", fullgraph=False)\n"), "takes the graph as a whole"),
    Case(
        CALLED,
        "compile_fx :: unread(e, why)",
        script("import torch\ntorch.npu.npugraph_ex.compile_fx(gm, inputs, {})\n"),
        "the graph is traced elsewhere",
    ),
    Case(CALLED, "read as if", script(CONFIG + "if theirs:\n    " + CACHED + ")\n"), "it depends on a condition"),
    Case(
        CALLED,
        "{name}'",
        script(CONFIG + "torchair.register_replacement(a, b)\n"),
        "torchair.register_replacement(a, b): a replacement is Python",
    ),
    Case(
        CALLED,
        "{name}'",
        script(CONFIG + "torch.npu.set_compile_mode(jit_compile=True)\n"),
        "set_compile_mode(jit_compile=True): it is about operators outside of a graph",
    ),
    Case(
        READER,
        "ENVIRONMENT",
        script(CONFIG + "import os\nos.environ['HCCL_BUFFSIZE'] = '1'\n"),
        "YAML sets no environment",
    ),
    Case(
        PYTHON,
        "option's name",
        script(CONFIG + "setattr(config, name, 1)\n"),
        "the option's name is not a constant",
    ),
    Case(
        PYTHON,
        "a number that",
        script(CONFIG + "config.debug.aclgraph.static_capture_size_limit = (2 ** 64) ** 64 - (2 ** 64) ** 64 + 8\n"),
        "its value is not a constant",
    ),
    Case(
        PYTHON,
        "a text that",
        script(CONFIG + "config.debug.graph_dump.path = 'abc' * 60 * 60\n"),
        "its value is not a constant",
    ),
    Case(
        PYTHON,
        "a factor that",
        script(CONFIG + "config.debug.aclgraph.static_capture_size_limit = 2 ** 65 - 2 ** 65 + 8\n"),
        "its value is not a constant",
    ),
    Case(OPTIONS, "has no such option", script(CONFIG + "config.debug.none = 1\n"), "has no such option"),
    Case(OPTIONS, "has no place in YAML", option("post_grad_custom_pre_pass", 1), "it has no place in YAML"),
    Case(OPTIONS, "has none of the options", lambda folder: of_config(SimpleNamespace()), "has none of the options"),
    Case(OPTIONS, "map(str, refused)", lambda folder: of_config(HOOKED), "post_grad_custom_pre_pass = "),
)
