"""Detached handles for as many signatures as come: another signature is captured, not refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.errors import SignatureError
from npucompose.replay.front.detached import DetachedHandle, DetachError, Outputs, detach_call
from npucompose.replay.watching import watching

if TYPE_CHECKING:
    from torch import nn


class Recapturing:
    """`call(*args, **kwargs)`: the model, by the detached handle of that signature where there is one.

    Where there is none the call goes through torch.compile, once: it compiles and captures what is new, and the handle
    is made of that call. A call that cannot be detached is safe and takes torch.compile's way
    each time. Handles beyond the capture limit go, the one used longest ago first.
    """

    def __init__(
        self, compiled: Callable[..., Any], *, modules: Sequence[nn.Module] = (), outputs: Outputs = "reuse"
    ) -> None:
        """`modules` and `outputs` as for `detach_call`."""
        self._compiled = compiled
        self._how: dict[str, Any] = {"modules": modules, "outputs": outputs}
        self.handles: list[DetachedHandle] = []
        """The one used last stands last."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for place in range(len(self.handles) - 1, -1, -1):
            try:
                result = self.handles[place](*args, **kwargs)
            except SignatureError:  # raised before anything is done
                continue
            self.handles.append(self.handles.pop(place))
            return result
        return self._through_compile(args, kwargs)

    def _through_compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        results: list[Any] = []

        def call() -> Any:
            results.append(self._compiled(*args, **kwargs))
            return results[0]

        with watching() as seen:
            try:
                handle = detach_call(call, args, kwargs, **self._how)
            except DetachError:
                if not results:
                    raise
            else:
                self.handles = [*self.handles, handle][-seen[0].capture_limit :]
        return results[0]
