"""Plans by the shape of a graph: chains by matching, merged where nothing is lost, laid on a few streams.

W. Kwon et al., "Nimble", NeurIPS 2020 (matching on the minimum equivalent graph gives the fewest synchronisations among
all plans that keep every two independent kernels apart); R. Dilworth 1950 by matching on the closure (the fewest
streams among those plans); L. Ford, D. Fulkerson 1962 by matching on the edges as they are. Knows only numbers; loads
no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from npucompose.streams import dag
from npucompose.streams.dag import NONE, by_bits, hopcroft_karp

Chains = list[list[int]]


@frozen
class Shape:
    """A graph with what every algorithm asks of it, worked out once; `then` goes forward."""

    then: dag.Successors
    behind: Sequence[int]
    """Bit set of each node's descendants, itself included."""
    ahead: Sequence[int]
    """Bit set of each node's ancestors, itself included."""
    needed: Sequence[Sequence[int]]
    """The minimum equivalent graph, the successor with the most work behind it first."""
    weights: Sequence[float]

    @classmethod
    def from_work(cls, then: dag.Successors, weights: Sequence[float]) -> Shape:
        behind = dag.descendants(then)
        urgency = dag.longest_paths(weights, then)
        needed = [sorted(own, key=lambda t: (-urgency[t], t)) for own in dag.minimum_equivalent(then, behind)]
        return cls(then, behind, dag.ancestors(then), needed, weights)


def fewest_syncs(shape: Shape) -> Chains:
    """Chains with the fewest synchronisations among all plans that keep every two independent kernels apart.

    There are (edges of the minimum equivalent graph) - (pairs matched) of them; a chain continues in another one where
    everything of the one is done before everything of the other begins, which adds none.
    """
    return _merged(_follow(hopcroft_karp(shape.needed)), shape)


def fewest_streams(shape: Shape) -> Chains:
    """As few chains as there are kernels that can all run at once (the width), at more synchronisations."""
    closure = [reach & ~(1 << index) for index, reach in enumerate(shape.behind)]
    return _follow(by_bits(closure, hopcroft_karp(shape.needed)))


def fewest_paths(then: dag.Successors) -> Chains:
    """As few chains along edges as there can be: a matching on the edges as they are, without reduction or closure."""
    return _follow(hopcroft_karp([list(dict.fromkeys(targets)) for targets in then]))


def _follow(partner: Sequence[int]) -> Chains:
    """Chains in the order of their first nodes."""
    follows = set(partner)
    chains: Chains = []
    for index in range(len(partner)):
        if index in follows:
            continue
        chain = [index]
        while partner[chain[-1]] != NONE:
            chain.append(partner[chain[-1]])
        chains.append(chain)
    return chains


def _merged(chains: Chains, shape: Shape) -> Chains:
    """Join chains end to beginning where the end reaches the beginning: a second matching, on the chains."""
    number = {chain[0]: index for index, chain in enumerate(chains)}
    heads = dag.bit_set(number)
    behind = [shape.behind[chain[-1]] & ~(1 << chain[-1]) & heads for chain in chains]
    reached = [dag.bit_set(number[head] for head in dag.bits(mask)) for mask in behind]
    return [[index for member in group for index in chains[member]] for group in _follow(by_bits(reached))]


@define
class _ChainStream:
    """A stream while chains are laid on it."""

    members: int = 0
    """Bit set of its nodes."""
    load: float = 0.0
    nodes: list[int] = field(factory=list)

    def take(self, chain: Sequence[int], load: float) -> None:
        self.members |= dag.bit_set(chain)
        self.load += load
        self.nodes += chain


EVENT_LOCAL, CONFLICT, LOAD, NEW_STREAM = 3, 4, 2, 2
"""What GE's score weighs too (compiler/graph/build/dag of GE), in its proportions: an event that falls away, a kernel
that could have overlapped, the load of a stream in even shares, the price of one more stream."""


def laid_on(chains: Chains, shape: Shape, streams: int) -> list[int]:
    """The stream of each node when at most `streams` may be used: chains are placed heaviest first.

    A chain goes where the fewest of its kernels lose a partner that they could run beside; then where most of its
    synchronisations fall away; then where the load is least. As many chains as streams keep a stream each.
    """
    if len(chains) <= streams:
        return _numbered(chains)
    before = dag.predecessors(shape.needed)
    lanes = [_ChainStream() for _ in range(streams)]
    loads = [sum(shape.weights[index] for index in chain) for chain in chains]
    share = sum(loads) / streams or 1.0
    for place in sorted(range(len(chains)), key=lambda i: (-loads[i], chains[i][0])):
        chain = chains[place]
        ordered = shape.ahead[chain[0]] | shape.behind[chain[-1]]
        near = dag.bit_set(other for index in chain for other in (*shape.needed[index], *before[index]))
        lane = min(lanes, key=lambda lane: _score(lane, chain, ordered, near, share))
        lane.take(chain, loads[place])
    return _numbered([lane.nodes for lane in lanes])


def _numbered(groups: Sequence[Sequence[int]]) -> list[int]:
    """The number of each node's group."""
    number = {index: place for place, group in enumerate(groups) for index in group}
    return [number[index] for index in range(len(number))]


def _score(lane: _ChainStream, chain: Sequence[int], ordered: int, near: int, share: float) -> float:
    conflict = min((lane.members & ~ordered).bit_count(), len(chain))
    saved = (lane.members & near).bit_count()
    new = 0 if lane.members else NEW_STREAM
    return CONFLICT * conflict - EVENT_LOCAL * saved + LOAD * len(chain) * lane.load / share + new
