"""The other ranks of a process group, as torch.distributed knows them: what each of them says, by the group's store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from npucompose.errors import PlanError

_TURNS: Counter[Sequence[int]] = Counter()
"""How often this process has asked each set of ranks: all of them count alike."""
_AGREED: set[str] = set()
"""What all ranks have said alike: a graph that one of them compiles again, for another shape, needs nobody."""


def exchange(text: str, groups: Sequence[str]) -> Mapping[int, str]:
    """{rank: what it said} of all ranks of these process groups, which must come here as often as this one.

    Only the own text where the process has no such groups, or the same was agreed on before. No collective is issued.
    Raises PlanError("rank_missing", …) where a rank does not come within the time of the process group.
    """
    distributed: Any = torch.distributed
    if text in _AGREED or not distributed.is_available() or not distributed.is_initialized():
        return {0: text}
    ranks = _members(distributed, groups)
    if len(ranks) < 2:
        return {0: text}
    store = distributed.distributed_c10d._get_default_store()
    turn = _TURNS[ranks]
    _TURNS[ranks] += 1
    said = told(store, f"npucompose/{ranks}/{turn}", distributed.get_rank(), ranks, text)
    if len(set(said.values())) == 1:
        _AGREED.add(text)
    return said


def told(store: Any, turn: str, own: int, ranks: Sequence[int], text: str) -> Mapping[int, str]:
    """`text` is put into the store for the other `ranks`, and theirs are waited for."""
    store.set(f"{turn}/{own}", text)
    return {rank: text if rank == own else _said(store, turn, rank) for rank in ranks}


def _said(store: Any, turn: str, rank: int) -> str:
    try:
        return store.get(f"{turn}/{rank}").decode()
    except RuntimeError as error:
        raise PlanError(
            "rank_missing",
            f"Rank {rank} compiles no graph with collectives where this rank does, within the process group's time: "
            f"{str(error).partition(chr(10))[0]}",
        ) from error


def _members(distributed: Any, groups: Sequence[str]) -> tuple[int, ...]:
    """The ranks, as the job counts them, of the groups that this process knows."""
    found: set[int] = set()
    for name in groups:
        try:
            group = distributed.distributed_c10d._resolve_process_group(name)
            found.update(distributed.get_process_group_ranks(group))
        except (KeyError, RuntimeError, ValueError):  # a graph that was traced elsewhere
            continue
    return tuple(sorted(found))
