"""A model that a user's own module makes. The only model that imports code a configuration names: it needs trust.

What its factory takes is its signature, read in its file without running it, or asked of the function itself.
"""

from __future__ import annotations

import ast
import copy
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import read_text
from npucompose.models.base import STEPS, Built, Inputs, Model, generator, inference, seeded
from npucompose.models.inputs import (
    InputSpec,
    bind,
    bound,
    call_problems,
    check_file,
    from_file,
    from_table,
    mapped,
    shown_signature,
    signature_of,
)
from npucompose.registry import UserFunction, working_directory_importable
from npucompose.table.options import LONGEST, NAME, option

if TYPE_CHECKING:
    import torch
    from torch import nn


PLAIN = (bool, int, float, str, type(None))
SEED = "seed"
"""The parameter that is given the experiment's seed, where no argument of that name is."""


@frozen
class CodeDefault:
    """A default that is no plain value, as its file has it: `torch.float32`."""

    text: str

    def __repr__(self) -> str:
        return self.text


@frozen
class Declared:
    """A factory's signature and the line that says it: `net.py:14`."""

    signature: Signature
    place: str

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Why the factory cannot be called with these arguments, as clauses; the seed is given where it has one."""
        given = {**({SEED: 0} if takes_seed(self.signature) else {}), **arguments}
        return list(call_problems(self.signature, given))

    def defaults(self) -> dict[str, Any]:
        """{parameter: default} of those whose default is null, true or false, a number or text."""
        parameters = self.signature.parameters.items()
        return {name: p.default for name, p in parameters if type(p.default) in PLAIN and name != SEED}

    def __str__(self) -> str:
        return f"{shown_signature(self.signature)}, {self.place}"


def takes_seed(signature: Signature) -> bool:
    parameter = signature.parameters.get(SEED)
    return parameter is not None and parameter.kind is not Parameter.POSITIONAL_ONLY


def live(found: Callable[..., Any]) -> Declared | None:
    """Of a function or class that was imported; None where Python does not know its signature."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return None
    place = "line not known"
    with suppress(OSError, TypeError):
        function = inspect.unwrap(found)
        line = inspect.getsourcelines(function)[1]
        place = f"{_near(inspect.getsourcefile(function) or '')}:{line}"
    return Declared(signature, place)


def read(file: str, name: str) -> Declared | None:
    """Of a function or class at the top of a Python file, which is parsed and not run.

    None where the text does not decide it: decorated, bound twice, imported from elsewhere, an inherited `__init__`.
    """
    try:
        tree = ast.parse(read_text(Path(file), named=True))
    except (SyntaxError, ValueError, RecursionError, MemoryError, ConfigError):
        return None  # importing it will say why
    if list(_bound(tree)).count(name) != 1:
        return None
    node = next((one for one in tree.body if getattr(one, "name", None) == name), None)
    if isinstance(node, ast.ClassDef):
        return _of_class(node, file)
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        return Declared(_signature(node.args), f"{_near(file)}:{node.lineno}")
    return None


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every name that something in the file binds, in whatever scope; `*` for what an import of all might bind."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _of_class(node: ast.ClassDef, file: str) -> Declared | None:
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")]
    if node.decorator_list or node.keywords or len(made) != 1 or made[0].decorator_list:
        return None
    signature = _signature(made[0].args)
    itself, *rest = signature.parameters.values() or (None,)
    if itself is None or itself.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return None
    return Declared(Signature(rest), f"{_near(file)}:{made[0].lineno}")  # pyright: ignore[reportArgumentType]


def _signature(written: ast.arguments) -> Signature:
    positional = [*written.posonlyargs, *written.args]
    defaults = [None] * (len(positional) - len(written.defaults)) + [*written.defaults]
    kinds = [Parameter.POSITIONAL_ONLY] * len(written.posonlyargs)
    kinds += [Parameter.POSITIONAL_OR_KEYWORD] * len(written.args)
    found = [_parameter(*one) for one in zip(positional, kinds, defaults, strict=True)]
    if written.vararg is not None:
        found.append(_parameter(written.vararg, Parameter.VAR_POSITIONAL, None))
    named = zip(written.kwonlyargs, written.kw_defaults, strict=True)
    found += [_parameter(one, Parameter.KEYWORD_ONLY, default) for one, default in named]
    if written.kwarg is not None:
        found.append(_parameter(written.kwarg, Parameter.VAR_KEYWORD, None))
    return Signature(found)


