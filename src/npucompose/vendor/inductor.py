"""Inductor's option tree as one checked value: what a person asks of mode=max-autotune on cpu and cuda. Loads no torch.

Names, kinds and choices are those of the installed torch; `OURS` is what the mode itself sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from attrs import field, frozen

from npucompose.errors import ConfigError, did_you_mean, listed, raise_for
from npucompose.machine import installed_version
from npucompose.table.structure import nested
from npucompose.vendor.inductor_source import InductorOption, installed
from npucompose.vendor.option_specs import shown

WHERE = "inductor"

OURS: Mapping[str, Any] = {"max_autotune": True, "freezing": True}
"""What mode=max-autotune sets beside torch's own defaults."""

DECLARED: Mapping[str, str] = {
    "max_autotune": "time every way to run a matrix product, convolution or pointwise kernel, and take the fastest",
    "freezing": "weights are constants: folded, packed for the machine",
    "max_autotune_gemm": "matrix products alone are timed",
    "max_autotune_pointwise": "pointwise kernels alone are timed",
    "max_autotune_gemm_backends": "who takes part for matrix products: CPP and ATEN on cpu; TRITON, ATEN, … on cuda",
    "max_autotune_gemm_search_space": "how many forms of a product's kernel are timed: DEFAULT or EXHAUSTIVE",
    "coordinate_descent_tuning": "tune the kernels' own parameters one after the other",
    "epilogue_fusion": "put what follows a matrix product into its kernel",
    "layout_optimization": "convolutions in the layout that is fastest",
    "cpp_wrapper": "the code that calls the kernels is C++ and not Python",
    "shape_padding": "pad matrix products to sizes that are faster",
    "pattern_matcher": "replace known groups of operators (attention, …) by one",
    "fallback_random": "random numbers as eager draws them",
    "emulate_precision_casts": "round where eager rounds",
    "inplace_buffers": "write a result where an operand dies",
    "allow_buffer_reuse": "use the memory of a dead value again",
    "compile_threads": "compilers at once",
    "fx_graph_cache": "keep compiled graphs for a later process",
    "cpp.weight_prepack": "pack frozen weights for the processor's library",
    "cpp.simdlen": "bits of a vector register: 256, 512; 0 for none",
    "cpp.threads": "threads that kernels are made for; -1: those of torch",
    "cpp.dynamic_threads": "kernels ask for the number of threads when they run",
    "cpp.min_chunk_size": "least number of elements that a thread gets",
    "cpp.max_horizontal_fusion_size": "at most so many independent kernels in one",
    "cpp.gemm_cache_blocking": "register blocks of M, N and K in a tile: 4,1,10",
    "cpp.gemm_thread_factors": "threads along M, N and K: 2,1,1",
    "cpp.gemm_max_k_slices": "at most so many threads share the inner dimension of a product; 0: any number",
    "cpp.enable_floating_point_contract_flag": "may the compiler make a·b+c one operation: off, on, fast",
    "cpp.enable_unsafe_math_opt_flag": "let the compiler reorder arithmetic",
    "cpp.enable_concat_linear": "products of one operand with several weights as one",
    "cpp.enable_grouped_gemm_template": "several products of one operand in one kernel",
    "triton.cudagraphs": "torch's own CUDA graphs, with torch's rules for results, in the place of replay=native",
    "triton.unique_kernel_names": "kernels are called after what they compute",
}
"""The options that the base tree has; any other of the installed torch can be set too."""


@frozen(kw_only=True)
class OwnOption:
    """An option beside Inductor's that this project answers to; the first choice holds where nobody chose."""

    choices: tuple[str, ...]
    doc: str
    after: str
    """The option of Inductor's that it stands behind in YAML."""

    def takes(self) -> str:
        return " | ".join(self.choices)


OWN: Mapping[str, OwnOption] = {
    "frozen_weights": OwnOption(
        choices=("refreeze", "error"),
        doc="a frozen weight that has changed: refreeze (the next call freezes anew and says so) or error",
        after="freezing",
    ),
    "replay": OwnOption(
        choices=("native", "wrapper"),
        doc="who calls the kernels: a recording (native; a CUDA graph on cuda) or Inductor's wrapper",
        after="cpp_wrapper",
    ),
}

TEXTS: Mapping[str, str] = {
    "max_autotune_gemm_backends": r"[A-Z]+(,[A-Z]+)*",
    "max_autotune_conv_backends": r"[A-Z]+(,[A-Z]+)*",
    "cpp.gemm_cache_blocking": r"\d+(,\d+){2}",
    "cpp.gemm_thread_factors": r"\d+(,\d+){2}",
    "cpp.enable_floating_point_contract_flag": r"off|on|fast",
}
"""Options that take free text, with the text that is harmless: most others name programs, folders or flags."""

