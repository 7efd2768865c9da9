"""Models that copy between host and device, or give a kernel what lies on the host; and models that only seem to."""

from __future__ import annotations

import torch
from torch import nn

from tests.capture.seeded import fault, legal

COPY = "vllm-project/vllm-ascend #6002"
COPIES = "vllm-project/vllm-ascend #8992, #10630, #11514"
PAGEABLE = "CANN aclcppdevg_03_1788"
PLACE = "torch: all tensors of a kernel lie on one device"


@fault("sync_copy", 107030, "on the device (device=x.device)", COPY)
class Cpu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (x > 0).sum(1).cpu()  # here
        return x * 2 + lengths.numel()


@fault("sync_copy", 107030, "copy before the capture", COPY)
class ToCpu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = x.argmax(1).to("cpu")  # here
        return x * lengths.numel()


@fault("sync_copy", 107030, "copy before the capture", COPY)
class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.numpy().mean())  # here


@fault("sync_copy", 107030, "copy before the capture", COPY)
class SplitByLengths(nn.Module):
    """Sequence lengths as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lengths", torch.tensor([1, 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = x.split(self.lengths.tolist())  # here
        return torch.cat([last, first])


@fault("sync_copy", 107030, "make the tensor on the device", COPIES)
class TensorOfNumbers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)  # here


@fault("sync_copy", 107030, "make the tensor on the device", COPIES)
class AsTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.as_tensor([2.0] * 4, device="npu")  # here


@fault("sync_copy", 107030, "make the tensor on the device", COPIES)
class NewTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.new_tensor([1, 2, 3, 4])  # here


@fault("sync_copy", 107030, "copy before the capture", COPIES)
class ArangeMoved(nn.Module):
    """Positions are made on the host and moved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(4).to(x.device)  # here


@fault("sync_copy", 107030, "make the tensor on the device", COPIES)
class IndexOfHost(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([0, 2])]  # here


@fault("sync_copy", 107030, "non_blocking=True", COPIES)
class CopyFromHostBuffer(nn.Module):
    """The step's input is copied into its place inside the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(4))
        self.step = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.place.copy_(self.step)  # here
        return x + self.place


@fault("sync_copy", 107030, "page-locked memory and non_blocking=True", COPIES)
class PinnedAndBlocking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = torch.ones(4).pin_memory()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step.to(x.device)  # here


@fault("pageable_copy", 107030, "tensor.pin_memory()", PAGEABLE)
class PageableNotBlocking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step.to(x.device, non_blocking=True)  # here


@fault("pageable_copy", 107030, "tensor.pin_memory()", PAGEABLE)
class PageableResult(nn.Module):
    """The result goes to a buffer of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.result = torch.zeros(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.result.copy_(y, non_blocking=True)  # here
        return y


@fault("host_tensor", None, "register_buffer", PLACE)
class PlainAttribute(nn.Module):
    """No buffer: model.to(device) leaves it where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale  # here


@fault("host_tensor", None, "register_buffer", PLACE)
class ListOfTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = [torch.ones(4), torch.zeros(4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.tables[0]  # here


@fault("host_tensor", None, "device=x.device", PLACE)
class MaskOfHost(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        causal = torch.ones(4, 4).tril()
        return x * causal  # here


@legal("sync_copy")
class ArangeOnDevice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(4, device=x.device)


@legal("sync_copy")
class FullOnDevice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limit = torch.full((), 3.0, device=x.device)
        return torch.minimum(x, limit) + x.new_zeros(4) + x.new_full((4,), 2.0)


@legal("sync_copy")
class OtherType(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float16).to(x.device).to(x) + x.half().float()


@legal("sync_copy")
class CopiedWhileBuilt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weights = torch.ones(4, device="npu")
        self.register_buffer("weights", weights.cpu().to("npu"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weights


@legal("pageable_copy")
class PinnedNotBlocking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = torch.ones(4).pin_memory()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step.to(x.device, non_blocking=True)


@legal("pageable_copy")
class PinnedResult(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.result = torch.zeros(4, 4, pin_memory=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.result.copy_(y, non_blocking=True)
        return y


@legal("sync_copy")
class ToCpuNotBlocking(nn.Module):
    """Torch page-locks the new tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.to("cpu", non_blocking=True)
        return y


@legal("host_tensor")
class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@legal("host_tensor")
class AttributeOnDevice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4, device="npu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@legal("host_tensor")
class NumberInTensor(nn.Module):
    """A tensor of the host without dimensions is an argument of the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@legal("host_tensor")
class SharesItsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(8))
        self.half = self.table[:4]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.half


@legal("sync_copy")
class HostOnly(nn.Module):
    """What is computed on the host of what lies there becomes constants."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = torch.tensor([1, 3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = x.split(self.lengths.cumsum(0).diff(prepend=torch.zeros(1, dtype=torch.long)).tolist())
        return torch.cat([last, first])
