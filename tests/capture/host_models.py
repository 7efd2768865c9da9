"""Models whose host reads, waits, draws or branches where a capture has no value yet; and models that only seem to."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.seeded import fault, legal

ITEM = "vllm-project/vllm-ascend #16736"
RUNTIME = "hicann/runtime: operation on a captured stream"
GENERATOR = "sgl-project/sgl-kernel-npu #138"


@fault("host_read", 107027, "torch.where", ITEM)
class Item(nn.Module):
    """A router that asks for its largest load."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        most = x.max().item()  # here
        return x / most


@fault("host_read", 107027, "torch.where", ITEM)
class BranchOnData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # here
            return x + 1
        return x - 1


@fault("host_read", 107027, "index tensor", ITEM)
class SliceByLength(nn.Module):
    """The number of tokens lies in a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = (x > 0).sum()
        return x.view(-1)[:length]  # here


@fault("host_read", 107027, "torch.where", ITEM)
class AssertOnData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.isfinite(x).all()  # here
        return x * 2


@fault("host_read", 107027, "torch.where", ITEM)
class EqualTensors(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if torch.equal(x, x + 1) else x * 2  # here


@fault("host_read", 107027, "keep the value on the device", ITEM)
class PrintTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        _ = f"the sum is {y.sum()}"  # here
        return y


@fault("data_shape", 107027, "torch.nonzero_static", RUNTIME)
class Nonzero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)  # here


@fault("data_shape", 107027, "a mask that multiplies", RUNTIME)
class MaskAsIndex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2  # here


@fault("synchronise", 107027, "behind the replay", RUNTIME)
class Synchronise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.npu.synchronize()  # here
        return y


@fault("generator_state", None, "register_generator_state", GENERATOR)
class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4, 4, generator=self.generator, device=x.device)  # here


@fault("graph_break", None, "out of forward()", "torch.compile", traced=True)
class Logs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        logging.getLogger("model").warning("a step of %s", "decode")  # here
        return y + 1


@fault("host_read", 107027, "torch.where", ITEM)
class CountInLoop(nn.Module):
    """As many rounds as the data ask for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int((x > 9).sum())):  # here
            x = x + 1
        return x


@fault("host_read", 107027, "torch.where", ITEM)
class LengthOfAllocation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        room = torch.zeros(int(x.max()), device=x.device)  # here
        return x.sum() + room


@fault("data_shape", 107027, "torch.topk", RUNTIME)
class MaskedSelect(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, x > 0)  # here


@fault("data_shape", 107027, "a result of fixed size", RUNTIME)
class Unique(nn.Module):
    """The experts that a batch uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x.argmax(dim=1))  # here


@fault("data_shape", 107027, "a result of fixed size", RUNTIME)
class RepeatInterleave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.tensor([1, 2, 0, 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.times, dim=0)  # here


@fault("data_shape", 107027, "a result of fixed size", RUNTIME)
class Bincount(nn.Module):
    """How many tokens each expert gets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x.argmax(dim=1))  # here


