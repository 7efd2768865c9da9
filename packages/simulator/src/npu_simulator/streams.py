"""The streams of a device: pools of fixed size, so that the 33rd `torch.npu.Stream()` is the first one again.

A stream's number is `kind << 5 | index`, as torch_npu makes it (Ascend/pytorch, core/npu/NPUStream.cpp:59, 97, 133);
with STREAMS_PER_DEVICE=8 a pool has 8 and the number is `kind << 3 | index`.
"""

from __future__ import annotations

import enum
import os
import threading
import warnings
from collections import Counter

from npu_simulator.refusals import library_error
from npucompose.npu.capture.simulated.runtime import DEVICE_TYPE

MOST_DEVICES = 32
"""C10_COMPILE_TIME_MAX_NPUS."""
HANDLES = 0x1000
"""An address that is not zero: torch_npu prints an event whose address is zero as one that does not exist yet."""
EXTERNAL = 1 << 30
"""The bit in the number of a stream that another library made."""


class StreamKind(enum.IntEnum):
    """The pools, by torch_npu's numbers."""

    DEFAULT = 0
    SECONDARY = 1
    SYNCLAUNCH = 2
    NORMAL = 3
    HIGH = 4


class StreamPools:
    """Hands out streams by their numbers: `take()` is 96, 97, …, 127, 96 again; `take(priority=-1)` is 128."""

    def __init__(self) -> None:
        self.size = _streams_per_pool()
        self.bits = self.size.bit_length() - 1
        self._taken: Counter[StreamKind] = Counter()
        self._external: list[int] = []
        """Addresses of streams that another library made."""

    def take(self, priority: int = 0, *, sync_launch: bool = False) -> int:
        """The next of the pool; a negative priority is the high one, as torch_npu has two."""
        kind = StreamKind.SYNCLAUNCH if sync_launch else StreamKind.HIGH if priority < 0 else StreamKind.NORMAL
        index = self._taken[kind] % self._size_of(kind)
        self._taken[kind] += 1
        return kind << self.bits | index

    def wrap(self, address: int) -> int:
        """The number of another library's stream: the same for the same address."""
        if address not in self._external:
            self._external.append(address)
        return EXTERNAL | self._external.index(address)

    def address(self, stream: int) -> int:
        """What torch_npu gives as the address of a stream."""
        return self._external[stream ^ EXTERNAL] if stream & EXTERNAL else HANDLES + stream

    def own(self, stream: int, call: str) -> None:
        """RuntimeError where the stream is another library's, which the call does not take."""
        if stream & EXTERNAL:
            raise library_error("external_stream_in", call=call)

    def check(self, stream: int, device_index: int, device_type: int) -> None:
        """RuntimeError, in torch_npu's words, where the three numbers name no stream that there is."""
        if device_type != DEVICE_TYPE:
            raise library_error("stream_device_type", wanted=DEVICE_TYPE, given=device_type)
        device = (device_index + 128) % 256 - 128  # torch keeps it in one byte
        if not 0 <= device < MOST_DEVICES:
            raise library_error("stream_device_index", index=device, most=MOST_DEVICES)
        number = stream & 0xFFFFFFFF
        kind, index = number >> self.bits, number & (self.size - 1)
        found = {"stream": f"stream {stream} on device npu:{device}", "kind": kind, "index": index, "device": device}
        if number & EXTERNAL:
            if device == 0 and number ^ EXTERNAL < len(self._external):
                return
            raise library_error("external_stream", **found)
        if kind not in list(StreamKind):
            raise library_error("stream_type", **found)
        if wrong := self._wrong(StreamKind(kind), index, there=device == 0):
            raise library_error(wrong, **found, most=self._size_of(StreamKind(kind)))

    def _wrong(self, kind: StreamKind, index: int, there: bool) -> str | None:
        """The check that the number fails; `there`: the device exists."""
        match kind:
            case StreamKind.DEFAULT:
                return "default_stream_index" if index else None if there else "default_of_no_device"
            case StreamKind.SECONDARY:
                return None if there else "secondary_of_no_device"
            case StreamKind.SYNCLAUNCH if index >= self._size_of(kind):
                return "sync_launch_index"
        if there and self._taken[kind]:
            return None
        return "sync_launch_of_no_pool" if kind is StreamKind.SYNCLAUNCH else "stream_of_no_pool"

    def _size_of(self, kind: StreamKind) -> int:
        return 4 if kind is StreamKind.SYNCLAUNCH else self.size


def _streams_per_pool() -> int:
    given = os.environ.get("STREAMS_PER_DEVICE", "32")
    if given in ("8", "32"):
        return int(given)
    warnings.warn(
        f"STREAMS_PER_DEVICE only support 8 or 32, but get {given}, so reset it to the default value 32", stacklevel=3
    )
    return 32


class CurrentStreams(threading.local):
    """The current stream of each thread: another thread begins on the default stream."""

    def __init__(self) -> None:
        self._stack = [0]

    @property
    def current(self) -> int:
        return self._stack[-1]

    def set(self, stream: int) -> None:
        self._stack[-1] = stream

    def enter(self, stream: int) -> None:
        self._stack.append(stream)

    def leave(self) -> None:
        self._stack.pop()
