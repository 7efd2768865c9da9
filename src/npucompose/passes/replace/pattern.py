"""What a pattern is. Loads no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class Pattern(ABC):
    """Two functions of the same arguments: `find` as a model writes it, `replace` with the operator that does it all.

    Both are traced on `inputs()`; tensors come first, then `scalars` by name, whose example values must be found
    nowhere else in the pattern: they stand for any number. Several results come back in the same order from both.
    """

    name: ClassVar[str]
    rtol: ClassVar[float] = 1e-5
    atol: ClassVar[float] = 1e-5
    """How far the replaced results may be off; for half types the table of tolerances counts where it allows more."""
    scalars: ClassVar[Mapping[str, float]] = {}

    @abstractmethod
    def inputs(self) -> Sequence[torch.Tensor]:
        """Example tensors; only their ranks matter."""

    @abstractmethod
    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        """The ways in which models write it: functions, each with the dtype of the tensors it is traced on.

        A dtype is only seen where a function casts: it then finds that dtype and no other.
        """

    @abstractmethod
    def replace(self, *arguments: Any) -> Any:
        """The same with fused operators."""

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        """Whether what was found for the tensors (fake values) and the scalars may be replaced: shapes, dtypes."""
        return True