NOT_HERE: Mapping[str, str] = {
    "trace": "it writes outside the run's folder; TORCH_COMPILE_DEBUG=1 does the same",
    "test_configs": "it is for torch's own tests",
    "lookup_table": "it takes Python objects",
    "aot_inductor": "it belongs to AOTInductor, which this mode does not use",
    "aot_inductor_mode": "it belongs to AOTInductor, which this mode does not use",
    "freezing_discard_parameters": "it takes the weights from the model that results are compared with",
}
"""Options and groups that exist and cannot be said in YAML, and why."""

SHOWN = 40
"""At most so many names in a message."""

SCALARS = {bool: "bool", int: "int", float: "float", str: "str"}

WORDS = {"bool": "true | false", "int": "integer", "float": "number", "str": "text"}


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Only what is asked for: null is torch's own value, which says something only where the mode sets another."""
    return {path: value for path, value in values.items() if not _says_nothing(path, value)}


def _says_nothing(path: str, value: Any) -> bool:
    if path in OWN:
        return value in (None, OWN[path].choices[0])
    return value == OURS[path] if path in OURS else value is None


@frozen(kw_only=True)
class InductorOptions:
    """`InductorOptions.of_tree({"cpp": {"simdlen": 256}}).settings()` is what Inductor's `config_patches` take."""

    values: Mapping[str, Any] = field(factory=dict[str, Any], converter=_kept)
    """{path: value} that differ from what the mode sets anyway."""

    @classmethod
    def of_tree(cls, tree: Any, path: str = WHERE) -> InductorOptions:
        """What YAML says. Names that the installed torch lacks and values that do not fit are all told at once."""
        problems: list[str] = []
        values = dict(_flat(tree, "", path, problems))
        for name, value in values.items():
            if value is not None and (wrong := _wrong(name, value)):
                problems.append(f"{path}.{name} {wrong}")
        raise_for(problems)
        return cls(values=values)

    @classmethod
    def base_tree(cls) -> dict[str, Any]:
        """What is declared, null where torch's own value holds."""
        own = {path: it.choices[0] for path, it in OWN.items()}
        return nested({**{path: OURS.get(path) for path in DECLARED}, **own})

    def changed(self) -> dict[str, Any]:
        """{path: value} of what differs from `OURS` and from what holds of `OWN`."""
        return dict(self.values)

    def settings(self) -> dict[str, Any]:
        """All that Inductor is told: `OURS` with the changes; what is null is left to torch."""
        given = {**OURS, **self.values}
        return {path: value for path, value in given.items() if value is not None and path not in OWN}

    @property
    def frozen_weights(self) -> str:
        """What becomes of a frozen weight that has changed."""
        return self._own("frozen_weights")

    @property
    def replays(self) -> bool:
        """Whether kernels are to be recorded, where the target can: not those that Inductor's C++ calls, or that torch
        itself puts into CUDA graphs."""
        given = self.settings()
        return self._own("replay") == "native" and not (given.get("cpp_wrapper") or given.get("triton.cudagraphs"))

    def _own(self, path: str) -> str:
        return self.values.get(path, OWN[path].choices[0])

    def as_tree(self) -> dict[str, Any]:
        """The changes as a nested mapping that `of_tree` reads back."""
        return nested(self.values)


def is_option(path: str) -> bool:
    """Whether the installed torch has it, or this project."""
    return path in OWN or path in installed()