@fault("data_shape", 107027, "torch.where(condition, a, b)", RUNTIME)
class WhereOfOneArgument(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.where(x > 0)  # here
        return rows + columns


@fault("synchronise", 107027, "wait_stream(other)", RUNTIME)
class StreamSynchronize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.npu.current_stream().synchronize()  # here
        return y


@fault("synchronise", 107027, "event.wait()", RUNTIME)
class EventSynchronize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done = torch.npu.Event()
        y = x * 2
        done.record()
        done.synchronize()  # here
        return y


@fault("synchronise", 107027, "behind the replay", RUNTIME)
class EventQuery(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done = torch.npu.Event()
        done.record()
        return x * 2 if done.query() else x  # here


@fault("synchronise", 107027, "remove it", RUNTIME)
class EmptyCache(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu.empty_cache()  # here
        return x * 2


@fault("generator_state", None, "seed outside", GENERATOR)
class SeedInForward(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)  # here
        return x + torch.rand_like(x)


@fault("generator_state", None, "the default generator", GENERATOR)
class SampleWithOwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x.softmax(-1), 1, generator=self.generator)  # here


@fault("conditional", 107027, "one graph for each branch", "torch_npu 2.13.0: no torch.cond in NPUGraph")
class Cond(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))  # here


@fault("moves_memory", None, "x.copy_(new)", "CANN aclcppdevg_000519")
class ResizeCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.resize_(8, 4)  # here
        return x * 2


@fault("moves_memory", None, "x.copy_(new)", "CANN aclcppdevg_000519")
class ExchangeCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = x * 2
        self.cache.set_(new)  # here
        return new + 1


@torch.library.custom_op("capture_test::clipped", mutates_args=())
def clipped(x: torch.Tensor) -> torch.Tensor:
    limit = float(x.max())  # here
    return x.clamp(max=limit)


@fault("host_read", 107027, "torch.where", ITEM)
class ReadInCustomOperator(nn.Module):
    """The line is that of the operator's Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return clipped(x)


@fault("graph_break", None, "out of forward()", "torch.compile", traced=True)
class PrintsText(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("a step")  # here
        return y + 1


@torch.compiler.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@fault("graph_break", None, "compile.fullgraph=false", "torch.compile", traced=True)
class DisabledFunction(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return outside(x * 2) * 3  # here


@legal("host_read")
class NumberOfShape(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0] if x.numel() > 4 else x


@legal("host_read")
class ItemOfHostTensor(nn.Module):
    """A tensor that lies on the host may be read there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.arange(4).sum().item()
        return x * scale


@legal("host_read")
class Where(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.sum() > 0, x + 1, x - 1)


@legal("data_shape")
class NonzeroOfFixedSize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero_static(x > 0, size=8)


@legal("data_shape")
class IndexTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x.argmax(dim=1)]


@legal("generator_state")
class DefaultGenerator(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@legal("graph_break", traced=True)
class ReturnsList(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return [F.gelu(x), x.softmax(-1)]


@legal("data_shape")
class OneHotOfClasses(nn.Module):
    """With the number of classes given nobody looks for the largest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x.argmax(dim=1), num_classes=4)


@legal("data_shape")
class TopK(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.topk(2).values


@legal("data_shape")
class MaskMultiplies(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x > 0)


@legal("data_shape")
class MaskedFill(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.masked_fill(x > 0, 0.0)
        y[x < -2] = -2.0
        return y


@legal("data_shape")
class RepeatInterleaveOfKnownSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.tensor([1, 2, 0, 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.times, dim=0, output_size=6) + x.repeat_interleave(2, dim=0)[:6]


@legal("host_read")
class AssertOnShape(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[-1] == 4
        assert x.is_contiguous()
        return x * 2


@legal("host_read")
class FormatsShape(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _ = f"{tuple(x.shape)} {x.dtype} {x.device}"
        return x * 2


@legal("host_read")
class ReadWhileBuilt(nn.Module):
    """What happens before the capture is nobody's business."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = float(torch.rand(4, generator=torch.Generator()).max().item())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@legal("synchronise")
class QueryOfEarlierEvent(nn.Module):
    """An event from before the capture may be asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = torch.npu.Event()
        self.loaded.record()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.loaded.query() else x


@legal("synchronise")
class OtherStreamSynchronized(nn.Module):
    """A stream that takes no part in the capture may be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.loading = torch.npu.Stream()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.loading.synchronize()
        return x * 2


@legal("generator_state")
class DropoutInEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x) + 1


@legal("generator_state")
class SampleByDefault(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.empty_like(x).exponential_()
        return (x.softmax(-1) / noise).argmax(-1)


@legal("moves_memory")
class CacheWrittenInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("slots", torch.tensor([0, 2, 4, 6]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:4].copy_(x)
        self.cache[self.slots] = x
        self.cache.index_add_(0, self.slots, x)
        return self.cache + 1


@legal("moves_memory")
class InputWritten(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


@torch.library.custom_op("capture_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@legal("host_read")
class CustomOperator(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x) + 1


@legal("graph_break", traced=True)
class BranchOnConfiguration(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.residual = True
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) + x if self.residual else layer(x)
        return x


@legal("host_read")
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.RMSNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)[None]
        attended, _ = self.attention(y, y, y, need_weights=False)
        return F.scaled_dot_product_attention(attended, y, y, is_causal=True)


@legal("data_shape")
class Experts(nn.Module):
    """Every expert computes every token, weighted: no size depends on the routing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        return sum((weights[:, n : n + 1] * expert(x) for n, expert in enumerate(self.experts)), torch.zeros_like(x))
