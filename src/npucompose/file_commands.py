"""What an argument and a command are, and the commands that only read files: profiles, dumps, traces of a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen


@frozen
class Argument:
    """As argparse takes it; `choices` may be a function, called when the command is asked for."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    one_of: bool = False
    """Such arguments of a command exclude each other."""


@frozen(kw_only=True)
class Command:
    about: str
    act: str = ""
    """The function, "module:function"; empty for what is not called by its arguments."""
    arguments: tuple[Argument, ...] = ()
    instead: Mapping[str, str] = field(factory=dict[str, str])
    """{argument: the function that acts where it is given}."""
    actions: Mapping[str, Command] = field(factory=dict[str, "Command"])
    """Commands below it, in its place."""


def argument(*names: str, **settings: Any) -> Argument:
    return Argument(names, settings)


def flag(name: str, about: str) -> Argument:
    return Argument((name,), {"action": "store_true", "help": about})


def one_of(*arguments: Argument) -> tuple[Argument, ...]:
    return tuple(evolve(one, one_of=True) for one in arguments)


AS_JSON = flag("--json", "print JSON")
SIZES = {
    "plan": Command(
        about="plan the sizes to record from a trace of a server's steps: the least padding within a budget",
        act="npucompose.capture_sizes.command:act",
        arguments=(
            argument("trace", type=Path, metavar="TRACE.csv", help="a line for each step: its rows, or rows,steps"),
            argument("--most", type=int, metavar="N", help="at most N sizes (default: as many as --against has)"),
            argument("--largest", type=int, metavar="ROWS", help="steps of more rows run without a recording"),
            argument("--memory", metavar="BYTES", help="of all recordings together, as in 512MiB"),
            argument(
                "--recording",
                metavar="SIZE=BYTES,…",
                help="what recordings take, as in 1=1.2MiB,64=3MiB; linear between",
            ),
            argument("--streams", type=int, metavar="N", help="how many streams the device has for recordings"),
            argument("--streams-each", type=int, metavar="N", help="how many of them one recording takes"),
            argument(
                "--against", metavar="LIST", help="compare with other sizes, as in 1,2,4,8, or vllm: its own list"
            ),
            AS_JSON,
        ),
    ),
    "budget": Command(
        about="streams, events and bytes that a server's captures take on a SoC, and how many sizes fit",
        act="npucompose.capture.deployment:act",
        arguments=(
            argument("deployment", type=Path, metavar="DEPLOYMENT.yaml", help="its SoC, graphs, communicators, sizes"),
            argument(
                "--trace",
                type=Path,
                metavar="TRACE.csv",
                help="steps of the server, as for `sizes plan`: so many sizes as certainly fit, with the least padding",
            ),
            AS_JSON,
        ),
    ),
}
SOC = argument("--soc", required=True, metavar="NAME", help="the device of the profile, as in ascend910b1 or a2")
PROFILES = argument("files", nargs="+", metavar="FILE", help="kernel_details.csv or op_summary_*.csv of one device")
PROFILE = {
    "import": Command(
        about="make a table of kernels' times, with intervals, for streams.profile",
        act="npucompose.profiles.command:act_import",
        arguments=(
            PROFILES,
            SOC,
            argument("--cann", required=True, metavar="VERSION", help="version of CANN that it was made with"),
            argument("--out", metavar="FILE", help="default: kernel_times.json"),
        ),
    ),
    "check": Command(
        about="hold rows of a profile out, predict them, and print how far that is off",
        act="npucompose.profiles.command:act_check",
        arguments=(PROFILES, SOC, AS_JSON),
    ),
}
COMPARE_DUMPS = Command(
    about="compare two dumps of one step, eager and graph, up to the first operator that differs",
    act="npucompose.accuracy.command:act",
    arguments=(
        argument("eager", metavar="EAGER", help="folder of the eager step: TorchAir's data dump or msprobe's"),
        argument("graph", metavar="GRAPH", help="folder of the same step of the compiled model"),
        argument(
            "--listing",
            action="append",
            default=[],
            metavar="FILE",
            help="an FX graph that TorchAir left after a pass (TORCH_COMPILE_DEBUG=1), in their order; they name "
            "passes and lines",
        ),
        argument("--adapt", metavar="NAME", help="a choice of adapt=…: what its rules allow counts"),
        argument("--dtype", choices=("bfloat16", "float16"), metavar="DTYPE", help="of what was dumped as float32"),
        AS_JSON,
    ),
)