def _parameter(written: ast.arg, kind: Any, default: ast.expr | None) -> Parameter:
    return Parameter(written.arg, kind, default=Parameter.empty if default is None else _value(default))


def _value(written: ast.expr) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return CodeDefault(ast.unparse(written))


def _near(file: str) -> str:
    """As a person would name it from here."""
    here = os.path.relpath(file)
    return file if here.startswith("..") else here


@frozen(kw_only=True)
class Python(Model):
    """`factory: mymodel:make` is make of mymodel.py, found in the working directory or on sys.path.

    It is a function or a class, called with `args`, or a module as it stands. What a call gives is a Built, a module
    with its inputs `(module, {parameter of forward: example value})`, or a module alone, whose inputs then come from
    `inputs` or `inputs_file`; these also take the place of a factory's own. The factory runs with all seeds set; one
    that has a parameter `seed` is given the seed. Inputs of step n > 0 from a dict or a file are the same with the
    elements of each floating-point tensor in another order; integers and masks may mean places, and stay.
    """

    name: ClassVar[str] = "python"
    needs_trust: ClassVar[bool] = True
    factory: str = option(doc="module:name of a function, a class of modules, or a module")
    args: Mapping[str, Any] = option(factory=dict, doc="arguments of the factory by name: {d: 256}")
    label: str | None = option(
        None,
        "the model's name in reports and tables; null: the factory, with a dot",
        name=NAME,
        optional=True,
        in_key=False,
    )
    inputs: Mapping[str, InputSpec] = option(
        factory=dict, doc="example inputs by name: {x: {dtype: float32, sizes: [4, 256], range: [0, 1]}}"
    )
    inputs_file: str | None = option(None, "example inputs from a file: .pt of torch.save, or .safetensors")

    def __attrs_post_init__(self) -> None:
        if self.inputs and self.inputs_file is not None:
            raise ValueError("'inputs' and 'inputs_file' both say the inputs: leave one of the two out")

    @property
    def title(self) -> str:
        return self.label or self.factory.replace(":", ".")[:LONGEST]

    def check(self) -> None:
        self._function.check()
        if self.inputs_file is not None:
            check_file(self.inputs_file, "model.inputs_file")
        if (declared := self._declared()) is not None:
            self._check_arguments(declared)

    def settled(self) -> tuple[Model, Mapping[str, str]]:
        """With its label, and with the defaults of the factory's parameters where its file says them plainly."""
        declared = self._declared()
        defaults = declared.defaults() if declared is not None else {}
        left = {name: value for name, value in defaults.items() if name not in self.args}
        said_by = {f"args.{name}": f"default of {declared.place}" for name in left} if declared is not None else {}
        if self.label is None:
            said_by["label"] = "the factory's name"
        return evolve(self, args={**self.args, **left}, label=self.title), said_by

    def source_files(self) -> tuple[str, ...]:
        """The files of the factory's module and of what it imports of one's own, and that of the inputs."""
        return (*self._function.source_files(), *((self.inputs_file,) if self.inputs_file is not None else ()))

    def build(self, seed: int) -> Built:
        self.check()
        with seeded(seed), working_directory_importable():
            made = self._made(seed)
        return self._built(made, seed)

    @property
    def _function(self) -> UserFunction:
        return UserFunction("model.factory", self.factory)

    def _declared(self) -> Declared | None:
        """What the file says of the factory; None where only the function itself can say it."""
        file = self._function.file or ""
        return read(file, self.factory.partition(":")[2]) if file.endswith(".py") else None

    def _check_arguments(self, declared: Declared) -> None:
        if problems := declared.problems(self.args):
            given = f"the arguments {', '.join(map(str, self.args))}" if self.args else "no arguments"
            raise ConfigError(
                f"model.factory '{self.factory}' cannot be called with {given}: {'; '.join(problems)}. Its signature "
                f"is {declared}; an argument is model.args.NAME=VALUE."
            )

    def _made(self, seed: int) -> Any:
        from torch import nn

        found: Any = self._function.load()
        if isinstance(found, nn.Module):
            if self.args:
                raise ConfigError(f"model.factory '{self.factory}' is a module already: it takes no model.args.")
            return copy.deepcopy(found)
        declared = live(found)
        arguments = dict(self.args)
        if declared is not None:
            self._check_arguments(declared)
            if takes_seed(declared.signature):
                arguments.setdefault(SEED, seed)
        try:
            return found(**arguments) if declared is None else bound(declared.signature, arguments)(found)
        except (Exception, SystemExit) as error:
            raise self._function.failed("calling it raised", error) from error

    def _built(self, made: Any, seed: int) -> Built:
        own = self._own_inputs(seed)
        module, inputs, steps = self._parts(made, seed)
        if own is None and inputs is None:
            raise self._without_inputs(module)
        chosen = own or inputs
        assert chosen is not None
        if not isinstance(made, Built) or own is not None:
            where = self._named() if own is None else "the inputs that the configuration says"
            bind(module, chosen(0), where)
        return Built(module=inference(module), inputs=chosen, steps=steps)

    def _parts(self, made: Any, seed: int) -> tuple[nn.Module, Callable[[int], Inputs] | None, int]:
        """The module, its own inputs if it came with any, and how many steps it has; ConfigError for anything else."""
        from torch import nn

        if isinstance(made, Built):
            if not isinstance(made.module, nn.Module):
                raise self._other(f"a Built whose module is {_described(made.module)}")
            return made.module, made.inputs, made.steps
        if isinstance(made, tuple) and len(made) == 2:
            module, examples = made
            if not isinstance(module, nn.Module) or not isinstance(examples, Mapping):
                raise self._other(f"a tuple of {_described(module)} and {_described(examples)}")
            return module, lambda step: _reordered(examples, seed, step), STEPS
        if not isinstance(made, nn.Module):
            raise self._other(_described(made))
        return made, None, STEPS

    def _own_inputs(self, seed: int) -> Callable[[int], Inputs] | None:
        """Those that the configuration gives."""
        if self.inputs_file is not None:
            examples = from_file(self.inputs_file, "model.inputs_file")
            return lambda step: _reordered(examples, seed, step)
        return from_table(self.inputs, seed) if self.inputs else None

    def _named(self) -> str:
        """With its line, once it is imported: `model.factory 'net:make' (net.py:14)`."""
        declared = live(self._function.load())
        return f"model.factory '{self.factory}'" + (f" ({declared.place})" if declared is not None else "")

    def _other(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._named()} returned {what}; it must return npucompose.models.Built, a tuple "
            f"(torch.nn.Module, dict of forward's arguments), or a module whose inputs model.inputs says."
        )

    def _without_inputs(self, module: nn.Module) -> ConfigError:
        """A module came alone, and nothing says what forward takes."""
        signature = signature_of(module)
        takes = f" of forward{shown_signature(signature)}" if signature is not None else ""
        known = signature.parameters.values() if signature is not None else ()
        first = next((p.name for p in known if p.kind is not Parameter.VAR_KEYWORD), "x")
        return ConfigError(
            f"{self._named()} gave a {type(module).__name__} without inputs, and the configuration says "
            f"none{takes}: add 'model.inputs.{first}={{sizes: [4, 16]}}' or model.inputs_file=inputs.pt, or return "
            "(module, dict of forward's arguments)."
        )


def _described(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _reordered(examples: Mapping[str, Any], seed: int, step: int) -> Inputs:
    g = generator(seed, step)

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        return _permuted(tensor, g) if step and tensor.is_floating_point() else tensor.detach().clone()

    # By name, so that the order in which a factory writes its inputs changes no value.
    return mapped({name: examples[name] for name in sorted(examples)}, fresh)


def _permuted(tensor: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """The tensor's elements in another order, in a fresh tensor with the same strides."""
    import torch

    order = torch.randperm(tensor.numel(), generator=g)
    fresh = tensor.detach().clone()
    return fresh.copy_(tensor.detach().reshape(-1)[order].view(tensor.shape))
