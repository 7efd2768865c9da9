"""What a device can do, as a value: a pass learns it from here and never imports a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from npucompose.schema.cost_table import MakeCostTable
from npucompose.vendor.devices import ATLAS_A2, STREAMS, DeviceModel


@frozen(kw_only=True)
class Clocked:
    """The kernels of one graph as this machine replays them, in microseconds."""

    kernel_us: Mapping[str, float]
    """{FX node: its time on one thread}; what is not there starts no kernel."""
    together_us: Mapping[str, float]
    """The same with as many threads for one kernel as torch takes here by itself."""
    stream_us: float
    """Until the first kernel of a side stream starts."""
    event_us: float
    spread: float = 0.0
    """Kernels' times are low quantiles; the middle ones are by this share longer. A few percent on a machine that has
    nothing else to do."""

    def onto(self, model: DeviceModel) -> DeviceModel:
        """`model` with the figures that were measured."""
        return model.measured(f"CPU with {max(model.vector, 1)} cores, measured", self.stream_us, self.event_us)


Clock = Callable[[Any, Sequence[Any]], Clocked | None]
"""(graph module, inputs) -> how long its kernels take; None for a graph that cannot be replayed."""


Ranks = Callable[[str, Sequence[str]], Mapping[int, str]]
"""(what this rank says, names of process groups) -> {rank: what it says} of all ranks of these groups."""


@frozen(kw_only=True)
class Capabilities:
    target: str
    mode: str
    device: str = "cpu"
    scope_namespace: str = "air"
    """Namespace of scope_enter and scope_exit: `air`, or `npugraph_ex` for that package."""
    event_namespace: str = "air"
    """Namespace of record and wait. `air` for both packages: npugraph_ex of torch_npu 2.13.0 defines its own two, but
    its code generator (`_acl_concrete_graph/fx2acl_converter.py`, `_codegen_fx_forward_record_wait`) looks for
    `air.record` and `air.wait`, so that its own come out as nothing and two streams run unordered."""
    explicit_events: bool = True
    """The mode syncs streams only where the graph says record/wait (aclgraph); GE syncs data edges by itself."""
    max_streams: int = STREAMS
    max_events: int | None = None
    """A device that runs out of events ends the process; None where they cost nothing but memory."""
    frees_early: bool = False
    """Memory goes back to the stream it came from where the graph names it last, whoever still reads it: tensors that
    another stream reads are kept alive until the streams meet."""
    asserts: bool = True
    """The mode can check values at run time (`_assert_async`): an NPU has no kernel for that, TorchAir no converter."""
    captures: bool = False
    """The mode records kernels and replays them (so control that depends on data is impossible)."""
    clone_option: str | None = None
    """A replay returns its results in the memory of the one before, whoever holds those, unless this compiler option
    says copies. None: results that are held are left alone."""
    constants: bool = True
    """A graph may hold constants of its own; TorchAir generates code that finds none (2.13.0, `NameError: self`)."""
    core_limits: bool = False
    """Operators can be told on how many cores they may run (TorchAir's limit_core_num)."""
    gears: bool = False
    """The compiler takes a list of sizes that a dimension may have (`shapes.gears`)."""
    vendor_compiler: bool = False
    """The genuine torch_npu that is found here compiles, whatever version the YAML says."""
    super_kernels: bool = False
    """A scope can say which operators become one kernel (TorchAir's super_kernel, GE only)."""
    device_model: DeviceModel = ATLAS_A2
    """What plans are simulated on."""
    tries_plans: bool = False
    """A capture can run a plan's streams and one stream in turns and keep the faster (`streams.trial_ms`)."""
    profiles: bool = False
    """The kernels of a graph can be run and timed where passes run (`streams.cost=measured`)."""
    clock: Clock | None = attrs.field(default=None, eq=False, repr=False)
    """Times kernels as the replay will run them; without it they are called one by one from Python."""
    cost_table: MakeCostTable | None = attrs.field(default=None, eq=False, repr=False)
    """How long kernels take on this machine (`streams.cost=calibrated`); None where nobody measures that."""
    ranks: Ranks | None = attrs.field(default=None, eq=False, repr=False)
    """The other ranks that compile the graph now, whose order of collectives must be this one's; None: nobody asks."""
