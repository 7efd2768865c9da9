"""Attention on the simulated runtime as functions: what it becomes, and that it computes what torch does."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npu_simulator import operators
from npucompose.ops.definitions import UnsupportedArgument

F: Any = torch.nn.functional


def bnsd(batch: int = 2, heads: int = 4, tokens: int = 3, depth: int = 8, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.randn(batch, heads, tokens, depth, dtype=dtype)


# scaled_dot_product_attention.


@pytest.fixture
def asked_of_npu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What is asked of npu_fusion_attention_v3, which answers with its query."""
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def fused(*args: Any, **named: Any) -> tuple[torch.Tensor, str]:
        asked.append((args, named))
        return args[0], "not the attention"

    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(npu_fusion_attention_v3=fused, npu_fusion_attention=None))
    return asked


def test_attention_without_a_mask_becomes_the_fused_operator(asked_of_npu: list[Any]) -> None:
    q, k, v = bnsd(), bnsd(), bnsd()
    assert operators.scaled_dot_product_attention(q, k, v) is q
    [((query, key, value, heads, layout), named)] = asked_of_npu
    assert (query is q, key is k, value is v, heads, layout) == (True, True, True, 4, "BNSD")
    assert named == {
        "atten_mask": None, "scale": 1 / math.sqrt(8), "keep_prob": 1.0, "next_tockens": 2147483647,
        "inner_precise": 0, "sparse_mode": 0,
    }  # fmt: skip


def test_causal_attention_hides_a_square_triangle(asked_of_npu: list[Any]) -> None:
    operators.scaled_dot_product_attention(bnsd(), bnsd(), bnsd(), None, 0.25, True, scale=0.5)
    [(_, named)] = asked_of_npu
    hidden = named.pop("atten_mask")
    assert (hidden.dtype, tuple(hidden.shape)) == (torch.bool, (2048, 2048))
    assert torch.equal(hidden[:3, :3], torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 0]]).bool())
    assert named == {"scale": 0.5, "keep_prob": 0.75, "next_tockens": 0, "inner_precise": 0, "sparse_mode": 2}


def test_a_mask_says_what_is_hidden_there_and_is_computed_more_precisely(asked_of_npu: list[Any]) -> None:
    mask = torch.tensor([[True, False, True]] * 3)
    operators.scaled_dot_product_attention(bnsd(), bnsd(), bnsd(), mask)
    operators.scaled_dot_product_attention(bnsd(tokens=1), bnsd(), bnsd(), mask[:1])
    operators.scaled_dot_product_attention(bnsd(), bnsd(), bnsd(), mask, 0.0, True)
    (_, first), (_, one_token), (_, causal) = asked_of_npu
    assert torch.equal(first["atten_mask"], ~mask)
    assert [named["inner_precise"] for named in (first, one_token, causal)] == [2, 0, 0]


def test_heads_of_queries_that_share_keys_are_fused_and_keys_that_share_queries_are_not(
    asked_of_npu: list[Any],
) -> None:
    many, few = bnsd(heads=4), bnsd(heads=2)
    operators.scaled_dot_product_attention(many, few, few, enable_gqa=True)
    assert len(asked_of_npu) == 1
    with pytest.raises(RuntimeError):
        operators.scaled_dot_product_attention(few, many, many, enable_gqa=True)
    assert len(asked_of_npu) == 1


def test_the_older_operator_is_taken_where_there_is_no_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(npu_fusion_attention=lambda q, *_, **__: (q + 1,)))
    q = bnsd()
    assert torch.equal(operators.scaled_dot_product_attention(q, bnsd(), bnsd()), q + 1)


def test_what_the_fused_operator_does_not_take_is_composed_as_torch_does() -> None:
    q, k, v = bnsd(depth=6), bnsd(depth=6), bnsd(depth=6)
    mask = torch.tensor([[True, False, True]] * 3)
    calls: Any = (((), {}), ((mask,), {}), ((mask.float(),), {"scale": 0.3}), ((None, 0.0, True), {}))
    for arguments, named in calls:
        wanted = F.scaled_dot_product_attention(q, k, v, *arguments, **named)
        torch.testing.assert_close(operators.scaled_dot_product_attention(q, k, v, *arguments, **named), wanted)
    grouped = bnsd(heads=2, depth=6), bnsd(heads=2, depth=6)
    torch.testing.assert_close(
        operators.scaled_dot_product_attention(q, *grouped, enable_gqa=True),
        F.scaled_dot_product_attention(q, *grouped, enable_gqa=True),
    )