def _flat(tree: Any, group: str, where: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    full = f"{where}.{group}".rstrip(".")
    if not isinstance(tree, Mapping):
        problems.append(f"{full} takes a mapping of options; given {shown(tree)}.")
        return
    for name, value in cast("Mapping[Any, Any]", tree).items():
        path = f"{group}.{name}" if group else str(name)
        if not group and path in _groups():
            yield from _flat(value, path, where, problems)
        elif path in installed() or path in OWN or (path in DECLARED and value is None):
            yield path, value
        else:
            problems.append(_unknown(str(name), group, full))


@cache
def _groups() -> frozenset[str]:
    return frozenset(path.partition(".")[0] for path in installed() if "." in path)


def _unknown(name: str, group: str, full: str) -> str:
    prefix = f"{group}." if group else ""
    here = [path.removeprefix(prefix) for path in (*installed(), *OWN) if path.startswith(prefix)]
    elsewhere = [path for path in installed() if path.endswith(f".{name}")]
    near = f"Did you mean '{WHERE}.{elsewhere[0]}'? " if elsewhere else did_you_mean(name, here)
    torch = f"the Inductor of torch {installed_version('torch')}"
    possible = f"Choices: {listed(here)}." if len(here) <= SHOWN else f"It has {len(here)} options:"
    return (
        f"unknown option '{name}' @ {full}: {torch} has none of that name. {near}{possible} "
        f"`npucompose list options --under {full}` shows each."
    )


def why_not(path: str) -> str | None:
    """Why an option of Inductor's cannot be said in YAML; None where it can."""
    option = installed()[path]
    for name in (path, path.partition(".")[0]):
        if name in NOT_HERE:
            return NOT_HERE[name]
    if "remote" in path:
        return "it reaches out to other machines"
    if "str" in option.kinds and not option.choices and path not in TEXTS:
        return "it takes a name of a program, a folder or a flag"
    return "it takes Python objects" if not option.kinds & WORDS.keys() else None


def _wrong(path: str, value: Any) -> str | None:
    """What is wrong with a value that is not null, as the end of a sentence; None where nothing is."""
    if path in OWN:
        own = OWN[path]
        near = did_you_mean(str(value), own.choices)
        return None if value in own.choices else f"takes {own.takes()}; given {shown(value)}. {near}".rstrip()
    option = installed()[path]
    reason = why_not(path)
    if reason:
        return f"cannot be set in YAML: {reason}."
    kind = next((word for scalar, word in SCALARS.items() if isinstance(value, scalar)), "other")
    fits = kind in option.kinds
    if option.choices:
        fits = value in option.choices
    elif isinstance(value, str) and fits:
        fits = re.fullmatch(TEXTS[path], value) is not None
    if fits:
        return None
    hint = did_you_mean(str(value), [str(c) for c in option.choices])
    return f"takes {takes(option)}; given {shown(value)} ({type(value).__name__}). {hint}".rstrip()


def takes(option: InductorOption) -> str:
    """`true | false`, `integer | null`, `DEFAULT | EXHAUSTIVE`, `text like off|on|fast`."""
    if option.choices:
        words = [shown(choice) for choice in option.choices]
    elif option.path in TEXTS:
        words = [f"text like {TEXTS[option.path]}"]
    else:
        kinds = option.kinds - ({"int"} if "float" in option.kinds else set[str]())
        words = [word for kind, word in WORDS.items() if kind in kinds] or ["a Python object"]
    return " | ".join([*words, "null"])


def options(under: str = WHERE) -> tuple[dict[str, Any], ...]:
    """One JSON-able row for each option of the installed torch below `under` (`inductor`, `inductor.cpp`)."""
    below = under.removeprefix(WHERE).lstrip(".")

    def asked(path: str) -> bool:
        return not below or path == below or path.startswith(f"{below}.")

    own = [_own_row(path) for path in OWN if asked(path)]
    found = [_row(option) for path, option in installed().items() if asked(path)]
    if not own and not found:
        group, _, name = below.rpartition(".")
        raise ConfigError(_unknown(name, group, f"{WHERE}.{group}".rstrip(".")))
    return (*own, *found)


def _row(option: InductorOption) -> dict[str, Any]:
    reason = why_not(option.path)
    return {
        "option": f"{WHERE}.{option.path}",
        "takes": takes(option),
        "default": OURS.get(option.path, option.default),
        "declared": option.path in DECLARED,
        "settable": reason is None,
        "doc": DECLARED.get(option.path, option.doc) + (f" (not set here: {reason})" if reason else ""),
    }


def _own_row(path: str) -> dict[str, Any]:
    own = OWN[path]
    return {
        "option": f"{WHERE}.{path}",
        "takes": own.takes(),
        "default": own.choices[0],
        "declared": True,
        "settable": True,
        "doc": own.doc,
    }


def yaml_default() -> str:
    """The base tree with its documentation, to begin a choice of conf/inductor with."""
    lines = [
        "# what mode=max-autotune tells Inductor on cpu and cuda: autotuned kernels, frozen weights",
        "# null leaves an option as torch has it. Any other option of your torch can stand here too:",
        "# `npucompose list options --under inductor`, then inductor.cpp.fallback_scatter_reduce_sum=false.",
    ]
    group = ""
    for path, doc in DECLARED.items():
        above, _, name = path.rpartition(".")
        if above != group:
            lines.append(f"{above}:")
            group = above
        lines.append(f"{'  ' if above else ''}{name}: {shown(OURS.get(path))}  # {doc}")
        lines += [f"{own}: {it.choices[0]}  # {it.doc}" for own, it in OWN.items() if it.after == path]
    return "\n".join(lines) + "\n"
