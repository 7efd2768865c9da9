"""What was compared of an operator, or why it was not, and the page of it: docs/npu_operators_compared.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import frozen

from npucompose.vendor.wheel_operators import OF_THE_CPU, WheelOperators
from tools.operator_calls import overload

OTHER_DEVICE = "a kernel of another device or library alone"
KINDS: Mapping[str, str] = {
    r"cudnn|miopen|mps|cufft|cslt|semi_structured|triton|xla|cuda|_philox|mkldnn|fbgemm": OTHER_DEVICE,
    r"_scaled_mm|_scaled_grouped|_grouped_mm|(efficient|flash)_attention|cudnn_attention": OTHER_DEVICE,
    r"(mm|addmm|bmm|baddbmm)\.dtype|batch_norm_(stats|gather|elemt|backward_(reduce|elemt))": OTHER_DEVICE,
    r"_thnn_fused|_fused_dropout|_masked_scale|conv_depthwise|int4pack|int8pack|_mixed_dtypes": OTHER_DEVICE,
    r"sparse|coalesce|_nnz|(row|col|crow|ccol)_indices|::_?(indices|values)|_dim[IV]|smm|hspmm|sspaddmm|_spsolve":
        "of sparse tensors, which no graph of an NPU holds",
    r"quantize|quantized|::q_|qscheme|int_repr|_fake_quant|_obs_|_empty_(affine|per_channel)|_wrapped_|_dyn_quant":
        "of quantised tensors of torch, which no graph of an NPU holds",
    r"nested|jagged|to_padded_tensor": "of nested tensors, which no graph of an NPU holds",
    r"::_test_|_dummy": "torch's own tests have it",
    r"source_Storage|record_stream|from_file|retain_grad|get_gradients|pin_memory|_copy_from|_propagate":
        "of storages, streams, files or gradients, not of a tensor's values",
}  # fmt: skip
"""{part of a name: why no call of such an operator runs on the CPU}."""
NO_CALL = "no made-up call of it ran on the CPU"
NO_GRAPH = "torch.compile makes no graph of it: what it takes or gives is no tensor, or depends on data"
ENDS = "a made-up call of its kind ends the process"


@frozen(kw_only=True)
class Compared:
    """One operator: `Compared(name="aten::amax", derived="failed", genuine="failed", capture="captures")`."""

    name: str
    derived: str = ""
    genuine: str = ""
    capture: str = ""
    wrong: str = ""
    """What does not agree; empty where all does."""
    why_not: str = ""
    """Why it could not be compared."""


def is_out(name: str) -> bool:
    """Whether it writes into tensors that are given as `out=`."""
    return any(argument.is_out for argument in overload(name)._schema.arguments)


def why_no_call(name: str, harmless: Collection[str]) -> str:
    """Why there is no call of the operator."""
    known = next((why for part, why in KINDS.items() if re.search(part, name)), None)
    return known or (NO_CALL if name in harmless else ENDS)


PAGE = """# Verdicts on operators, compared

Written by `python -m tools.operators_compared` for {wheel}. Each ATen operator without a GE
converter or without an NPU kernel ([which they are](npu_operators.md)) is a model of its own: what `npucompose explain`
derives of it (`target=cpu`), what `explain --capture` says, and what TorchAir's own conversion makes of it
(`target=npu_offline`). They agree where derived and genuine verdict are the same and name the same operator, and where
each operator that the call comes down to breaks just the rule of a capture that the tables have for it.

{lacking} operators lack one or the other. {out} of them are `out=` overloads: in a traced graph such a call is the
operator without it and a copy. {of_the_cpu} torch calls on a CPU alone ({cpu_names}).
Of the other {all}, {compared} were compared, with {wrong} disagreements; {left} could not be.

| derived | genuine | capture | operators |
|---|---|---|---|
{counts}

{disagreements}## What could not be compared

{reasons}
"""


def page(table: WheelOperators, lacking: int, rows: Sequence[Compared]) -> str:
    """docs/npu_operators_compared.md."""
    done = [row for row in rows if not row.why_not]
    wrong = [row for row in done if row.wrong]
    counts = Counter((_verdict(row.derived), _verdict(row.genuine), row.capture) for row in done)
    return PAGE.format(
        wheel=table.named,
        lacking=lacking,
        out=lacking - len(rows) - len(OF_THE_CPU),
        of_the_cpu=len(OF_THE_CPU),
        cpu_names=", ".join(f"`{name.partition('::')[2]}`" for name in OF_THE_CPU),
        all=len(rows),
        compared=len(done),
        wrong=len(wrong),
        left=len(rows) - len(done),
        counts="\n".join(f"| {' | '.join(said)} | {number} |" for said, number in sorted(counts.items())),
        disagreements="".join(f"- `{row.name}`: {row.wrong}\n" for row in wrong) + ("\n" if wrong else ""),
        reasons="\n".join(_reasons(row for row in rows if row.why_not)),
    )


def _verdict(said: str) -> str:
    return said.partition(" ")[0]


def _reasons(rows: Iterable[Compared]) -> Iterable[str]:
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault(_general(row.why_not, row.name), []).append(row.name.partition("::")[2])
    for why, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"- {why} ({len(names)}): {', '.join(f'`{name}`' for name in names)}"


def _general(why: str, name: str) -> str:
    """One reason for all operators that are refused in the same words."""
    words = why.removeprefix("the backend failed while it compiled the graph: ").replace(name, "it")
    return re.split(r' at "|, but |: it\(|\. ', " ".join(words.split()))[0].strip()
