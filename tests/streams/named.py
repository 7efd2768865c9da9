"""Graphs with names, with what each kernel asks of a device: what plans are compared on. The same in every process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache

from attrs import frozen

from npucompose.streams import dag
from npucompose.streams.simulate import Work
from tests.streams import dags, networks
from tests.streams.dags import Dag
from tests.streams.networks import Network, contraction, pointwise


@frozen(kw_only=True)
class NamedGraph:
    """A graph whose edges go forward, and the work of each kernel."""

    name: str
    then: Dag
    work: list[Work]

    @classmethod
    def from_network(cls, name: str, net: Network) -> NamedGraph:
        return cls(name=name, then=net.then, work=net.work)


def drawn_cube(chance: random.Random) -> Work:
    """A matrix product that fills a third of an Atlas A2's cube cores, or all of them."""
    return Work(us=chance.uniform(10, 60), cube=chance.choice([8, 24]))


def drawn_vector(chance: random.Random) -> Work:
    return Work(us=chance.uniform(3, 30), vector=chance.choice([4, 16, 48]))


def costed(count: int, chance: random.Random) -> list[Work]:
    """Kernels as a model has them: some fill the cube cores, most a few vector cores."""
    return [drawn_cube(chance) if chance.random() < 0.4 else drawn_vector(chance) for _ in range(count)]


def layered(layers: int = 25, width: int = 40, seed: int = 1) -> NamedGraph:
    """Layers of kernels, each of which reads one to three of the layer before: the "layer by layer" random graphs of
    T. Tobita, H. Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling algorithms",
    2002; costs as above."""
    chance = random.Random(seed)
    edges = [
        ((layer - 1) * width + source, layer * width + index)
        for layer in range(1, layers)
        for index in range(width)
        for source in sorted(chance.sample(range(width), chance.randint(1, 3)))
    ]
    count = layers * width
    return NamedGraph(name="layered", then=dag.successors(count, edges), work=costed(count, chance))


def banded(count: int, edges: int, span: int, seed: int = 1) -> NamedGraph:
    """Random edges that go forward by at most `span`, costs as above: the shape that planning is timed on."""
    work = costed(count, random.Random(seed))
    return NamedGraph(name=f"banded{count}", then=dags.random_dag(count, edges, seed, span), work=work)


def moe(experts: int = 64, layers: int = 3) -> NamedGraph:
    """Layers of 64 routed experts beside a shared one, D. Dai et al., "DeepSeekMoE", ACL 2024, in eight bits: what an
    expert multiplies is quantised before. Costs drawn, because routing makes the experts' tokens differ."""
    net, chance = Network(), random.Random(experts * layers)
    x = -1
    for _ in range(layers):
        x = _drawn_moe_layer(net, x, experts, chance)
    return NamedGraph.from_network(f"moe{experts}x{layers}", net)


def _drawn_moe_layer(net: Network, x: int, experts: int, chance: random.Random) -> int:
    norm = net.kernel(drawn_vector(chance), x)
    chosen = net.kernel(drawn_vector(chance), net.kernel(drawn_cube(chance), norm))
    sent = net.kernel(drawn_vector(chance), norm, chosen)
    done = [_drawn_expert(net, source, chance) for source in (norm, *[sent] * experts)]
    return net.kernel(drawn_vector(chance), x, chosen, *done)


def _drawn_expert(net: Network, x: int, chance: random.Random) -> int:
    """Quantise, the product for gate and value, activate and quantise, the product back, weigh."""
    for work in (drawn_vector, drawn_cube, drawn_vector, drawn_cube, drawn_vector):
        x = net.kernel(work(chance), x)
    return x


def two_tower(features: int = 64, layers: int = 3) -> NamedGraph:
    """A tower for the user and one for the item: X. Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large
    Corpus Item Recommendations", RecSys 2019: embeddings of each feature looked up, pooled and projected, dense layers
    over their concatenation, at the end the product of both; costs drawn, because features differ in bag and width."""
    net, chance = Network(), random.Random(features)
    user, item = (_tower(net, features, layers, chance) for _ in range(2))
    net.kernel(drawn_cube(chance), user, item)
    return NamedGraph.from_network("two_tower", net)


def _tower(net: Network, features: int, layers: int, chance: random.Random) -> int:
    parts: list[int] = []
    for _ in range(features):
        pooled = net.kernel(drawn_vector(chance), net.kernel(drawn_vector(chance)))
        parts.append(net.kernel(drawn_cube(chance), pooled))
    x = net.kernel(drawn_vector(chance), *parts)
    for _ in range(layers):
        x = net.kernel(drawn_vector(chance), net.kernel(drawn_cube(chance), x))
    return x


