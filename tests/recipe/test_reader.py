"""What the reader makes of a script, fact by fact; the bounds of its work; arithmetic of constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import dedent, indent
from typing import Any

import pytest

from npucompose.recipe.compilations import Facts, TooLong
from npucompose.recipe.reader import MOST_STEPS, Reader, reading
from npucompose.recipe.values import MOST_ITEMS, Cells, Config, Const, Scope, Unknown, Value
from npucompose.recipe.vendor_options import filter_source
from npucompose.vendor.versions import REFERENCE
from tests.recipe.scripts import CONFIG, SCRIPTS


def read(tree: ast.Module, torch_npu: str = REFERENCE) -> Facts:
    return reading(tree, torch_npu).facts


def whole(script: str) -> str:
    """A script of the table, with what it begins with."""
    text = dedent(script).strip().replace("FILTER", filter_source())
    return text.replace("…", f"import torch, torchair, torch_npu, npugraph_ex\n{CONFIG}") + "\n"


def told(facts: Facts) -> Iterator[str]:
    """Every fact, one a line; configurations by their number."""
    number = {id(config): k for k, config in enumerate(facts.configs)}

    def of(config: Config) -> str:
        return f"configuration {number.get(id(config), 'unknown')}"

    for config in facts.configs:
        hooks = {name: ast.unparse(node) for name, node in config.hooks.items()}
        said = f"{of(config)}: {config.package} of line {config.line}, mode {config.mode}, {config.options}"
        yield said + (f", hooks {hooks}" if hooks else "")
    for backend in facts.backends:
        yield f"backend of {of(backend.config)}"
    for one in facts.compiles:
        yield f"line {one.node.lineno} compiles {of(one.config)}, dynamic={one.dynamic}, fullgraph={one.fullgraph}"
    for argument, dims in facts.marks:
        yield f"mark {argument}: {'static' if dims is None else f'dynamic {dims}'}"
    for argument, gears in facts.gears:
        yield f"gears {argument}: {dict(gears)}"
    for name, level in facts.levels.items():
        yield f"level of '{name}': {level}"
    for artifact in facts.artifacts:
        yield f"artifact {artifact}"
    for unread in facts.unread:
        yield f"not read: {unread}"


def test_what_a_script_says_is_read_like_this(golden: Any) -> None:
    parts = []
    for about, script in SCRIPTS.items():
        text = whole(script)
        shown = text.replace(filter_source(), "# the filter of nodes")
        facts = "\n".join(told(read(ast.parse(text))))
        parts.append(f"# {about}\n{indent(shown, '    ')}{facts}\n")
    golden("recipe/read.txt", "\n\n".join(parts))


def test_options_are_those_of_the_version_that_is_asked_for() -> None:
    script = ast.parse(whole("…\nconfig.ge_config.oo_level = 'O1'\nconfig.ge_config.multistream_parallel_mode = 'cv'"))
    assert [(u.line, u.code) for u in read(script, "2.6.0.post5").unread] == [
        (4, "config.ge_config.multistream_parallel_mode = 'cv'")
    ]
    assert read(script).unread == []


def config_with(lines: str) -> Config:
    return read(ast.parse(whole(f"…\n{lines}"))).configs[0]


def test_a_constant_may_hold_ten_thousand_values_and_no_more() -> None:
    path = "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range"
    for count in (MOST_ITEMS - 1, MOST_ITEMS):
        facts = read(ast.parse(whole(f"…\nconfig.{path} = {[2] * count}")))
        assert [u.why for u in facts.unread] == (["it holds too many values"] if count == MOST_ITEMS else [])
        assert (path in facts.configs[0].values) == (count < MOST_ITEMS)


@pytest.mark.parametrize(("value", "steps"), [("1", 0), ("[1, 2]", 7), ("[[1], [2, 3]]", 18)])
def test_the_values_of_a_list_cost_steps(value: str, steps: int) -> None:
    def left(text: str) -> int:
        reader = Reader(REFERENCE, 1000)
        reader.block(ast.parse(f"import torchair\nc = torchair.CompilerConfig()\nc.x = {text}").body, scope())
        return reader.steps_left

    assert left("None") - left(value) == steps


def test_a_reader_ends_at_its_last_step() -> None:
    reader = Reader(REFERENCE, 3)
    reader.step(2)
    reader.step()
    with pytest.raises(TooLong):
        reader.step()


def test_a_text_costs_the_more_steps_the_longer_it_is() -> None:
    reader = Reader(REFERENCE, 100)
    assert reader.code(ast.parse("'" + "a" * 38 + "'").body[0]) == "'" + "a" * 38 + "'"
    assert reader.steps_left == 100 - 3


def test_the_work_that_is_allowed_grows_with_the_script() -> None:
    lines = MOST_STEPS // 2
    tree = ast.parse("pass\n" * 10)
    tree.body = tree.body * (lines // 10)
    assert read(tree) == Facts()


def test_calls_are_followed_twenty_deep() -> None:
    """The last of so many functions sets the option; the script itself is no call."""
    for depth in (20, 21):
        calls = "".join(f"def f{n}(c):\n    f{n - 1}(c)\n" for n in range(2, depth + 1))
        script = f"…\ndef f1(c):\n    c.debug.run_eagerly = True\n{calls}f{depth}(config)"
        assert bool(config_with(script.removeprefix("…\n")).options) == (depth == 20)


def scope() -> Scope:
    return Scope(names=Cells(bound=True))


def computed(e: ast.expr) -> Value:
    """What the reader makes of an expression."""
    return Reader(REFERENCE, 10_000).value(e, scope())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 ** 20", 2**20),
        ("-3", -3),
        ("+3", 3),
        ("not 0", True),
        ("7 - 2 - 1", 4),
        ("2 * 3 + 1", 7),
        ("1 << 4", 16),
        ("'a' + 'b'", "ab"),
        ("'ab' * 2", "abab"),
        ("1.5 * 2", 3.0),
        ("b'a' + b'b'", b"ab"),
        ("'a' * 64", "a" * 64),
        ("2 ** 64", 2**64),
        ("2 * -64", -128),
        ("1 << 64", 2**64),
        ("(1 << 64) + 0", 2**64),
    ],
)
def test_arithmetic_of_constants_is_known(text: str, value: Any) -> None:
    found = computed(ast.parse(text, mode="eval").body)
    assert found == Const(value=value)
    assert isinstance(found, Const)
    assert type(found.value) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "x + 1",
        "f()",
        "[1] * 2",
        "1 if a else 2",
        "~1",
        "1 / 2",
        "7 // 2",
        "1 % 2",
        "1 + 'a'",
        "-'a'",
        "0 ** -1",
        "2 ** 65",
        "'a' * 65",
        "2 ** -65",
        "1 << -1",
    ],
)
def test_what_is_computed_otherwise_is_not_known(text: str) -> None:
    assert isinstance(computed(ast.parse(text, mode="eval").body), Unknown)


@pytest.mark.parametrize(
    ("bits", "known"), [(4096, True), (4097, False)], ids=["as long as may be", "longer than may be"]
)
def test_numbers_and_texts_are_bounded(bits: int, known: bool) -> None:
    number = ast.BinOp(ast.Constant(2 ** (bits - 1) - 1), ast.Add(), ast.Constant(2 ** (bits - 1) - 1))
    grown = ast.BinOp(ast.Constant(2 ** (bits - 2)), ast.Mult(), ast.Constant(2))
    text = ast.BinOp(ast.Constant("a" * (bits - 1)), ast.Add(), ast.Constant("b"))
    raw = ast.BinOp(ast.Constant(b"a" * (bits - 1)), ast.Add(), ast.Constant(b"b"))
    for expression in (number, grown, text, raw):
        assert isinstance(computed(expression), Const) == known
    given = ast.BinOp(ast.Constant("a" * bits), ast.Add(), ast.Constant(""))
    swapped = ast.BinOp(ast.Constant(""), ast.Add(), ast.Constant("a" * bits))
    assert isinstance(computed(given), Const) == isinstance(computed(swapped), Const) == known


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ('"" or "reduce-overhead"', "reduce-overhead"),
        ('"max-autotune" or "reduce-overhead"', "max-autotune"),
        ('"max-autotune" and "reduce-overhead"', "reduce-overhead"),
        ('1 and "max-autotune" and "reduce-overhead"', "reduce-overhead"),
        ('(0 and "max-autotune") or "reduce-overhead"', "reduce-overhead"),
        ('0 or "" or "reduce-overhead"', "reduce-overhead"),
    ],
)
def test_and_and_or_have_the_value_that_python_gives_them(text: str, mode: str) -> None:
    assert eval(text) == mode
    facts = read(ast.parse(f"import torchair\nconfig = torchair.CompilerConfig()\nconfig.mode = {text}\n"))
    assert [config.mode for config in facts.configs] == [mode]


def test_a_class_of_the_script_holds_what_its_instance_is_made_with() -> None:
    facts = read(
        ast.parse(
            dedent(
                """
                import torchair
                from dataclasses import dataclass
                @dataclass
                class Settings:
                    mode: str = "max-autotune"
                settings = Settings(mode="reduce-overhead")
                config = torchair.CompilerConfig()
                config.mode = settings.mode
                """
            )
        )
    )
    assert [config.mode for config in facts.configs] == ["reduce-overhead"]


@pytest.mark.parametrize(
    ("given", "unset"),
    [('"MODE", "reduce-overhead"', " (where it is unset: 'reduce-overhead')"), ('"MODE"', ""), ('"MODE", other()', "")],
)
def test_a_value_of_the_environment_is_said_with_what_holds_without_it(given: str, unset: str) -> None:
    facts = read(
        ast.parse(f"import os, torchair\nconfig = torchair.CompilerConfig()\nconfig.mode = os.getenv({given})\n")
    )
    assert [one.why for one in facts.unread] == [
        f"it is not constant: it comes from the environment variable MODE{unset}"
    ]


def test_a_variable_of_a_comprehension_is_not_the_one_outside() -> None:
    backend = "backend = torchair.get_npu_backend(compiler_config=config)"
    made = "made = [torch.compile(m, backend=backend, dynamic=dynamic) for m, dynamic in models]"
    facts = read(ast.parse(whole(f"…\n{backend}\ndynamic = True\n{made}")))
    (compiled,) = facts.compiles
    assert isinstance(compiled.dynamic, Unknown)
    assert any("dynamic is not a constant: it is one of several values" in str(one) for one in facts.unread)
