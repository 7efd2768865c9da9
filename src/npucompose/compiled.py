"""What `npucompose.compile` returns: a compiled module is a module (torch's OptimizedModule), a function is a function.

Knows how a compiled model is called, copied and pickled; how it is compiled is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._dynamo import OptimizedModule
from torch._dynamo.eval_frame import DisableContext

from npucompose import recorder
from npucompose.compose.engine import translate_torch_errors
from npucompose.errors import CaptureError

if TYPE_CHECKING:
    from npucompose.compose.engine import Materialised
    from npucompose.recorder import Handle, Outputs, Recorder
    from npucompose.results.effective import Effective
    from npucompose.results.measured import CallStatistics


Again = Callable[[Any], "CompiledModel"]
"""Compiles a model with the same choices; what pickle keeps of a compiled model beside the model itself."""


class CompiledModel:
    """A model compiled as an experiment says; call it as the model itself.

    `materialised` is what the engine made (config, backend, effective options, provenance); `detach(*inputs)` is the
    handle that skips torch.compile's guards, good for the signature of those inputs. Copies and unpickled ones are
    compiled anew when they are first called.
    """

    model: Any
    """The model as it was given; of a module that has a `model` of its own, that one (`_orig_mod` is the module)."""
    materialised: Materialised

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    def effective(self) -> tuple[Effective, ...]:
        """Requests that do not take effect as asked; once it has been called, also what an NPU would refuse of it."""
        return (*self.materialised.effective, *self.materialised.backend.effective())

    @property
    def statistics(self) -> CallStatistics:
        """How calls ran so far: replayed, captured, in another's place, eagerly. Detached handles do not count."""
        return self.materialised.backend.statistics

    def detach(self, *args: Any, outputs: Outputs = "reuse", **kwargs: Any) -> Handle:
        """Compile and capture for these inputs (one call is made) and return the handle that replays directly.

        `outputs="reuse"`: the handle's next call overwrites its results, and warns once when it overwrites one that is
        still held. "keep": a result that is held is left alone; the replay gets other memory. Raises CaptureError when
        this mode records nothing or the call cannot be mapped to one captured graph. Called with another signature, in
        another grad, inference or autocast mode, or with a tensor of the module replaced by another, the handle raises
        SignatureError; `recapturing()` captures it.
        """
        found = self._recorder()
        return found.detach_call(lambda: self(*args, **kwargs), args, kwargs, model=self._original(), outputs=outputs)

    def recapturing(self, outputs: Outputs = "reuse") -> Callable[..., Any]:
        """Detached handles for as many signatures as come: a call of a new one is compiled, captured, then replayed.

        `outputs` as for `detach`. Raises CaptureError when this mode records nothing.
        """
        return self._recorder().recapturing(self, model=self._original(), outputs=outputs)

    def _original(self) -> Callable[..., Any]:
        return self.model

    def _recorder(self) -> Recorder:
        found = recorder.needed("nothing is recorded that could be detached")
        if not self.materialised.backend.records:
            raise CaptureError(f"mode={self.materialised.experiment.mode.name} records nothing that could be detached.")
        return found


class CompiledFunction(CompiledModel):
    """A compiled function, which has the name, the documentation and the attributes of the function."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, model: Callable[..., Any], materialised: Materialised, again: Again) -> None:
        update_wrapper(self, model)
        self.model, self.materialised, self._again = model, materialised, again
        self._call = model
        if not _is_eager(materialised):
            self._call = _called(torch.compile(model, **_keywords(materialised)), model, materialised)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled function in a class is a method of it, as a function is."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._again, (self.model,)


class CompiledModule(CompiledModel, OptimizedModule):
    """A compiled module is what torch.compile returns for one: state, modes, hooks and attributes are the module's.

    Names in its state_dict begin with `_orig_mod.`, as torch's do; `_orig_mod` is the module itself.
    """

    _orig_mod: Any

    def __init__(self, model: nn.Module, materialised: Materialised, again: Again) -> None:
        # torch's __init__ and __setattr__ send what they do not know to the module: these are the wrapper's own.
        self.__dict__.update(materialised=materialised, _again=again)
        compiled: Any = None if _is_eager(materialised) else torch.compile(model, **_keywords(materialised))
        self.__dict__["_call"] = model.__call__ if compiled is None else _called(compiled.forward, model, materialised)
        super().__init__(model, DisableContext() if compiled is None else compiled.dynamo_ctx)

    def _original(self) -> Callable[..., Any]:
        return self._orig_mod

    def _initialize(self) -> None:
        """The forward that torch's call of a module runs between this wrapper's hooks."""
        self.forward = self.__dict__["_call"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by a model that is compiled itself it is a part of that graph, as torch's own is."""
        if torch.compiler.is_compiling():
            module: Any = self._modules["_orig_mod"]
            return module(*args, **kwargs)
        return OptimizedModule.__call__(self, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_is_full_backward_hook":  # torch's own sends it to the module, and the wrapper's hooks never run
            self.__dict__[name] = value
            return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":
                return self._orig_mod
            raise

    def __reduce__(self) -> Any:
        hooks = {name: value for name, value in self.__dict__.items() if "hook" in name and value}
        return _restored, (self._again, self._orig_mod, hooks)

    # Python looks these up in the class, where no __getattr__ of torch's finds the module's.
    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)

    def __contains__(self, item: Any) -> bool:
        return item in self._orig_mod

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._orig_mod[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._orig_mod[key]


def compiled(model: Callable[..., Any], materialised: Materialised, again: Again) -> CompiledModel:
    """`model` compiled; of a model that is compiled already, by whomever, the original."""
    while isinstance(model, (OptimizedModule, CompiledFunction)):
        model = model._orig_mod if isinstance(model, OptimizedModule) else model.model
    kind: Any = CompiledModule if isinstance(model, nn.Module) else CompiledFunction
    return kind(model, materialised, again)


def _restored(again: Again, model: nn.Module, hooks: Mapping[str, Any]) -> CompiledModel:
    """Compiled anew, with the wrapper's own hooks."""
    made = again(model)
    made.__dict__.update(hooks)
    return made


def _is_eager(materialised: Materialised) -> bool:
    return not materialised.backend.target.support(materialised.backend.mode).compiles


def _keywords(materialised: Materialised) -> dict[str, Any]:
    return {"backend": materialised.backend, **materialised.compile_keywords}


def _called(compiled: Callable[..., Any], model: Callable[..., Any], materialised: Materialised) -> Callable[..., Any]:
    """`compiled` with what its mode wants around calls; Dynamo's errors come out in our words."""
    around = materialised.backend.around_calls(compiled, model, materialised.compile_keywords)
    debug = materialised.experiment.debug

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return around(*args, **kwargs)
        except Exception:
            with translate_torch_errors(debug):
                raise

    return call