@pytest.mark.parametrize(
    ("query", "key", "value", "mask", "fuses"),
    [
        (bnsd(), bnsd(), bnsd(), None, True),
        (bnsd(), bnsd(), bnsd(), torch.ones(3, 3).bool(), True),
        (bnsd(), bnsd(), bnsd(), torch.ones(3, 3), False),
        (bnsd(depth=6), bnsd(), bnsd(), None, False),
        (bnsd(), bnsd(depth=6), bnsd(), None, False),
        (bnsd(), bnsd(), bnsd(depth=6), None, False),
        (bnsd(depth=6, dtype=torch.float16), bnsd(), bnsd(), None, True),
        (bnsd(dtype=torch.bfloat16), bnsd(), bnsd(), None, True),
        (bnsd(dtype=torch.float64), bnsd(), bnsd(), None, False),
        (bnsd()[0], bnsd()[0], bnsd()[0], None, False),
        (bnsd(), bnsd()[0], bnsd(), None, False),
        (bnsd(), bnsd(), bnsd()[0], None, False),
        (bnsd(heads=4), bnsd(heads=2), bnsd(heads=2), None, True),
        (bnsd(heads=2), bnsd(heads=4), bnsd(heads=4), None, False),
        (bnsd(heads=4), bnsd(heads=3), bnsd(heads=3), None, False),
        (bnsd(1, 2048, 1, 4), bnsd(1, 2048, 1, 4), bnsd(1, 2048, 1, 4), None, True),
        (bnsd(1, 2049, 1, 4), bnsd(1, 2049, 1, 4), bnsd(1, 2049, 1, 4), None, False),
        (bnsd(1, 1, 1, 512), bnsd(1, 1, 1, 512), bnsd(1, 1, 1, 512), None, True),
        (bnsd(1, 1, 1, 516), bnsd(1, 1, 1, 516), bnsd(1, 1, 1, 516), None, False),
    ],
)
def test_the_fused_operator_takes_what_the_kernel_takes(
    query: Any, key: Any, value: Any, mask: Any, fuses: bool
) -> None:
    assert operators._fuses(query, key, value, mask) is fuses


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((3, 5), (3, 5)), ((2, 4, 3, 5), (2, 4, 3, 5)), ((2, 1, 3, 5), (2, 1, 3, 5)), ((1, 1, 3, 5), (1, 1, 3, 5)),
        ((1, 4, 3, 5), (2, 4, 3, 5)), ((4, 3, 5), (2, 4, 3, 5)), ((1, 5), (2, 4, 3, 5)), ((3, 1), (2, 4, 3, 5)),
        ((2, 4, 1, 5), (2, 4, 3, 5)), ((5,), (5,)), ((1, 1, 1, 3, 5), (1, 1, 1, 3, 5)), ((3, 4), (3, 4)),
    ],
)  # fmt: skip
def test_a_mask_is_written_out_where_the_kernel_does_not_broadcast_it(
    shape: tuple[int, ...], given: tuple[int, ...]
) -> None:
    mask = torch.ones(shape).bool()
    found = operators._as_wide_as_needed(mask, torch.empty(2, 4, 3, 8), torch.empty(2, 4, 5, 8))
    assert tuple(found.shape) == given
    assert (found is mask) is (shape == given)


def test_a_mask_of_true_becomes_numbers_that_are_added() -> None:
    added = operators._added(torch.tensor([True, False]), torch.float16)
    assert added is not None
    assert (added.dtype, added.tolist()) == (torch.float16, [0.0, -math.inf])
    numbers = torch.ones(2)
    assert operators._added(numbers, torch.float16) is numbers
    assert operators._added(None, torch.float16) is None


def test_weight_norm_is_torchs() -> None:
    v, g = torch.randn(3, 4), torch.randn(3, 1)
    torch.testing.assert_close(operators.weight_norm(v, g), torch.ops.aten._weight_norm(v, g, 0))
    torch.testing.assert_close(
        operators.weight_norm(v, torch.ones(1, 4), 1), torch.ops.aten._weight_norm(v, torch.ones(1, 4), 1)
    )


def test_dropout_is_one_operator_with_its_mask() -> None:
    x = torch.ones(100, requires_grad=True)
    for p, train in ((0.0, True), (0.5, False)):
        assert operators.dropout(x, p, train) is x
    torch.manual_seed(0)
    dropped = operators.dropout(x, 0.5, True)
    torch.manual_seed(0)
    assert torch.equal(dropped, torch.native_dropout(x, 0.5, True)[0])
    assert dropped.unique().tolist() == [0, 2]
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped.detach())
    assert operators.dropout(x, 1.0, True).tolist() == [0] * 100


