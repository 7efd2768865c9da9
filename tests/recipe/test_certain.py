"""What a script sets on some of its paths only is not stated; what it sets on all of them is."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from npucompose.cli import main
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.recipe import Imported, import_script

HEAD = "import functools, torch, torchair\nconfig = torchair.CompilerConfig()\n"
COMPILES = "\nmodel = torch.compile(net, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)\n"
EX = "import functools, torch, torch_npu\n"


def of_options(lines: str) -> Imported:
    """A script that makes `options` for npugraph_ex."""
    return import_script(f"{EX}{dedent(lines)}\ntorch.compile(net, backend='npugraph_ex', options=options)\n")


def of_config(lines: str) -> Imported:
    return import_script(f"{HEAD}{dedent(lines)}{COMPILES}")


def ex(found: Imported) -> dict[str, Any]:
    return dict(found.tree.get("compiler", {}).get("npugraph_ex", {}))


def mode(found: Imported) -> str | None:
    return found.tree.get("mode", {}).get("name")


def listed(found: Imported) -> str:
    return "\n".join([*found.notes, *map(str, found.unread)])


# Conditions.


@pytest.mark.parametrize(
    "lines",
    [
        """
        if a:
            options = {"clone_output": True, "capture_limit": 3}
        else:
            options = {"clone_output": False, "capture_limit": 3}
        """,
        """
        options = {"clone_output": True, "capture_limit": 3}
        if a:
            options = {"clone_output": False, "capture_limit": 3}
        """,
        """
        options = {"clone_output": True, "capture_limit": 3}
        if a:
            options["clone_output"] = False
        """,
        """
        options = {"clone_output": isinstance(net, torch.nn.Linear), "capture_limit": 3}
        """,
        """
        options = {"clone_output": True, "capture_limit": 3} if a else {"clone_output": False, "capture_limit": 3}
        """,
    ],
)
def test_of_two_dicts_the_options_that_they_share_are_stated(lines: str) -> None:
    found = of_options(lines)
    assert ex(found) == {"capture_limit": 3}
    assert "clone_output" in listed(found)


def test_values_that_compete_are_listed_with_their_lines_and_the_condition() -> None:
    found = of_config("if args.fast:\n    config.mode = 'reduce-overhead'\nelse:\n    config.mode = 'max-autotune'")
    assert mode(found) is None
    assert [(one.line, one.why) for one in found.unread] == [
        (4, "it depends on a condition (line 3: args.fast), against 'max-autotune' (line 6)"),
        (6, "it depends on a condition (line 3: args.fast), against 'reduce-overhead' (line 4)"),
    ]
    assert "override /mode" not in found.yaml()
    assert "# not read: line 4: config.mode = 'reduce-overhead': it depends on a condition" in found.yaml()


def test_what_both_branches_set_alike_is_certain() -> None:
    found = of_config("if a:\n    config.mode = 'reduce-overhead'\nelse:\n    config.mode = 'reduce-overhead'")
    assert (mode(found), found.unread) == ("reduce-overhead", ())


def test_of_two_backends_the_compilations_are_numbered() -> None:
    script = f"""{HEAD}
