"""Code that Inductor made of a graph, as a later process finds it again by its key: no pass runs then, and neither
AOTAutograd nor Inductor is asked.

For who keeps facts of each graph that was compiled and hands them to a later process, as an engine does for the pieces
of a model. Whoever does answers for graph, passes and settings being the same; the code lies in Inductor's cache.
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class KeptCode:
    """One graph of Dynamo's without frozen weights, around which AOTAutograd does nothing of its own; plain values."""

    key: str
    """In Inductor's cache."""
    guards: str
    """Under which the cache has it: an expression of its symbols."""
    graph: str
    """The key under which its products are known."""
    state: str
    """A digest of the threads and of what else of torch's state decides which code is made."""
    fixed: tuple[int, ...]
    """The inputs whose address does not change."""
    changed: tuple[int, ...]
    """The inputs whose version AOTAutograd's wrapper raises after each call."""
