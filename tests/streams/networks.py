"""Published convolutional networks, kernel by kernel, with what each kernel asks of a device: batch 1, half precision.

A convolution is one kernel on cube cores, batch normalisation folded into it; ReLU, sums, pooling, depthwise
convolutions and concatenations are kernels on vector cores. Time is a launch and the longer of arithmetic and memory
traffic on the nominal Atlas A2; a kernel fills as many cores as its result has tiles.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from attrs import define, field, frozen

from npucompose.streams import dag
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import ATLAS_A2
from tests.streams.dags import Dag

CUBE_TILE, VECTOR_TILE, ELEMENT_BYTES = 128 * 128, 4096, 2
IMAGE = 224


def contraction(rows: int, inner: int, columns: int) -> Work:
    """A matrix product `[rows, inner] @ [inner, columns]` on cube cores."""
    read_and_made = rows * inner + inner * columns + rows * columns
    cores = _filled(rows * columns, CUBE_TILE, ATLAS_A2.cube)
    return _work(2 * rows * inner * columns / (cores * ATLAS_A2.cube_gflops * 1e3), read_and_made, cube=cores)


def pointwise(read: int, made: int, operations: float = 1) -> Work:
    """So many elements read and made on vector cores, with so many operations for each."""
    most = max(read, made)
    cores = _filled(most, VECTOR_TILE, ATLAS_A2.vector)
    return _work(most * operations / (cores * ATLAS_A2.vector_gflops * 1e3), read + made, vector=cores)


def _filled(elements: int, tile: int, most: int) -> int:
    return max(1, min(most, math.ceil(elements / tile)))


def _work(busy_us: float, elements: int, *, cube: int = 0, vector: int = 0) -> Work:
    memory_us = elements * ELEMENT_BYTES / (ATLAS_A2.gbytes_s * 1e3)
    us = ATLAS_A2.launch_us + max(busy_us, memory_us)
    return Work(us=us, cube=cube, vector=vector, bandwidth=memory_us / us)


@frozen
class Value:
    """What a kernel made: `channels` pictures of `side` by `side`; kernel -1 is the network's input."""

    kernel: int
    channels: int
    side: int

    @property
    def elements(self) -> int:
        return self.channels * self.side**2


@define
class Network:
    """Kernels in a legal order, written as the layers of a network."""

    before: list[list[int]] = field(factory=list)
    work: list[Work] = field(factory=list)

    def kernel(self, work: Work, *inputs: int) -> int:
        self.before.append(sorted({index for index in inputs if index >= 0}))
        self.work.append(work)
        return len(self.work) - 1

    @property
    def then(self) -> Dag:
        edges = [(first, index) for index, firsts in enumerate(self.before) for first in firsts]
        return dag.successors(len(self.work), sorted(edges))

    def made(self, work: Work, channels: int, side: int, *inputs: Value) -> Value:
        return Value(self.kernel(work, *(one.kernel for one in inputs)), channels, side)

    def conv(self, x: Value, channels: int, taps: int = 1, stride: int = 1, *, valid: bool = False) -> Value:
        """A convolution of `taps` positions (9 for 3x3, 7 for 1x7), without padding where `valid`."""
        side = _smaller(x.side, math.isqrt(taps) if valid else 1, stride)
        return self.made(contraction(side * side, x.channels * taps, channels), channels, side, x)

    def relu(self, x: Value) -> Value:
        return self.made(pointwise(x.elements, x.elements), x.channels, x.side, x)

    def conv_relu(self, x: Value, channels: int, taps: int = 1, stride: int = 1, *, valid: bool = False) -> Value:
        return self.relu(self.conv(x, channels, taps, stride, valid=valid))

    def relu_conv(self, x: Value, channels: int, stride: int = 1) -> Value:
        return self.conv(self.relu(x), channels, 1, stride)

    def pool(self, x: Value, size: int = 3, stride: int = 1, *, valid: bool = False) -> Value:
        side = _smaller(x.side, size if valid else 1, stride)
        return self.made(pointwise(x.elements, x.channels * side**2, size * size), x.channels, side, x)

    def separable(self, x: Value, channels: int, size: int, stride: int = 1) -> Value:
        """ReLU, a depthwise convolution, a 1x1 convolution."""
        x = self.relu(x)
        side = _smaller(x.side, 1, stride)
        work = pointwise(x.elements, x.channels * side**2, 2 * size * size)
        return self.conv(self.made(work, x.channels, side, x), channels)

    def twice_separable(self, x: Value, channels: int, size: int, stride: int = 1) -> Value:
        return self.separable(self.separable(x, channels, size, stride), channels, size)

    def add(self, *inputs: Value) -> Value:
        x = inputs[0]
        return self.made(pointwise(len(inputs) * x.elements, x.elements), x.channels, x.side, *inputs)

    def concat(self, *inputs: Value) -> Value:
        channels = sum(one.channels for one in inputs)
        elements = channels * inputs[0].side ** 2
        return self.made(pointwise(elements, elements), channels, inputs[0].side, *inputs)

    def classifier(self, x: Value) -> None:
        pooled = self.made(pointwise(x.elements, x.channels), x.channels, 1, x)
        self.conv(pooled, 1000)