config.debug.run_eagerly = True
backend = "npugraph_ex" if a else torchair.get_npu_backend(compiler_config=config)
torch.compile(net, backend=backend, dynamic=False)
"""
    found = import_script(script)
    assert mode(found) is None
    assert "compiler" not in found.tree
    assert found.tree["shapes"]["dynamic"] is False
    assert "of 2 compilations" in listed(found)
    assert [mode(import_script(script, compilation=number)) for number in (1, 2)] == ["npugraph_ex", "max-autotune"]


@pytest.mark.parametrize(
    "branch",
    [
        "if args.fast:\n    self.mode = 'reduce-overhead'",
        "if isinstance(args, Fast):\n    self.mode = 'reduce-overhead'",
    ],
)
def test_an_attribute_that_a_condition_sets_is_not_certain(branch: str) -> None:
    body = "\n".join(f"        {line}" for line in ["self.mode = 'max-autotune'", *branch.splitlines()])
    script = f"class Runner:\n    def __init__(self, args):\n{body}\nconfig.mode = Runner(args).mode"
    found = of_config(script)
    assert mode(found) is None
    assert "'reduce-overhead' (line 7) or 'max-autotune' (line 5)" in listed(found)


# Order.


def test_nothing_behind_a_return_that_is_taken_is_read() -> None:
    found = of_config(
        "def tune():\n    config.mode = 'reduce-overhead'\n    return\n    config.mode = 'max-autotune'\ntune()"
    )
    assert (mode(found), found.unread) == ("reduce-overhead", ())


def test_what_follows_a_return_that_may_be_taken_is_not_certain() -> None:
    found = of_config("def tune():\n    if a:\n        return\n    config.mode = 'reduce-overhead'\ntune()")
    assert mode(found) is None
    assert "line 6: config.mode = 'reduce-overhead': it depends on a condition (line 4: a), against the def" in listed(
        found
    )


SETTER = "MODE = 'max-autotune'\ndef set_():\n    global MODE\n    MODE = 'reduce-overhead'\n"
INSTANCES = "class Settings:\n    mode = 'max-autotune'\none, other = Settings(), Settings()\n"


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (f"{SETTER}set_()\nconfig.mode = MODE", "reduce-overhead"),
        (f"{SETTER}register(set_)\nconfig.mode = MODE", None),
        (f"{INSTANCES}one.mode = 'reduce-overhead'\nconfig.mode = one.mode", "reduce-overhead"),
        (f"{INSTANCES}other.mode = 'reduce-overhead'\nconfig.mode = one.mode", "max-autotune"),
        (f"{INSTANCES}type(other).mode = 'reduce-overhead'\nconfig.mode = one.mode", "reduce-overhead"),
        (f"{INSTANCES}other.__class__.mode = 'reduce-overhead'\nconfig.mode = one.mode", "reduce-overhead"),
        (f"{INSTANCES}if a: Settings.mode = 'reduce-overhead'\nconfig.mode = one.mode", None),
        ("MODE = 'max-autotune'\nfrom settings import *\nconfig.mode = MODE", None),
        ("MODE = 'max-autotune'\nexec(text)\nconfig.mode = MODE", None),
        ("modes = ['max-autotune']\nmodes.append('reduce-overhead')\nconfig.mode = modes[-1]", "reduce-overhead"),
        ("modes = ['max-autotune', 'reduce-overhead']\nmodes.reverse()\nconfig.mode = modes[0]", None),
        ("config.mode = 'reduce-overhead'\ntune(config)", None),
        ("tune(config)\nconfig.mode = 'reduce-overhead'", "reduce-overhead"),
        ("config.mode = 'reduce-overhead'\nholder = Holder(config)\nholder.config.mode = 'max-autotune'", None),
        ("for mode in modes:\n    config.mode = mode", None),
        ("while a:\n    config.mode = 'reduce-overhead'", None),
        ("try:\n    config.mode = 'reduce-overhead'\n    load()\nexcept OSError:\n    config.mode = MODE", None),
        ("try:\n    import torch_npu\nexcept ImportError:\n    raise SystemExit\nconfig.mode = 'reduce-overhead'",
         "reduce-overhead"),
        ("for mode in ('max-autotune', 'reduce-overhead'):\n    config.mode = mode", "reduce-overhead"),
    ],
)  # fmt: skip
def test_order_decides_and_what_it_does_not_decide_is_not_stated(lines: str, wanted: str | None) -> None:
    found = of_config(lines)
    assert mode(found) == wanted, listed(found)
    assert wanted is not None or listed(found)


def test_a_mode_that_is_set_after_the_model_is_compiled_competes() -> None:
    """TorchAir reads the object when the model is called first."""
    found = import_script(f"{HEAD}config.mode = 'reduce-overhead'{COMPILES}config.mode = 'max-autotune'\n")
    assert mode(found) is None
    assert "it may be set after the model is compiled" in listed(found)


def test_a_dict_that_is_changed_after_the_model_is_compiled_competes() -> None:
    """torch.compile keeps the dict, and reads it when the model is called first."""
    script = f"{EX}options = {{'clone_output': True, 'capture_limit': 3}}\n"
    script += "torch.compile(net, backend='npugraph_ex', options=options)\noptions.pop('clone_output')\n"
    found = import_script(script)
    assert ex(found) == {"capture_limit": 3}
    assert "clone_output" in listed(found)


@pytest.mark.parametrize("changed", ["clone(config)", "wrap(config).config", "choose([config])"])
def test_what_code_outside_of_the_script_makes_of_a_configuration_is_not_known(changed: str) -> None:
    found = import_script(
        f"{HEAD}config.mode = 'reduce-overhead'\nother = {changed}\n"
        "torch.compile(net, backend=torchair.get_npu_backend(compiler_config=other), dynamic=True)\n"
    )
    assert mode(found) is None
    assert "it is not known which configuration this is" in listed(found)
    assert "dynamic" not in found.tree["shapes"]


def test_a_deleted_option_is_not_stated() -> None:
    found = of_options("options = {'clone_output': True, 'capture_limit': 3}\ndel options['capture_limit']")
    assert ex(found) == {"clone_output": True}
    found = of_options("options = {'clone_output': True}\nif a:\n    del options['clone_output']")
    assert ex(found) == {}
    assert "clone_output" in listed(found)


def test_a_partial_takes_its_keywords_from_both_calls() -> None:
    found = import_script(f"{HEAD}b = torchair.get_npu_backend(compiler_config=config)\n"
                          "functools.partial(torch.compile, backend=b)(net, dynamic=False)\n")  # fmt: skip
    assert found.tree["shapes"]["dynamic"] is False
    unused = import_script(f"{HEAD}b = torchair.get_npu_backend(compiler_config=config)\n"
                           "make = functools.partial(torch.compile, backend=b, dynamic=True)\n")  # fmt: skip
    assert unused.tree["shapes"]["dynamic"] is True


@pytest.mark.parametrize(
    "where",
    [
        "yield {}",
        "x = [{}]",
        "f = lambda: {}",
        "return {}",
        "print({})",
        "x = await {}",
        "match x:\n        case y if {}: pass",
    ],
)
def test_a_compilation_is_seen_wherever_it_stands(where: str) -> None:
    call = where.format("torch.compile(net, backend='npugraph_ex', dynamic=False)")
    found = import_script(
        f"{EX}async def make():\n    {call}\n" if "await" in where else f"{EX}def make():\n    {call}\n"
    )
    assert mode(found) == "npugraph_ex"


# Forms that were not found.


def test_the_vendors_documented_form_sets_the_value_of_an_option() -> None:
    found = of_config("config.debug.run_eagerly.value = True\nconfig.mode.value = 'reduce-overhead'")
    assert found.tree["compiler"] == {"debug": {"run_eagerly": True}}
    assert (mode(found), found.unread) == ("reduce-overhead", ())


def test_names_that_a_function_of_the_script_returns_are_followed() -> None:
    found = import_script(
        dedent(
            """
            import torch
            def helper():
                import torchair
                from torchair import CompilerConfig
                return torchair, CompilerConfig
            torchair, CompilerConfig = helper()
            config = CompilerConfig()
            config.mode = "reduce-overhead"
            torch.compile(net, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
            """
        )
    )
    assert (mode(found), found.unread) == ("reduce-overhead", ())


def test_names_that_a_function_of_others_returns_are_named() -> None:
    script = "from mine import helper\ntorchair, CompilerConfig = helper()\nconfig = CompilerConfig()\n"
    with pytest.raises(
        ConfigError, match=r"line 3: CompilerConfig\(\): it is not known where CompilerConfig comes from"
    ):
        import_script(script)


def test_a_tensor_of_the_script_is_marked_by_its_name() -> None:
    found = of_config("kv = torch.zeros(3)\ntorch._dynamo.mark_static(kv)")
    assert found.tree["shapes"]["mark_static"] == ["kv"]


def test_a_script_that_exports_alone_is_told_what_was_found() -> None:
    with pytest.raises(ConfigError, match=r"line 2: torchair.dynamo_export\(model, x\): no YAML is known for torchair"):
        import_script("import torchair\ntorchair.dynamo_export(model, x)\n")


# What a person may assume.

TWO_WAYS = f"{HEAD}if args.fast and not debug:\n    config.mode = 'reduce-overhead'{COMPILES}"


@pytest.mark.parametrize(
    ("assume", "wanted"),
    [
        (("args.fast=True", "debug=False"), "reduce-overhead"),
        (("args.fast=False",), "max-autotune"),
        (("args.fast and not debug=True",), "reduce-overhead"),
        (("args.fast  and  not debug = True",), "reduce-overhead"),
        (("args.fast=True",), None),
    ],
)
def test_a_condition_that_is_assumed_is_read_and_written_down(assume: tuple[str, ...], wanted: str | None) -> None:
    found = import_script(TWO_WAYS, assume=assume)
    assert mode(found) == wanted
    assert [note for note in found.notes if note.startswith("assumed: ")] == [
        f"assumed: {one.replace('  ', ' ').replace(' = ', '=').replace('not debug', '(not debug)')} (line 3)"
        for one in assume
    ]
    assert "# note: assumed: args.fast" in found.yaml()


@pytest.mark.parametrize("also", ["", "config.experimental_config.frozen_parameter = True\n"])
def test_a_file_that_states_no_mode_is_read_with_the_one_that_is_chosen(also: str, tmp_path: Path) -> None:
    found = of_config(f"{also}config.mode = 'max-autotune' if a else 'reduce-overhead'")
    assert mode(found) is None
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(found.yaml())
    read = compose(["experiment=mine", "mode=max-autotune"], config_dirs=[str(tmp_path)]).tree
    assert read["mode"]["name"] == "max-autotune"
    assert read["compiler"]["experimental_config"]["frozen_parameter"] is bool(also)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "args.fats=True",
            "does not depend on it. Conditions that are not certain: args.fast (line 3), args.fast and (not debug)",
        ),
        ("args.fast", "a condition or a name of the script, =, and a constant are wanted"),
        ("args.fast=maybe", "a condition or a name of the script, =, and a constant are wanted"),
        ("if=True", "a condition or a name of the script, =, and a constant are wanted"),
        ("=True", "a condition or a name of the script, =, and a constant are wanted"),
    ],
)
def test_an_assumption_that_decides_nothing_is_refused(given: str, words: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "serve.py"
    path.write_text(TWO_WAYS)
    assert main(["recipe", "import", str(path), "--assume", given]) == 2
    said = capsys.readouterr()
    assert (said.out, words in " ".join(said.err.split())) == ("", True), said.err


def test_the_command_takes_several_assumptions(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "serve.py"
    path.write_text(TWO_WAYS)
    assert main(["recipe", "import", str(path), "--assume", "args.fast=True", "--assume", "debug=False"]) == 0
    assert "override /mode: reduce-overhead" in capsys.readouterr().out
    settings = tmp_path / "serve.yaml"
    settings.write_text("exe_mode: ge_graph\n")
    assert main(["recipe", "import", str(settings), "--assume", "a=True"]) == 2
    assert "--assume a=True: it is for scripts" in capsys.readouterr().err


# Bad input.


@pytest.mark.parametrize(
    "script",
    [
        "x = t'{a}'\n",
        "try:\n    pass\nexcept A, B:\n    pass\n",
        "def f(:\n",
        "x = " + "(" * 5_000 + ")" * 5_000,
        "x = " + "-" * 20_000 + "1\n",
        "x = a" + ".b" * 50_000 + "\n",
    ],
)
def test_what_this_python_cannot_read_is_one_sentence(script: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "new.py").write_text(script)
    assert main(["recipe", "import", str(tmp_path / "new.py")]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines()), "Traceback" in said.err) == ("", 1, False)


LONG = {
    "assignments": "config.mode = 'reduce-overhead'\n" * 20_000,
    "conditions": "if a:\n    config.mode = 'reduce-overhead'\n" * 10_000,
    "one condition of many": "if a0:\n    pass\n" + "".join(
        f"elif a{n}:\n    config.debug.run_eagerly = True\n" for n in range(10_000)
    ),
    "functions": "".join(f"def f{n}():\n    config.mode = 'reduce-overhead'\n" for n in range(10_000)),
    "loops": "for x in xs:\n    config.mode = 'reduce-overhead'\n" * 10_000,
    "handlers": "try:\n    config.mode = 'reduce-overhead'\nexcept E:\n    pass\n" * 5_000,
    "returns": "def f():\n" + "    if a:\n        return\n    config.mode = 'reduce-overhead'\n" * 6_000 + "f()\n",
    "compilations": "b = torchair.get_npu_backend(compiler_config=config)\n" + "torch.compile(net, backend=b)\n" * 9_000
    + "config.mode = 'max-autotune'\n" * 9_000,
    "copies": "d = {}\n" + "".join(f"d['k{n}'] = {n}\n" for n in range(9_000)) + "e = dict(d)\n" * 9_000,
    "instances": "class A:\n    pass\n" + "".join(f"a{n} = A()\n" for n in range(20_000)),
    "configurations": "".join(f"c{n} = torchair.CompilerConfig()\n" for n in range(10_000)),
}  # fmt: skip


def read_or_refused(lines: str) -> str | None:
    """The mode, or the sentence with which a script is refused."""
    try:
        return mode(of_config(lines))
    except ConfigError as refused:
        return str(refused)


REFUSED = (
    "the script: its functions call one another, or its values depend on one another, too often: "
    "reading it would not end.",
    "the script: its calls or expressions lie too deep in each other.",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_a_script_of_twenty_thousand_lines_is_read_or_refused(kind: str) -> None:
    wanted = ("reduce-overhead",) if kind == "assignments" else (None, "max-autotune", *REFUSED)
    assert read_or_refused(LONG[kind]) in wanted


CHAIN = "".join(f"def f{n}():\n    f{n + 1}()\n    f{n + 1}()\n" for n in range(40))
LAST = "config.mode = 'reduce-overhead'"
DEEP = {
    "loops": "\n".join([*("    " * n + f"for x{n} in xs:" for n in range(60)), "    " * 60 + LAST]),
    "branches": "\n".join([*("    " * n + f"if a{n}:" for n in range(80)), "    " * 80 + LAST]),
    "calls": f"{CHAIN}def f40(): {LAST}\nf0()",
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_scripts_end(kind: str) -> None:
    assert read_or_refused(DEEP[kind]) in (None, *REFUSED)
