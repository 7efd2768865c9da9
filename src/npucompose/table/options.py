"""The option table: each option is a field of an attrs class, and says itself all that is known of it.

Type, default and check are the field's, its documentation and what else it has lie in the field's metadata. From the
fields come the base tree of the configuration, the check of a tree, `npucompose list keys` and the tables in docs/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import attrs
from attrs import validators

from npucompose.registry import Registry


@attrs.frozen(kw_only=True)
class Acts:
    """Where an option does something, as data: `Acts(mode="trains", can="trains")`."""

    mode: str = "compiles"
    """The trait of a mode (`npucompose.table.modes`); the target is asked where the mode has it."""
    can: str
    """What the target has to be able to do in the mode: a method of it, or one of its Capabilities."""
    without_compiling: bool = False
    """It acts in modes that compile nothing, too, on every target."""
    words: str = ""
    """What it is called in a sentence, in the plural; else by its key."""
    aside: str = ""
    """What is said of a mode in which it has no effect."""


def option(
    default: Any = attrs.NOTHING,
    doc: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    choices: Sequence[Any] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    optional: bool = False,
    name: re.Pattern[str] | None = None,
    from_experiment: str | None = None,
    acts: Acts | None = None,
    in_key: bool = True,
) -> Any:
    """A field that is an option: `max_streams: int = option(2, "at most so many streams", ge=1)`.

    What a Literal in its type allows, or `Annotated[str, registry]`, needs no `choices`, which are the allowed values
    of any other type; `ge`, `gt`, `le` bound a number, or each of several; `name` is what a text, or each of several,
    has to look like;
    with `optional` None passes every check.
    `from_experiment` names what the engine puts there, an Experiment field or `device` (of a model: whose kernels run
    it, as in Capabilities): such a field is not set in YAML.
    `acts` says where it does something, if that is not everywhere. `in_key=False` says that it decides nothing of what
    comes out: a result with another value of it is the same result.
    """
    checks: list[Any] = []
    if choices is not None:
        checks.append(validators.in_(tuple(choices)))
    if ge is not None:
        checks.append(partial(_of_each, validators.ge(ge)))
    if gt is not None:
        checks.append(partial(_of_each, validators.gt(gt)))
    if le is not None:
        checks.append(partial(_of_each, validators.le(le)))
    if name is not None:
        checks.append(_named(name))
    check: Any = validators.and_(*checks) if checks else _in_literal
    if optional and checks:
        check = validators.optional(check)
    metadata = {
        "doc": doc,
        "choices": tuple(choices) if choices is not None else None,
        "from_experiment": from_experiment,
        "acts": acts,
        "in_key": in_key,
    }
    if factory is not None:
        return attrs.field(factory=factory, validator=check, metadata=metadata)
    return attrs.field(default=default, validator=check, metadata=metadata)


def _of_each(check: Callable[[Any, Any, Any], None], made: Any, attribute: Any, value: Any) -> None:
    """`check` of a number, or of each of several."""
    for one in cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,):
        check(made, attribute, one)


def _in_literal(made: Any, attribute: Any, value: Any) -> None:
    """Of an instance that Python makes; YAML is read by its types (`structure`)."""
    cls = cast("type[Any]", type(made))
    registry = None if made is None else _registries(cls).get(attribute.name)
    if registry is not None and value not in registry:
        raise ValueError(f"'{attribute.name}' must be in {registry.names()!r} (got {value!r})")
    choices = None if made is None else _literals(cls).get(attribute.name)
    if choices is not None and value not in choices:
        raise ValueError(f"'{attribute.name}' must be in {choices!r} (got {value!r})")


@cache
def _literals(cls: type[Any]) -> dict[str, tuple[Any, ...]]:
    """{field: what its type allows}, of the fields that are a Literal, or a Literal or null."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, kind in get_type_hints(cls).items():
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        if all(one is type(None) or get_origin(one) is Literal for one in kinds):
            found[name] = tuple(v for one in kinds for v in (get_args(one) or (None,)))
    return found


