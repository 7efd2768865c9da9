"""What a torch_npu wheel brings for each operator: a GE converter, a kernel for the NPU, a meta function.

Three lists are read from the wheel (`WheelLists`), and a fourth says what torch makes of an operator that no list has
(`TorchOperators`): `gelu_` is `gelu.out`, which the wheel lists. `operators("2.13.0").row("aten::gelu_")` puts them
together. The lists of known versions are data, written by tools/read_operators.py; those of a wheel that is found here
are read from it when they are first asked for (`learn`). Of any other version those of the next older one are assumed.
Loads no torch and no wheel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

from attrs import field, frozen

from npucompose.vendor.converter_conditions import NOT_950, guards
from npucompose.vendor.versions import known, nearest

WHEELS = Path(__file__).with_name("wheel_operators.json")
TORCH = Path(__file__).with_name("torch_operators.json")

Converter = Literal["genuine", "raises", "none", "unknown"]
"""`raises`: there is a converter, and all that it does is to raise its sentence."""
Kernel = Literal["native", "composite", "cpu", "none", "unknown"]
"""`native`: in the wheel's lists. `composite`: torch makes it of others, which are native. `cpu`: it, or one that it is
made of, is in no list and runs on the CPU. `none`: neither device has a kernel."""
Meta = Literal["wheel", "torch", "none", "unknown"]

List = Literal["converters", "kernels", "metas"]
LISTS: tuple[List, ...] = get_args(List)
WHERE: Mapping[List, str] = {
    "converters": "torch_npu/dynamo/torchair/**/*.py, register_fx_node_ge_converter",
    "kernels": "torch_npu/csrc/aten/*.yaml",
    "metas": "torch_npu/op_plugin/**/*_registrations.py",
}
GENUINE = ""
"""Of a converter that converts: no sentence."""
IMPLICIT, CPU, NOWHERE, OPEN = "implicit", "cpu", "nowhere", "…"
"""What torch has of an operator: a composite for every device that is taken apart while a graph is traced, and what it
calls; a kernel for the CPU, and none for others; neither. OPEN stands behind what a composite calls where that is not
all."""


OF_THE_CPU: Mapping[str, str] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "npu::npu_fusion_attention",
    "aten::mkldnn_rnn_layer": "aten::lstm.input",
}
"""{operator that torch chooses on a CPU alone: what it calls on an NPU in its place}. Attention: op-plugin's
_scaled_dot_product_fused_attention_overrideable; lstm: torch's aten/src/ATen/native/RNN.cpp, use_mkldnn."""
GIVEN_THERE: Mapping[str, Mapping[str, str]] = {
    "npu::npu_fusion_attention": {"input_layout": "'BNSD'", "keep_prob": "1 - {dropout_p}"},
}
"""{operator of the NPU in their place: what it is given}, of op-plugin 517f2e7d,
op_plugin/ops/opapi/ScaledDotProductAttentionKernelNpuOpApi.cpp:303."""

CONVERTED_AS: Mapping[str, str] = {
    "npu::npu_fusion_attention_v3": "npu::npu_fusion_attention",
    "npu::npu_fusion_attention_grad_v3": "npu::npu_fusion_attention_grad",
}
"""{operator without a converter: what is given to TorchAir in its place} (npu/torchair/refusals.py)."""

PARTS_OF: Mapping[str, str] = {
    "aten::linalg_inv_ex": "aten::inverse",
    "aten::linalg_cholesky_ex": "aten::linalg_cholesky",
    "aten::_linalg_slogdet": "aten::slogdet",
    "aten::_weight_norm_interface": "aten::_weight_norm",
}
"""{part that an NPU has no kernel for: the composite that it has one for}, where a CPU calls the part for both. A test
looks for them among all composites."""


def name_of(overload: str) -> str:
    """`aten::gelu` of `aten.gelu.default`, `aten::gelu.out` of `aten.gelu.out`; a dispatcher's name stays as it is."""
    return overload if "::" in overload else overload.replace(".", "::", 1).removesuffix(".default")


def overload_of(name: str) -> str:
    """`aten.gelu.default` of `aten::gelu`: the name that a graph's node has."""
    dotted = name.replace("::", ".", 1)
    return dotted if "." in name else f"{dotted}.default"


@frozen(kw_only=True)
class WheelLists:
    """What one wheel lists, by the dispatcher's names of operators."""

    converters: Mapping[str, str] = field(factory=dict[str, str])
    """{operator: the sentence of a converter that only raises, GENUINE for all others}."""
    refuses: Mapping[str, str] = field(factory=dict[str, str])
    """{operator: the conditions on its arguments under which its converter raises}."""
    ge_types: Mapping[str, str] = field(factory=dict[str, str])
    """{`torch.int8`, or torch's number of it: `DT_INT8`}, which the conditions ask for."""
    kernels: Mapping[str, str] = field(factory=dict[str, str])
    """{operator: the library that it is called from}: `acl_op`, `op_api`, `acl_op, op_api`, `python`, or empty."""
    metas: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(factory=dict[str, str])
    """{list: why it could not be read}."""