# npu_operators.

BEHIND = "Tensor? pse=None, Tensor? atten_mask=None, float scale=1.0, float keep_prob=1.0, int sparse_mode=0"
SCHEMA = f"f(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *, {BEHIND}) -> Tensor"


@pytest.fixture
def schema_of_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = SimpleNamespace(default=SimpleNamespace(_schema=torch._C.parse_schema(SCHEMA)))
    named = {operators.LAST: schema, operators.V3: schema}
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(**named))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("hidden", ["nothing", "mask", "above"])
def test_the_reference_attention_is_torchs(kv_heads: int, hidden: str) -> None:
    q, k, v = bnsd(), bnsd(heads=kv_heads, tokens=5), bnsd(heads=kv_heads, tokens=5)
    mask = torch.rand(3, 5) > 0.5 if hidden == "mask" else torch.ones(3, 5).bool().triu(1)
    mask[:, 0] = False
    mode = operators.LEFT_UP if hidden == "above" else operators.ALL
    given = None if hidden == "nothing" else torch.zeros(2048, 2048) if hidden == "above" else mask
    out, top, total = operators._attention(q, k, v, given, 0.3, mode)
    shown = None if hidden == "nothing" else ~mask
    wanted = F.scaled_dot_product_attention(q, k, v, shown, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, wanted)
    scores = q @ k.repeat_interleave(4 // kv_heads, 1).transpose(2, 3) * 0.3
    scores = scores if shown is None else scores.masked_fill(mask, -math.inf)
    torch.testing.assert_close(top, scores.amax(-1, keepdim=True))
    torch.testing.assert_close(total, (scores - top).exp().sum(-1, keepdim=True))


def test_a_row_with_every_score_hidden_is_zero() -> None:
    mask = torch.zeros(3, 3).bool()
    mask[1] = True
    out, top, total = operators._attention(bnsd(), bnsd(), bnsd(), mask, 1.0, 0)
    assert torch.equal(out[:, :, 1], torch.zeros(2, 4, 8))
    assert top[0, 0, 1].item() == -math.inf
    assert (total[0, 0, 1].item(), bool(out[:, :, 0].any())) == (0.0, True)


@pytest.mark.usefixtures("schema_of_npu")
def test_the_kernel_gives_what_the_schema_says_beside_the_attention() -> None:
    q = bnsd(dtype=torch.float16)
    for name, seeds in ((operators.LAST, 3), (operators.V3, 2)):
        out, top, total, nothing, *rest = operators._kernel(name)(q, q, q, 4, "BNSD", scale=0.5)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, scale=0.5), atol=2e-3, rtol=2e-3)
        assert (out.dtype, out.is_contiguous(), nothing.numel(), len(rest)) == (torch.float16, True, 0, seeds)
        assert tuple(top.shape) == tuple(total.shape) == (2, 4, 3, 8)
        assert torch.equal(top[..., 0], top[..., 7])
        assert [int(seed) for seed in rest] == [0] * seeds


@pytest.mark.usefixtures("schema_of_npu")
def test_options_are_by_name_with_their_defaults() -> None:
    mask = torch.ones(1)
    assert operators._options(operators.V3, (None, mask), {"sparse_mode": 2}) == {
        "pse": None, "atten_mask": mask, "scale": 1.0, "keep_prob": 1.0, "sparse_mode": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"layout": "BSH"}, "is 'BSH' for (2, 4, 3, 8) and 4 heads"),
        ({"query": torch.ones(2, 4, 3)}, "is 'BNSD' for (2, 4, 3) and 4 heads"),
        ({"head_num": 3}, "is 'BNSD' for (2, 4, 3, 8) and 3 heads"),
        ({"options": {"sparse_mode": 1}}, "is 1"),
        ({"options": {"sparse_mode": 3}}, "is 3"),
        ({"keep_prob": 0.5}, "is 0.5"),
        *(({"options": {"sparse_mode": 0, name: 1}}, "is not supported here")
          for name in ("pse", "padding_mask", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sink", "dropout_mask")),
    ],
)  # fmt: skip
def test_what_the_reference_cannot_is_refused_by_name(changed: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "query": bnsd(),
        "head_num": 4,
        "layout": "BNSD",
        "options": {"sparse_mode": 2},
        "keep_prob": 1.0,
    }
    operators._refuse("f", *given.values())
    with pytest.raises(UnsupportedArgument) as caught:
        operators._refuse("f", *{**given, **changed}.values())
    assert words in str(caught.value)