@cache
def _registries(cls: type[Any]) -> dict[str, Registry[Any]]:
    """{field: where its value is looked up}, of the fields that are `Annotated[str, registry]`."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: kind.__metadata__[0] for name, kind in hints.items() if get_origin(kind) is Annotated}


def choices_of_field(cls: type[Any], field: attrs.Attribute[Any]) -> tuple[Any, ...] | None:
    """The values that a field can have, null apart, where they are a list."""
    registry = _registries(cls).get(field.name)
    listed = registry.names() if registry else field.metadata.get("choices") or _literals(cls).get(field.name)
    return None if listed is None else tuple(choice for choice in listed if choice is not None)


MISSING = "???"
"""In YAML: a value that somebody has to give."""


@cache
def base_tree(cls: type[Any]) -> dict[str, Any]:
    """Every option of a class at its default, as plain data; nobody may change it.

    `base_tree(Tiling)` is `{"schedule": "host"}`. A class with a classmethod `base_tree` knows its own.
    """
    own = getattr(cls, "base_tree", None)
    if own is not None:
        return own()
    ours = set_by_engine(cls)
    return {f.name: _plain_default(f) for f in attrs.fields(cls) if f.name not in ours}


def _plain_default(field: attrs.Attribute[Any]) -> Any:
    made: Any = field.default
    if made is attrs.NOTHING:
        return MISSING
    return _plain(made.factory() if isinstance(made, attrs.Factory) else made)  # pyright: ignore[reportArgumentType]


def _plain(value: Any) -> Any:
    if attrs.has(cls := cast("type[Any]", type(value))):
        return base_tree(cls)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in cast("Sequence[Any]", value)]
    return dict(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else value


@cache
def free_mappings(cls: type[Any]) -> dict[str, bool]:
    """{dotted path: whether a key of it is one word, dots and all} of the options whose keys are the user's.

    `shapes.gears={x.0: [2, 4]}` and `shapes.gears.x.0=[2,4]` say the same, because no value of it has keys.
    """
    found: dict[str, bool] = {}
    for name, kind in get_type_hints(cls).items():
        if name in attrs.fields_dict(cls):
            kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
            for one in kinds:
                if get_origin(one) is Mapping:
                    found[name] = not _has_keys(get_args(one)[1])
                elif attrs.has(one) and not hasattr(one, "of_tree"):
                    found |= {f"{name}.{path}": whole for path, whole in free_mappings(one).items()}
    return found


def _has_keys(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(map(_has_keys, get_args(kind)))
    return kind is Any or attrs.has(kind) or get_origin(kind) is Mapping


def _named(pattern: re.Pattern[str]) -> Callable[[Any, Any, Any], None]:
    def check(_: Any, attribute: Any, value: Any) -> None:
        for text in cast("tuple[str, ...]", value) if isinstance(value, tuple) else (value,):
            if not is_name(text, pattern):
                raise ValueError(
                    f"'{attribute.name}' must be a plain name of at most {LONGEST} letters: {text[:LONGEST]!r}"
                )

    return check


def set_by_engine(cls: Any) -> dict[str, str]:
    """{field: experiment field} of the options that the engine fills in and a person must not; none of a union."""
    fields = attrs.fields(cls) if attrs.has(cls) else ()
    return {f.name: f.metadata["from_experiment"] for f in fields if f.metadata.get("from_experiment")}


# What a configuration may name, whoever wrote it: identifiers, and closed lists of what could read or load.

LONGEST = 100
INT64_MAX = 2**63 - 1

CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

NAME = re.compile(r"\w[\w.+-]*")
"""A choice or a label: `stream_plan`, `max-autotune`, `torch-2.13`."""

WORD = re.compile(r"[\w.+-]*")
"""A text in another library's configuration: `gelu_new`, `post_attention`. No address and no path."""

OPERATOR = re.compile(r"\w{1,200}\.\w{1,200}\.\w{1,200}")

CLOSED: Mapping[str, tuple[str, ...]] = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}
"""Where transformers would load a kernel from its hub by any other name, flash_attention_2 among them."""

DOWNLOADING = frozenset(
    {"auto_map", "trust_remote_code", "quantization_config", "use_pretrained_backbone", "kernel_config", "use_kernels"}
)
"""Keys by which transformers imports or fetches what is not in the package."""

WITH_FILES = frozenset({"aten.from_file", "aten.save"})

INTERNAL = frozenset(
    {
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "debug_mode_ops", "debugprims", "export",
        "inductor", "load_library", "prim", "profiler", "symm_mem",
    }
)  # fmt: skip
"""Namespaces of torch.ops that compute nothing: they talk to other processes, read files, record."""


def is_name(text: str, pattern: re.Pattern[str] = NAME) -> bool:
    return len(text) <= LONGEST and pattern.fullmatch(text) is not None


def operator_problem(name: str) -> str | None:
    """Why an operator that a configuration has called is refused."""
    if not is_name(name, OPERATOR):
        return f"'{name[:LONGEST]}' is no operator: write namespace.name.overload, as in aten.mul.Tensor"
    packet = name.rpartition(".")[0]
    if packet in WITH_FILES or packet.partition(".")[0] in INTERNAL:
        return f"'{name}' is no operator of a model: it reads or writes files, or talks to other processes"
    return None


def foreign_config_problems(config: Mapping[str, Any], path: str) -> Iterator[str]:
    """What another library's configuration holds beside numbers, words, and lists and mappings of them."""
    for key, value in config.items():
        here = f"{path}.{key}"
        if not is_name(str(key)) or str(key).startswith("_") or key in DOWNLOADING:
            yield f"'{here[:LONGEST]}' is no key of a model's shape and is not handed on"
        elif key in CLOSED and value is not None:
            yield from _not_in(CLOSED[str(key)], value, here)
        else:
            yield from _value_problems(value, here)


def _value_problems(value: Any, here: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from foreign_config_problems(cast("Mapping[str, Any]", value), here)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _value_problems(item, f"{here}.{index}")
    elif isinstance(value, (int, float)) and not abs(value) < 2**63:
        yield f"'{here}' must be a finite number of at most 64 bits"
    elif isinstance(value, str) and not is_name(value, WORD):
        yield f"'{here}' must be a plain word, no address and no path: {value[:LONGEST]!r}"


def _not_in(choices: tuple[str, ...], value: Any, here: str) -> Iterator[str]:
    """The one value, or one for each configuration inside."""
    for one in cast("Mapping[str, Any]", value).values() if isinstance(value, Mapping) else [value]:
        if one not in choices:
            yield f"'{here}' must be one of {', '.join(choices)}: {str(one)[:LONGEST]!r}"