@frozen(kw_only=True)
class TorchOperators:
    """What one version of torch has of each ATen operator."""

    version: str
    kinds: Mapping[str, str]
    """{operator: CPU, NOWHERE, or the operators that it calls, in one text, which IMPLICIT may begin}."""
    without_meta: frozenset[str] = frozenset()
    decided_by_data: frozenset[str] = frozenset()
    """Those whose result is a number, or has a size, that only data decide."""
    decompositions: Mapping[str, tuple[str, ...]] = field(factory=dict[str, "tuple[str, ...]"])
    """{operator: what torch's decomposition of it calls}, where that was seen: `aten::im2col`: (`aten::slice`, …)."""


@frozen(kw_only=True)
class OperatorRow:
    """One operator on one version: `OperatorRow(name="aten::gelu_", converter="raises", kernel="composite", …)`."""

    name: str
    converter: Converter
    says: str = ""
    """The sentence of a converter that only raises; for `unknown` why it is unknown."""
    refuses: str = ""
    """The conditions on its arguments under which a genuine converter raises."""
    kernel: Kernel
    library: str = ""
    """Of a native kernel: `acl_op`, `op_api`, both, `python`."""
    because: str = ""
    """Which operator behind it has no kernel, or why that is unknown: `aten::_linalg_eigh.eigenvalues`."""
    meta: Meta

    @property
    def only_on_950(self) -> bool:
        """A genuine converter raises on every product but Ascend 950, whatever the arguments."""
        return NOT_950 in guards(self.refuses)

    @property
    def runs(self) -> bool:
        """The NPU computes it, with a kernel of its own or with those of what it is made of."""
        return self.kernel in ("native", "composite")

    @property
    def aclop(self) -> bool:
        """It has no kernel but that of the older library, whose operators no capture of a graph takes."""
        return self.library == "acl_op"

    @property
    def overload(self) -> str:
        """`aten.gelu_.default`, as a graph's node is called."""
        return overload_of(self.name)