GRADIENT = (
    "g(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout, *, Tensor? pse=None, "
    "Tensor? atten_mask=None, Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, "
    "Tensor? attention_in=None, float scale_value=1.0, float keep_prob=1.0, int pre_tockens=7, int next_tockens=0, "
    "int inner_precise=0, int sparse_mode=0) -> Tensor"
)


class Operator:
    """An operator of torch.ops.npu with a schema and, once somebody registered it, a kernel."""

    def __init__(self, schema: str) -> None:
        self.default = SimpleNamespace(_schema=torch._C.parse_schema(schema))
        self.kernel: Any = None
        self.asked: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.asked.append(named)
        return self.kernel(*args, **named)


@pytest.mark.parametrize("name", [operators.LAST, operators.V3])
def test_the_gradient_of_the_reference_attention_is_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = f"{BEHIND}, int pre_tockens=7, int next_tockens=0, int inner_precise=0"
    forward = SCHEMA.replace(BEHIND, behind)
    npu = {name: Operator(forward), operators.GRADIENTS[name]: Operator(GRADIENT)}
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(**npu))
    keys: list[str] = []
    autograd: dict[str, Any] = {}

    def impl(operator: str, kernel: Any, key: str) -> None:
        npu[operator].kernel = kernel
        keys.append(key)

    library: Any = SimpleNamespace(impl=impl)
    monkeypatch.setattr(
        torch.library,
        "register_autograd",
        lambda op, backward, **more: autograd.update(op=op, backward=backward, **more),
    )
    operators.register_fused_attention(library)
    assert keys == ["CPU", "CPU"]
    assert (autograd["op"], autograd["lib"]) == (f"npu::{name}", library)
    q, k, v = (bnsd().requires_grad_() for _ in range(3))
    mask = torch.tensor([[False, True, False]] * 3)
    given = (q, k, v, 4, "BNSD", None, mask, 0.3)
    with torch.no_grad():
        output = npu[name](*given)
    assert torch.is_grad_enabled()
    wanted = F.scaled_dot_product_attention(q, k, v, ~mask, scale=0.3)
    torch.testing.assert_close(output[0], wanted)
    ctx: Any = SimpleNamespace(save_for_backward=lambda *saved: setattr(ctx, "saved_tensors", saved))
    autograd["setup_context"](ctx, given, output)
    assert [id(one) for one in ctx.saved_tensors] == [id(one) for one in (q, k, v, mask, *output[:4])]
    dy = torch.randn_like(wanted)
    with torch.no_grad():
        gradients = autograd["backward"](ctx, dy, None, None)
    for found, right in zip(gradients, torch.autograd.grad(wanted, (q, k, v), dy), strict=False):
        torch.testing.assert_close(found, right)
        assert found.is_contiguous()
        assert not found.requires_grad
    assert list(gradients[3:]) == [None] * (2 + 8)
    [asked] = npu[operators.GRADIENTS[name]].asked
    assert (asked["softmax_max"] is output[1], asked["softmax_sum"] is output[2]) == (True, True)
    assert (asked["softmax_in"] is output[3], asked["attention_in"] is output[0]) == (True, True)
    assert (asked["scale_value"], asked["pre_tockens"], asked["sparse_mode"]) == (0.3, 7, 0)
    *_, nothing, last = npu[operators.GRADIENTS[name]].kernel(q, k, v, dy, 4, "BNSD")
    if name == operators.V3:
        assert (nothing.numel(), last.shape) == (0, ())
    else:
        assert (nothing, last.shape) == (None, (0,))
    for operator, extra in ((name, ()), (operators.GRADIENTS[name], (dy,))):
        with pytest.raises(UnsupportedArgument, match="keep_prob"):
            npu[operator](q, k, v, *extra, 4, "BNSD", keep_prob=0.5)


def test_an_operator_that_the_wheel_lacks_gets_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace())
    operators.register_fused_attention(None)  # type: ignore[arg-type]


def test_composites_are_registered_with_and_without_autograd() -> None:
    told: list[Any] = []
    operators.register_composites(SimpleNamespace(impl=lambda *given: told.append(given)))  # type: ignore[arg-type]
    sdpa, norm = operators.scaled_dot_product_attention, operators.weight_norm
    assert told == [
        ("scaled_dot_product_attention", sdpa, "AutogradCPU"), ("scaled_dot_product_attention", sdpa, "CPU"),
        ("_weight_norm", norm, "AutogradCPU"), ("_weight_norm", norm, "CPU"),
        ("dropout", operators.dropout, "AutogradCPU"), ("dropout", operators.dropout, "CPU"),
    ]  # fmt: skip
