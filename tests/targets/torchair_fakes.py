"""Fakes of TorchAir's modules and for what its parts ask of a backend: no wheel, no process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from npucompose.npu.torchair import config
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX

MODES = (GE, ACLGRAPH, NPUGRAPH_EX, "eager")


class Tree(SimpleNamespace):
    """A configuration object that makes its groups as they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Tree())
        return getattr(self, name)


class Packages:
    """What `package` imports: `torchair` and `npugraph_ex`, which note what they are asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.result: Any = "compiled"

    def __call__(self, name: str) -> Any:
        def noting(what: str, answer: Any = None) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                self.asked.append((name, what, args, named))
                return answer() if callable(answer) else answer

            return call

        inference = SimpleNamespace(
            cache_compile=noting("cache_compile", lambda: self.result), set_dim_gears=noting("set_dim_gears")
        )
        return SimpleNamespace(
            CompilerConfig=Tree, inference=inference, dynamo_export=noting("dynamo_export"),
            patch_for_hcom=noting("patch_for_hcom"),
            get_npu_backend=lambda **named: SimpleNamespace(keywords={"decompositions": named}, name=name),
        )  # fmt: skip


class Asked(dict[str, Any]):
    """Options: what was changed, and None for the rest."""

    def changed(self) -> Mapping[str, Any]:
        return dict(self)

    def __missing__(self, path: str) -> None:
        return None


NO_CONVERTER = """ge_converter is not implemented, sorry
While executing %norm_1 : [num_users=1] = call_function[target=torch.ops.aten.norm.ScalarOpt_dim](args = (%x,))
Original traceback:
  File "/a/outer.py", line 1, in call
    model(x)
  File "/a/model.py", line 7, in forward
    return x.norm()

Traceback (most recent call last)
  File "/b/torchair.py", line 9, in inner
    raise it
"""


class Backend(SimpleNamespace):
    """What TorchAir's parts ask of a backend."""

    def __init__(self, **more: Any) -> None:
        folders = SimpleNamespace(cache=None, files=None)
        genuine = SimpleNamespace(config=Tree(), backend=None, options=None)
        target = SimpleNamespace(support=config.MODES.__getitem__)
        given = {
            "mode": GE,
            "target": target,
            "cache": None,
            "compilations": [],
            "entered_at": [],
            "refusal": None,
            "options": Asked(),
            "calls_beyond": 0,
            "torch_npu": "2.13.0",
        }
        super().__init__(**{"folders": folders, "genuine": genuine, "charged": [], **given, **more})

    def charge(self, known: int, seconds: float) -> None:
        self.charged.append((known, 0 <= seconds < 60))


class Pipeline:
    """Passes that note when they run, and tell one record."""

    def __init__(self, name: str, order: list[str], error: Exception | None = None) -> None:
        self.name, self.order, self.error = name, order, error
        self.passes: tuple[Any, ...] = ()
        self.check = False

    def as_torchair_hook(self, tell: Callable[..., None], constants: Any) -> Callable[..., None]:
        def hook(graph_module: Any, example_inputs: Any, config: Any) -> None:
            self.order.append(f"{self.name} {example_inputs} {config} {constants}")
            tell((f"record of {self.name}",))
            if self.error is not None:
                raise self.error

        return hook
