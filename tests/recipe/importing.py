"""What the tests of import share: a script as YAML, its experiment, and random experiments that a script can say."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from hypothesis import strategies as st

from npucompose import api
from npucompose.recipe import Imported, import_script
from npucompose.schema.experiment import CompileKeywords, Experiment, Mode, Shapes
from npucompose.vendor.compiler import LEAVES, CompilerOptions
from npucompose.vendor.option_specs import OptionSpec


def read(script: str) -> Imported:
    return import_script(dedent(script))


def compiler(imported: Imported) -> dict[str, Any]:
    return dict(imported.tree.get("compiler", {}))


def experiment_of(imported: Imported, folder: Path) -> Experiment:
    """The YAML, read again the way a person would: --config-dir, experiment=."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "mine.yaml").write_text(imported.yaml())
    return api.checked(["experiment=mine"], config_dirs=[str(folder)]).experiment


def values_of(leaf: OptionSpec, mode: str) -> st.SearchStrategy[Any]:
    if leaf.choices is not None:
        return st.sampled_from(leaf.choices_in.get(mode, leaf.choices))
    texts = {
        "aicore_num": "24|48",
        "optimization_switch": "AddNFusionPass:off",
        "dump_step": "0|2-5",
        "dump_layer": "Add_1",
    }
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(max(leaf.least or 0, 2), 2**40),
        "ints": st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
        "dict": st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers() | st.booleans() | st.text()),
        "pool": st.sampled_from(["shared", "my pool"]),
        "path": st.sampled_from(["dumps", "a b/'c'\\d"]),
        "dir": st.just("."),
        "file": st.just("f" + leaf.suffix),
        "names": st.lists(st.sampled_from(["mm", "aten.add*", "it's \\n"]), min_size=1, max_size=3).map(tuple),
        "str": st.just(texts.get(leaf.path.split(".")[-1], "cv")),
    }  # fmt: skip
    return by_kind[leaf.kind]


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    mode = draw(st.sampled_from(["max-autotune", "reduce-overhead", "npugraph_ex"]))
    known = [leaf for leaf in LEAVES.values() if leaf.set_by == "compiler" and mode in leaf.modes]
    chosen = draw(st.lists(st.sampled_from(known), unique_by=lambda leaf: leaf.path, max_size=8))
    dynamic = draw(st.sampled_from([True, False, None]))
    sizes = st.lists(st.integers(2, 99), min_size=2, max_size=4).map(tuple)
    gears = st.dictionaries(st.sampled_from(["x.0", "x.1", "long_name.3"]), sizes, max_size=3)
    chosen_gears = draw(gears) if dynamic and mode == "max-autotune" else {}
    return Experiment(
        mode=Mode(name=mode),
        shapes=Shapes(
            name={True: "dynamic", False: "static", None: "auto"}[dynamic],
            dynamic=dynamic,
            gears=chosen_gears,
        ),
        compiler=CompilerOptions(values={leaf.path: draw(values_of(leaf, mode)) for leaf in chosen}),
        compile=CompileKeywords(fullgraph=draw(st.booleans())),
    )