@frozen(kw_only=True)
class WheelOperators:
    """The three tables of one version of torch_npu."""

    version: str
    assumed: str | None
    """The version whose lists stand in for this one's, which were not read; None where they are its own."""
    lists: WheelLists
    torch: TorchOperators

    @property
    def named(self) -> str:
        """`torch_npu 2.13.0`, or `torch_npu 2.12.1 (assumed: the tables of 2.12.0)`."""
        said = f" (assumed: the tables of {self.assumed})" if self.assumed else ""
        return f"torch_npu {self.version}{said}"

    def knows(self, operator: str) -> bool:
        """Whether the wheel or torch has an operator of that name."""
        name = name_of(operator)
        return any(name in names for names in (self.lists.converters, self.lists.kernels, self.torch.kinds))

    def row(self, operator: str) -> OperatorRow:
        """The operator's row, by its name in a graph or in the dispatcher; of one that nobody knows, all is unknown."""
        name = name_of(operator)
        converter, says = self._converter(name)
        kernel, because = self._kernel(name, ())
        return OperatorRow(
            name=name,
            converter=converter,
            says=says,
            refuses=self.lists.refuses.get(name, ""),
            kernel=kernel,
            library=self.lists.kernels.get(name, ""),
            because=because,
            meta=self._meta(name),
        )

    def converts(self, operator: str) -> bool:
        """Whether TorchAir certainly converts it, on every product."""
        row = self.row(operator)
        return row.converter == "genuine" and not row.only_on_950

    def on_the_device(self, operator: str) -> str:
        """What torch calls on an NPU where a graph that was traced on a CPU has this operator."""
        return OF_THE_CPU.get(name_of(operator), operator)

    def given_there(self, operator: str, given: Mapping[str, str]) -> Mapping[str, str]:
        """What that operator is given by a call of this one, as far as it is known besides `given`."""
        if name_of(operator) not in OF_THE_CPU:
            return given
        there = GIVEN_THERE.get(self.on_the_device(operator)) or dict[str, str]()
        return {**given, **{name: one.format(**{"dropout_p": "...", **given}) for name, one in there.items()}}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every ATen operator of torch, and every operator of the wheel, sorted."""
        own = (n for n in (*self.lists.kernels, *self.lists.converters) if not n.startswith(("aten::", "prims::")))
        return tuple(sorted({*self.torch.kinds, *own, *(n for n in self.lists.kernels if "::" in n)}))

    def rows(self) -> Iterator[OperatorRow]:
        """Every row, sorted by name."""
        return map(self.row, self.names)

    def _converter(self, name: str) -> tuple[Converter, str]:
        if "converters" in self.lists.problems:
            return "unknown", self.lists.problems["converters"]
        if name in self.lists.converters:
            said = self.lists.converters[name]
            return ("raises", said) if said != GENUINE else ("genuine", "")
        return ("none", "") if self.knows(name) else ("unknown", self._unheard(name))

    def _kernel(self, name: str, above: Collection[str]) -> tuple[Kernel, str]:
        """`above`: operators that are made of this one, and are being looked at."""
        if "kernels" in self.lists.problems:
            return "unknown", self.lists.problems["kernels"]
        if name in self.lists.kernels:
            return "native", ""
        kind = self.torch.kinds.get(name)
        if kind is None:
            return "unknown", self._unheard(name)
        if kind == CPU:
            return "cpu", name
        if kind == NOWHERE:
            return "none", name
        called = [f"aten::{one}" for one in kind.split() if one not in (IMPLICIT, OPEN) and f"aten::{one}" not in above]
        found = [self._kernel(one, (*above, name)) for one in called]
        for worst in ("cpu", "none", "unknown"):
            because = next((why for kernel, why in found if kernel == worst), None)
            if because is not None:
                return worst, because
        return ("unknown", f"not all that {name} calls is known") if kind.endswith(OPEN) else ("composite", "")

    def _meta(self, name: str) -> Meta:
        if name in self.lists.metas:
            return "wheel"
        if name in self.torch.kinds:
            return "none" if name in self.torch.without_meta else "torch"
        if "metas" in self.lists.problems or not self.knows(name):
            return "unknown"
        return "none"

    def _unheard(self, name: str) -> str:
        have = listing(name)
        elsewhere = f" (torch_npu {have[0]}{f' to {have[-1]}' if have[1:] else ''} has)" if have else ""
        return f"neither {self.named} nor torch {self.torch.version} has an operator {name}{elsewhere}"


_READERS: dict[str, Callable[[], WheelLists]] = {}
"""{version: what reads the lists of its wheel on this machine}."""


def learn(version: str, reader: Callable[[], WheelLists]) -> None:
    """From now on, in this process, the version has the lists that `reader` gives, which is called when they are asked
    for."""
    _READERS[version] = reader
    operators.cache_clear()


@cache
def operators(version: str) -> WheelOperators:
    """The tables of a version: read from its wheel, known, or those of the next older one."""
    version = known(version)
    torch = _torch(version)
    if version in _READERS:
        return WheelOperators(version=version, assumed=None, lists=_READERS[version](), torch=torch)
    have = versions()
    meant = nearest(version, have)
    return WheelOperators(
        version=version, assumed=None if meant == version else meant, lists=known_lists(meant), torch=torch
    )


def versions() -> tuple[str, ...]:
    """The versions whose lists are known, oldest first."""
    return tuple(_wheels()["versions"])


def listing(name: str) -> tuple[str, ...]:
    """The known versions whose wheels list the operator, oldest first."""
    data = _wheels()
    spans = [data[section][name] for section in ("kernels", "converters") if name in data[section]]
    return tuple(one for at, one in enumerate(data["versions"]) if any(_at(of, at) is not None for of in spans))


def same_lists(digest: str) -> str | None:
    """The known version whose lists lie in these very files, by their digest."""
    return next((name for name, known_digest in _wheels()["sources"].items() if known_digest == digest), None)


@cache
def known_lists(version: str) -> WheelLists:
    """The lists of a known version."""
    data = _wheels()
    at = tuple(data["versions"]).index(version)

    def of(section: str) -> dict[str, int]:
        rows = ((name, _at(spans, at)) for name, spans in data[section].items())
        return {name: value for name, value in rows if value is not None}

    def said(section: str) -> dict[str, str]:
        sentences = ["", *data["sentences"]]
        return {name: _said(sentences[value], name) for name, value in of(section).items()}

    return WheelLists(
        converters=said("converters"),
        refuses=said("refuses"),
        ge_types={name: dtypes for name, spans in data["ge_types"].items() if (dtypes := _at(spans, at)) is not None},
        kernels={name: data["libraries"][value] for name, value in of("kernels").items()},
        metas=frozenset(of("metas")),
    )


def _said(sentence: str, name: str) -> str:
    return sentence.replace("{op}", f"torch.ops.{overload_of(name)}")


def _at(spans: Any, at: int) -> Any:
    """What holds at one of the versions: spans are one value for all of them, or [[since, value], …] by position."""
    if not isinstance(spans, list):
        return spans
    changes = cast("list[tuple[int, Any]]", spans)
    return next((value for since, value in reversed(changes) if since <= at), None)


@cache
def _wheels() -> dict[str, Any]:
    return json.loads(WHEELS.read_text(encoding="utf-8"))


@cache
def _torch(version: str) -> TorchOperators:
    """Of the torch that a wheel of this version is for: its own, the next older one, or the oldest known."""
    data: dict[str, Any] = json.loads(TORCH.read_text(encoding="utf-8"))
    have = tuple(data["versions"])
    meant = nearest(version.partition(".post")[0], have)
    at = have.index(meant)
    kinds = {name: _at(spans, at) for name, spans in data["kinds"].items()}
    return TorchOperators(
        version=meant,
        kinds={name: kind for name, kind in kinds.items() if kind is not None},
        without_meta=frozenset(name for name, spans in data["without_meta"].items() if _at(spans, at)),
        decided_by_data=frozenset(data["decided_by_data"]),
        decompositions={
            name: tuple(name_of(one if one.startswith("prims.") else f"aten.{one}") for one in said.split())
            for name, said in data["decompositions"].items()
        },
    )