def moe_decode(experts: int = 64, hidden: int = 512, inner: int = 1024, tokens: int = 64) -> NamedGraph:
    """One layer of routed experts with the time of its shapes: DeepSeekMoE's structure with a width of 512."""
    net, chance = Network(), random.Random(experts)
    scores = net.kernel(contraction(tokens, hidden, experts))
    chosen = net.kernel(pointwise(tokens * experts, tokens * 6, 8), scores)
    sent = net.kernel(pointwise(tokens * hidden, tokens * 6 * hidden), chosen)
    shares = [max(1, round(chance.expovariate(experts / (6 * tokens)))) for _ in range(experts)]
    done = [_feed_forward(net, sent, hidden, inner, share) for share in shares]
    shared = _feed_forward(net, -1, hidden, 2 * inner, tokens)
    net.kernel(pointwise(tokens * 6 * hidden, tokens * hidden, 2), chosen, shared, *done)
    return NamedGraph.from_network(f"moe{experts}x{hidden}", net)


def _feed_forward(net: Network, x: int, hidden: int, inner: int, tokens: int) -> int:
    """A gated one: N. Shazeer, "GLU Variants Improve Transformer", 2020."""
    gate, up = (net.kernel(contraction(tokens, hidden, inner), x) for _ in range(2))
    product = net.kernel(pointwise(2 * tokens * inner, tokens * inner, 4), gate, up)
    return net.kernel(contraction(tokens, inner, hidden), product)


def decoder(layers: int = 32, hidden: int = 4096, inner: int = 11008, tokens: int = 16, past: int = 1024) -> NamedGraph:
    """A step of decoding as Llama's layers are: H. Touvron et al., "LLaMA", 2023, sizes of its 7B model; 17 kernels a
    layer."""
    net = Network()
    x = -1
    for _ in range(layers):
        x = _attention(net, x, hidden, tokens, past)
        norm = net.kernel(pointwise(tokens * hidden, tokens * hidden, 4), x)
        done = _feed_forward(net, norm, hidden, inner, tokens)
        x = net.kernel(pointwise(2 * tokens * hidden, tokens * hidden), x, done)
    return NamedGraph.from_network(f"decoder{layers}", net)


def _attention(net: Network, x: int, hidden: int, tokens: int, past: int) -> int:
    norm = net.kernel(pointwise(tokens * hidden, tokens * hidden, 4), x)
    query, key, value = (net.kernel(contraction(tokens, hidden, hidden), norm) for _ in range(3))
    turned = net.kernel(pointwise(tokens * hidden, tokens * hidden, 4), query)
    kept = net.kernel(pointwise(tokens * hidden, tokens * hidden, 4), key)
    keys, values = (net.kernel(pointwise(tokens * hidden, tokens * hidden), made) for made in (kept, value))
    scores = net.kernel(contraction(tokens, hidden, past), turned, keys)
    weights = net.kernel(pointwise(tokens * past * 32, tokens * past * 32, 4), scores)
    mixed = net.kernel(contraction(tokens, past, hidden), weights, values)
    projected = net.kernel(contraction(tokens, hidden, hidden), mixed)
    return net.kernel(pointwise(2 * tokens * hidden, tokens * hidden), x, projected)


def wide_vec(chains: int = 16, depth: int = 8, elements: int = 1 << 18) -> NamedGraph:
    """Chains of elementwise kernels on one long vector, which share cores and bandwidth, and the sum of all: what is
    left of a fork and join (Tobita and Kasahara) where nothing computes."""
    net = Network()
    ends: list[int] = []
    for chain in range(chains):
        at = -1
        for _ in range(depth):
            at = net.kernel(pointwise(elements >> chain % 3, elements >> chain % 3, 4), at)
        ends.append(at)
    net.kernel(pointwise(chains * elements, elements), *ends)
    return NamedGraph.from_network("wide_vec", net)


def _published(name: str, make: Callable[[], Network]) -> Callable[[], NamedGraph]:
    return lambda: NamedGraph.from_network(name, make())


_MAKERS: Mapping[str, Callable[[], NamedGraph]] = {
    "layered": layered,
    "moe64x3": moe,
    "two_tower": two_tower,
    "randwire": _published("randwire", networks.randwire),
    "darts": _published("darts", networks.darts),
    "inception_v3": _published("inception_v3", networks.inception_v3),
    "nasnet_a": _published("nasnet_a", networks.nasnet_a),
    "decoder": decoder,
    "wide_vec": wide_vec,
    "moe64x512": moe_decode,
}
LARGE: Mapping[str, Callable[[], NamedGraph]] = {
    "layered10k": lambda: layered(layers=250),
    "decoder10k": lambda: decoder(layers=527),
    "layered50k": lambda: layered(layers=1250),
    "decoder50k": lambda: decoder(layers=2632),
}
"""Of 10,000 and of 50,000 kernels: what planning is timed on."""
NAMES = tuple(_MAKERS)
WIDE = ("layered", "moe64x3", "two_tower")
"""Families with far more independent kernels than streams."""


@cache
def graph(name: str) -> NamedGraph:
    """The graph of that name, one of `NAMES` or `LARGE`."""
    return {**_MAKERS, **LARGE}[name]()
