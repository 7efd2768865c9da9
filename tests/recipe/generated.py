"""Scripts drawn from a grammar of conditions, returns, globals, classes, mutations, partials and loops."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from tests.recipe.recording import ASKED

OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "mode": ("max-autotune", "reduce-overhead"),
    "experimental_config.frozen_parameter": (True, False),
    "experimental_config.remove_noop_ops": (True, False),
    "debug.run_eagerly": (True, False),
    "ge_config.oo_level": ("O1", "O3"),
    "ge_config.enable_single_stream": (True, False),
    "debug.aclgraph.static_capture_size_limit": (8, 16, 32),
}
FLAT: Mapping[str, tuple[Any, ...]] = {
    "clone_output": (True, False),
    "clone_input": (True, False),
    "force_eager": (True, False),
    "capture_limit": (3, 5),
}
"""Options of torch.compile(backend="npugraph_ex")."""


@define
class Writer:
    """Draws a script: statements over the names that are there."""

    draw: random.Random
    straight: bool = False
    lines: list[str] = field(factory=list)
    indent: int = 0
    number: int = 0
    deep: int = 0
    names: dict[str, list[str]] = field(factory=lambda: {kind: [] for kind in KINDS})
    in_function: bool = False
    in_loop: bool = False

    def script(self) -> str:
        self.line("import torch, torchair, functools, os")
        self.fresh("config", "torchair.CompilerConfig()")
        self.fresh("flat", self.dict_text())
        self.fresh("value", self.literal("mode"))
        if self.draw.random() < 0.3 and not self.straight:
            self.line("def main():")
            self.in_function = True
            names = {kind: list(found) for kind, found in self.names.items()}
            self.body(self.draw.randint(4, 9))
            self.in_function = False
            self.names = names
            self.line("main()")
        for _ in range(self.draw.randint(6, 14)):
            self.statement()
        self.compile()
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def fresh(self, kind: str, text: str) -> str:
        name = self.new(kind)
        self.line(f"{name} = {text}")
        self.names[kind].append(name)
        return name

    def some(self, kind: str) -> str:
        return self.draw.choice(self.names[kind])

    def body(self, count: int) -> None:
        """Statements of a block; names that it makes are not used outside of it."""
        names = {kind: list(found) for kind, found in self.names.items()}
        self.indent, self.deep = self.indent + 1, self.deep + 1
        begun = len(self.lines)
        for _ in range(count):
            self.statement()
        if len(self.lines) == begun:
            self.line("pass")
        self.indent, self.deep = self.indent - 1, self.deep - 1
        self.names = names

    def condition(self) -> str:
        test = self.draw.choice(ASKED)
        return self.draw.choice((test, test, f"not {test}", f"{test} and {self.draw.choice(ASKED)}", f"{test} or c0"))

    def literal(self, path: str) -> str:
        return repr(self.draw.choice({**OPTIONS, **FLAT}[path]))

    def dict_text(self) -> str:
        keys = self.draw.sample(sorted(FLAT), self.draw.randint(1, 3))
        return "{" + ", ".join(f"{key!r}: {self.literal(key)}" for key in keys) + "}"

    def statement(self) -> None:
        plain = ["option", "option", "option", "alias", "group", "setattr", "value", "item", "update", "compile",
                 "call", "instance", "listed", "partial", "fresh_config", "constant_loop", "vendor_value"]  # fmt: skip
        doubtful = ["branch", "branch", "branch", "loop", "attempt", "define", "class_", "foreign", "delete", "leave",
                    "either", "match", "global_", "append", "generator", "while_", "method", "lambda_", "recursive",
                    "with_", "nested_dict", "comprehension", "swap", "finally_", "augmented"]  # fmt: skip
        kinds = plain if self.straight else plain + doubtful
        chosen = self.draw.choice(kinds if self.deep < 3 else plain)
        getattr(self, chosen)()

    # What straight scripts say, too.

    def option(self) -> None:
        path = self.draw.choice(sorted(OPTIONS))
        value = self.some("value") if path == "mode" and self.draw.random() < 0.5 else self.literal(path)
        self.line(f"{self.some('config')}.{path} = {value}")

    def vendor_value(self) -> None:
        path = self.draw.choice(sorted(OPTIONS))
        self.line(f"{self.some('config')}.{path}.value = {self.literal(path)}")

    def alias(self) -> None:
        self.fresh(kind := self.draw.choice(("config", "flat", "value")), self.some(kind))

    def fresh_config(self) -> None:
        self.fresh("config", "torchair.CompilerConfig()")

    def group(self) -> None:
        name = self.new("group")
        self.line(f"{name} = {self.some('config')}.experimental_config")
        self.line(f"{name}.frozen_parameter = {self.literal('experimental_config.frozen_parameter')}")

    def setattr(self) -> None:
        self.line(f"setattr({self.some('config')}.ge_config, 'oo_level', {self.literal('ge_config.oo_level')})")

    def value(self) -> None:
        name = self.some("value") if self.draw.random() < 0.5 else self.new("value")
        self.line(f"{name} = {self.literal('mode')}")
        if name not in self.names["value"]:
            self.names["value"].append(name)

    def item(self) -> None:
        key = self.draw.choice(sorted(FLAT))
        self.line(f"{self.some('flat')}[{key!r}] = {self.literal(key)}")

    def update(self) -> None:
        self.line(f"{self.some('flat')}.update({self.dict_text()})")

    def compile(self) -> None:
        dynamic = self.draw.choice(
            ("", ", dynamic=True", ", dynamic=False", ", dynamic=c0" if not self.straight else "")
        )
        if self.draw.random() < 0.5:
            self.line(f"torch.compile(m, backend='npugraph_ex', options={self.some('flat')}{dynamic})")
        else:
            config = self.some("config")
            self.line(f"torch.compile(m, backend=torchair.get_npu_backend(compiler_config={config}){dynamic})")

    def call(self) -> None:
        if self.names["tune"]:
            self.line(f"{self.some('tune')}({self.some('config')})")
        elif self.straight:
            self.define()

    def instance(self) -> None:
        if not self.names["class"]:
            self.class_()
        owner = self.some("class")
        made = self.fresh("object", f"{owner}({self.some('config')}, {self.literal('mode')})")
        if self.draw.random() < 0.7:
            self.line(f"{made}.mode = {self.literal('mode')}")
        self.line(f"{made}.apply()")

    def method(self) -> None:
        if self.names["object"]:
            made = self.some("object")
            self.line(self.draw.choice((f"{made}.apply()", f"{made}.mode = {self.literal('mode')}",
                f"{self.some('config')}.mode = {made}.mode", f"{made}.config.debug.run_eagerly = True")))  # fmt: skip

    def listed(self) -> None:
        name = self.fresh("list", f"[{self.literal('mode')}, {self.literal('mode')}]")
        self.line(f"{self.some('config')}.mode = {name}[{self.draw.choice((0, 1, -1))}]")

    def partial(self) -> None:
        name = self.new("partial")
        self.line(f"{name} = functools.partial(torch.compile, backend='npugraph_ex', options={self.some('flat')})")
        if self.draw.random() < 0.7:
            self.line(f"{name}(m, dynamic={self.draw.choice((True, False))})")
        if self.draw.random() < 0.3:
            self.line(f"{name}(m)")

    def constant_loop(self) -> None:
        name = self.new("name")
        self.line(f"for {name} in ('remove_noop_ops', 'frozen_parameter'):")
        self.line(f"    setattr({self.some('config')}.experimental_config, {name}, {self.draw.choice((True, False))})")

    # What makes a value doubtful.

    def branch(self) -> None:
        self.line(f"if {self.condition()}:")
        self.body(self.draw.randint(1, 3))
        if self.draw.random() < 0.3:
            self.line(f"elif {self.condition()}:")
            self.body(self.draw.randint(1, 2))
        if self.draw.random() < 0.5:
            self.line("else:")
            self.body(self.draw.randint(1, 3))

    def loop(self) -> None:
        over = self.draw.choice(
            ("range(count)", "range(count)", "[1, 2]", self.some("list") if self.names["list"] else "[3]")
        )
        self.line(f"for {self.fresh_name('value')} in {over}:")
        held, self.in_loop = self.in_loop, True
        self.body(self.draw.randint(1, 3))
        self.in_loop = held
        if self.draw.random() < 0.2:
            self.line("else:")
            self.body(1)

    def fresh_name(self, kind: str) -> str:
        return self.some(kind) if self.draw.random() < 0.3 else self.new(kind)

    def while_(self) -> None:
        name = self.new("left")
        self.line(f"{name} = count")
        self.line(f"while {name}:")
        self.line(f"    {name} -= 1")
        held, self.in_loop = self.in_loop, True
        self.body(self.draw.randint(1, 3))
        self.in_loop = held

    def attempt(self) -> None:
        self.line("try:")
        self.body(1)
        self.line("    risky()")
        self.body(1)
        self.line(
            self.draw.choice(("except ValueError:", "except Exception as error:", "except (ValueError, TypeError):"))
        )
        self.body(self.draw.randint(1, 2))
        if self.draw.random() < 0.3:
            self.line("else:")
            self.body(1)

    def finally_(self) -> None:
        if not self.in_function:
            return self.attempt()
        self.line("try:")
        self.body(2)
        self.line("finally:")
        self.body(1)
        return None

    def define(self) -> None:
        name = self.new("tune")
        held = self.in_function, self.in_loop, self.names
        self.line(f"def {name}(config, mode={self.literal('mode')}):")
        self.in_function, self.in_loop = True, False
        self.names = {**{k: list(v) for k, v in self.names.items()}, "tune": []}
        self.names["config"].append("config")
        self.names["value"].append("mode")
        self.body(self.draw.randint(2, 4))
        self.line("    config.mode = mode")
        self.line("    return config")
        self.in_function, self.in_loop, self.names = held
        self.names["tune"].append(name)
        if self.draw.random() < 0.6:
            self.fresh("config", f"{name}({self.some('config')}, {self.literal('mode')})")

    def class_(self) -> None:
        name = self.new("Class")
        self.line(f"class {name}:")
        self.line(f"    mode = {self.literal('mode')}")
        self.line("    def __init__(self, config, mode=None):")
        self.line("        self.config = config")
        own = self.draw.choice(("self.mode = mode", f"if {self.condition()}: self.mode = mode", "pass"))
        self.line(f"        {own if not self.straight else 'self.mode = mode'}")
        self.line("    def apply(self):")
        self.line("        self.config.mode = self.mode")
        if not self.straight and self.draw.random() < 0.4:
            self.line("    def change(self):")
            self.line(f"        {name}.mode = {self.literal('mode')}")
            self.line(f"        self.config.debug.run_eagerly = {self.condition()}")
        self.names["class"].append(name)

    def foreign(self) -> None:
        self.line(f"tweak({self.draw.choice((self.some('config'), self.some('flat')))})")

    def delete(self) -> None:
        key, flat = self.draw.choice(sorted(FLAT)), self.some("flat")
        self.line(self.draw.choice((f"{flat}.pop({key!r}, None)", f"if {key!r} in {flat}: del {flat}[{key!r}]",
            f"{flat}.clear()", f"{flat} = dict({flat}, {key}={self.literal(key)})")))  # fmt: skip

    def leave(self) -> None:
        act = "return" if self.in_function and not self.in_loop else self.draw.choice(("break", "continue"))
        if self.in_function or self.in_loop:
            self.line(f"if {self.condition()}:")
            if self.draw.random() < 0.5:
                self.body(1)
            self.line(f"    {act}")
        else:
            self.line(f"if {self.condition()}: raise SystemExit")

    def either(self) -> None:
        kind = self.draw.choice(("value", "config", "flat"))
        self.fresh(kind, f"{self.some(kind)} if {self.condition()} else {self.some(kind)}")

    def match(self) -> None:
        self.line("match count:")
        self.line("    case 0:")
        self.indent += 1
        self.body(1)
        self.line(self.draw.choice(("case 1 | 2:", "case _:")))
        self.body(1)
        self.indent -= 1

    def global_(self) -> None:
        name, setter = self.new("value"), self.new("setter")
        self.line(f"{name} = {self.literal('mode')}")
        if not self.in_function:
            self.line(f"def {setter}():")
            self.line(f"    global {name}")
            self.line(f"    {name} = {self.literal('mode')}")
            self.line(
                self.draw.choice((f"if {self.condition()}: {setter}()", f"{setter}()", f"tweak({setter})", "pass"))
            )
        self.names["value"].append(name)

    def append(self) -> None:
        if self.names["list"]:
            name, mode = self.some("list"), self.literal("mode")
            act = self.draw.choice((f"{name}.append({mode})", f"{name}.insert(0, {mode})", f"{name}.reverse()",
                f"{name} += [{mode}]", f"del {name}[0]", f"{name}[0] = {mode}", f"tweak({name})"))  # fmt: skip
            self.line(act)
            self.line(f"{self.some('config')}.mode = {name}[{self.draw.choice((0, 1, -1))}]")

    def generator(self) -> None:
        name = self.new("yielded")
        self.line(f"def {name}(config):")
        self.line(f"    config.mode = {self.literal('mode')}")
        self.line("    yield torch.compile(m, backend=torchair.get_npu_backend(compiler_config=config))")
        call = self.draw.choice((f"list({name}({self.some('config')}))", f"{name}({self.some('config')})"))
        self.line(call)

    def lambda_(self) -> None:
        name = self.new("function")
        self.line(f"{name} = lambda o: torch.compile(m, backend='npugraph_ex', options=o)")
        self.line(
            self.draw.choice((f"{name}({self.some('flat')})", f"if {self.condition()}: {name}({self.some('flat')})"))
        )

    def recursive(self) -> None:
        name = self.new("again")
        self.line(f"def {name}(config, left):")
        self.line(f"    config.mode = {self.literal('mode')}")
        self.line(f"    if left: {name}(config, left - 1)")
        if self.draw.random() < 0.5:
            self.line(f"    config.debug.run_eagerly = {self.draw.choice(('True', 'left > 0'))}")
        self.line(f"{name}({self.some('config')}, count)")

    def with_(self) -> None:
        self.line("import contextlib")
        self.line("with contextlib.suppress(ValueError):")
        self.body(1)
        self.line("    risky()")
        self.body(1)

    def nested_dict(self) -> None:
        name = self.new("settings")
        self.line(f"{name} = {{'a': {{'mode': {self.literal('mode')}}}}}")
        self.line(f"inner = {name}['a']")
        self.line(
            self.draw.choice(
                (f"inner['mode'] = {self.literal('mode')}", f"if {self.condition()}: inner['mode'] = 'max-autotune'")
            )
        )
        self.line(f"{self.some('config')}.mode = {name}['a']['mode']")

    def comprehension(self) -> None:
        self.line(f"[torch.compile(m, backend='npugraph_ex', options={self.some('flat')}) for _ in range(count)]")

    def swap(self) -> None:
        one, other = self.some("config"), self.some("config")
        self.line(f"{one}, {other} = {other}, {one}")

    def augmented(self) -> None:
        flat = self.some("flat")
        self.line(f"{flat} |= {self.dict_text()}")


KINDS = ("config", "flat", "value", "tune", "class", "object", "list")


def script(seed: int, *, straight: bool = False) -> str:
    return Writer(random.Random(seed), straight=straight).script()