def _smaller(side: int, size: int, stride: int) -> int:
    return math.ceil((side - size + 1) / stride)


def inception_v3() -> Network:
    """C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016, in the widths of
    torchvision's `inception_v3`; the auxiliary classifier, which only training needs, left out."""
    net = Network()
    x = net.conv_relu(Value(-1, 3, 299), 32, 9, 2, valid=True)
    x = net.conv_relu(net.conv_relu(x, 32, 9, valid=True), 64, 9)
    x = net.conv_relu(net.pool(x, 3, 2, valid=True), 80)
    x = net.pool(net.conv_relu(x, 192, 9, valid=True), 3, 2, valid=True)
    for pooled in (32, 64, 64):
        x = _inception_a(net, x, pooled)
    x = _inception_b(net, x)
    for inner in (128, 160, 160, 192):
        x = _inception_c(net, x, inner)
    x = _inception_d(net, x)
    net.classifier(_inception_e(net, _inception_e(net, x)))
    return net


def _chain(net: Network, x: Value, *layers: tuple[int, int]) -> Value:
    """Convolutions one after the other, each (channels, taps)."""
    for channels, taps in layers:
        x = net.conv_relu(x, channels, taps)
    return x


def _inception_a(net: Network, x: Value, pooled: int) -> Value:
    return net.concat(
        _chain(net, x, (64, 1)),
        _chain(net, x, (48, 1), (64, 25)),
        _chain(net, x, (64, 1), (96, 9), (96, 9)),
        _chain(net, net.pool(x), (pooled, 1)),
    )


def _inception_b(net: Network, x: Value) -> Value:
    left = net.conv_relu(x, 384, 9, 2, valid=True)
    middle = net.conv_relu(_chain(net, x, (64, 1), (96, 9)), 96, 9, 2, valid=True)
    return net.concat(left, middle, net.pool(x, 3, 2, valid=True))


def _inception_c(net: Network, x: Value, inner: int) -> Value:
    return net.concat(
        _chain(net, x, (192, 1)),
        _chain(net, x, (inner, 1), (inner, 7), (192, 7)),
        _chain(net, x, (inner, 1), (inner, 7), (inner, 7), (inner, 7), (192, 7)),
        _chain(net, net.pool(x), (192, 1)),
    )


def _inception_d(net: Network, x: Value) -> Value:
    left = net.conv_relu(_chain(net, x, (192, 1)), 320, 9, 2, valid=True)
    middle = net.conv_relu(_chain(net, x, (192, 1), (192, 7), (192, 7)), 192, 9, 2, valid=True)
    return net.concat(left, middle, net.pool(x, 3, 2, valid=True))


def _inception_e(net: Network, x: Value) -> Value:
    second = _chain(net, x, (384, 1))
    third = _chain(net, x, (448, 1), (384, 9))
    return net.concat(
        _chain(net, x, (320, 1)),
        *(_chain(net, branch, (384, 3)) for branch in (second, second, third, third)),
        _chain(net, net.pool(x), (192, 1)),
    )


def nasnet_a(stacked: int = 4, filters: int = 44) -> Network:
    """NASNet-A (mobile: 4 @ 1056): B. Zoph et al., "Learning Transferable Architectures for Scalable Image
    Recognition", CVPR 2018, figure 4 and appendix A: two reduction cells behind the stem, then three stacks of normal
    cells with a reduction cell between them."""
    net = Network()
    before = x = net.conv(Value(-1, 3, IMAGE), 32, 9, 2, valid=True)
    width = filters // 4
    for _ in range(2):
        before, x = x, _nasnet_reduction(net, x, before, width)
        width *= 2
    for stack in range(3):
        if stack:
            before, x = x, _nasnet_reduction(net, x, before, width * 2)
            width *= 2
        for _ in range(stacked):
            before, x = x, _nasnet_normal(net, x, before, width)
    net.classifier(net.relu(x))
    return net


def _adjusted(net: Network, x: Value, before: Value, width: int) -> tuple[Value, Value]:
    """Both inputs of a cell by 1x1 convolutions, with the picture before made as small as the current one."""
    stride = max(1, round(before.side / x.side))
    left = net.relu_conv(before, width, stride)
    return net.relu_conv(x, width), Value(left.kernel, width, x.side)


def _nasnet_normal(net: Network, x: Value, before: Value, width: int) -> Value:
    cur, prev = _adjusted(net, x, before, width)
    sums = (
        net.add(net.twice_separable(cur, width, 3), cur),
        net.add(net.twice_separable(prev, width, 3), net.twice_separable(cur, width, 5)),
        net.add(net.pool(cur), prev),
        net.add(net.pool(prev), net.pool(prev)),
        net.add(net.twice_separable(prev, width, 5), net.twice_separable(prev, width, 3)),
    )
    return net.concat(prev, *sums)


def _nasnet_reduction(net: Network, x: Value, before: Value, width: int) -> Value:
    cur, prev = _adjusted(net, x, before, width)
    first = net.add(net.twice_separable(prev, width, 7, 2), net.twice_separable(cur, width, 5, 2))
    second = net.add(net.pool(cur, 3, 2), net.twice_separable(prev, width, 7, 2))
    third = net.add(net.pool(cur, 3, 2), net.twice_separable(prev, width, 5, 2))
    fourth = net.add(net.pool(cur, 3, 2), net.twice_separable(first, width, 3))
    return net.concat(second, third, fourth, net.add(net.pool(first), second))


def darts(cells: int = 14, channels: int = 48) -> Network:
    """The network of DARTS' second order search for ImageNet: H. Liu et al., "DARTS: Differentiable Architecture
    Search", ICLR 2019, figures 4 and 5 and section 3.3 (14 cells, 48 channels, the stem divides sides by 8)."""
    net = Network()
    before = net.conv(net.conv_relu(Value(-1, 3, IMAGE), channels // 2, 9, 2), channels, 9, 2)
    x = net.conv(net.relu(before), channels, 9, 2)
    for cell in range(cells):
        reduces = cell in (cells // 3, 2 * cells // 3)
        channels *= 2 if reduces else 1
        cur, prev = _adjusted(net, x, before, channels)
        before, x = x, (_darts_reduction if reduces else _darts_normal)(net, cur, prev, channels)
    net.classifier(x)
    return net


def _darts_normal(net: Network, cur: Value, prev: Value, width: int) -> Value:
    first = net.add(net.twice_separable(prev, width, 3), net.twice_separable(cur, width, 3))
    second = net.add(net.twice_separable(prev, width, 3), net.twice_separable(cur, width, 3))
    third = net.add(net.twice_separable(cur, width, 3), prev)
    return net.concat(first, second, third, net.add(prev, net.separable(first, width, 3)))


def _darts_reduction(net: Network, cur: Value, prev: Value, width: int) -> Value:
    first = net.add(net.pool(prev, 3, 2), net.pool(cur, 3, 2))
    second = net.add(first, net.pool(cur, 3, 2))
    third = net.add(net.pool(prev, 3, 2), first)
    return net.concat(first, second, third, net.add(first, net.pool(cur, 3, 2)))


def randwire(nodes: int = 32, neighbours: int = 4, rewired: float = 0.75, channels: int = 78, seed: int = 1) -> Network:
    """RandWire-WS in the small regime: S. Xie et al., "Exploring Randomly Wired Neural Networks for Image
    Recognition", ICCV 2019, sections 3.2 to 3.4: three stages whose nodes are wired by Watts and Strogatz' model."""
    net, chance = Network(), random.Random(seed)
    x = net.conv(net.conv_relu(Value(-1, 3, IMAGE), channels // 2, 9, 2), channels, 9, 2)
    for stage in range(3):
        x = _random_stage(net, x, _watts_strogatz(nodes, neighbours, rewired, chance), channels << stage)
    net.classifier(net.conv_relu(x, 1280))
    return net


def _watts_strogatz(nodes: int, neighbours: int, rewired: float, chance: random.Random) -> list[list[int]]:
    """The inputs of each node: a ring where each has `neighbours`, edges rewired at random, from lower to higher."""
    edges: set[tuple[int, int]] = set()
    for step in range(1, neighbours // 2 + 1):
        for node in range(nodes):
            free = [other for other in range(nodes) if other != node and _pair(node, other) not in edges]
            near = (node + step) % nodes
            edges.add(_pair(node, near if near in free and chance.random() >= rewired else chance.choice(free)))
    return dag.predecessors(dag.successors(nodes, sorted(edges)))


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _random_stage(net: Network, x: Value, inputs: Sequence[Sequence[int]], channels: int) -> Value:
    """Each node: the weighted sum of its inputs, ReLU, a separable convolution; those without input halve the side."""
    made: list[Value] = []
    for sources in inputs:
        stride = 1 if sources else 2
        parts = [made[source] for source in sources] or [x]
        made.append(net.separable(net.add(*parts) if len(parts) > 1 else parts[0], channels, 3, stride))
    used = {source for sources in inputs for source in sources}
    return net.add(*(value for index, value in enumerate(made) if index not in used))
