"""The commands of this package: device-kit, protocol, compare-dumps, profile, sizes. Loads nothing of what they do."""

from __future__ import annotations

from pathlib import Path

from npucompose.cli.arguments import ADDED, ENV, TRUST
from npucompose.commands import AS_JSON, Command, argument, flag

KIT_OUT = "device_kit"
KIT = (
    argument(
        "words",
        nargs="+",
        metavar="FILE",
        help="a recipe (recipe.lock.yaml, or an experiment's YAML and key=value); or: read results.json",
    ),
    argument("--out", metavar="FOLDER", help=f"folder to write (default: {KIT_OUT}; with read: .npucompose/device)"),
    ADDED,
    ENV,
    TRUST,
)
DEVICE_KIT = Command(
    about="write plain scripts that check a recipe on an NPU; read their results",
    act="npucompose_devtools.device_kit:act",
    arguments=KIT,
)
PROTOCOL = Command(
    about="whether the host's side of a captured graph's replay can hang or read what is stale",
    act="npucompose_devtools.protocol.command:act",
    arguments=(
        argument("protocol", metavar="PROTOCOL.yaml", help="its threads, streams and events; or torchair, kit, …"),
        flag("--waits", "of a protocol that holds: what goes wrong without each of its waits"),
        argument("--most-states", type=int, metavar="N", help="give up beyond so many (default: 1,000,000)"),
        AS_JSON,
    ),
)
SIZES_ACTIONS = {
    "plan": Command(
        about="plan the sizes to record from a trace of a server's steps: the least padding within a budget",
        act="npucompose_devtools.capture_sizes.command:act",
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
        act="npucompose_devtools.capture_sizes.deployment:act",
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
PROFILE_ACTIONS = {
    "import": Command(
        about="make a table of kernels' times, with intervals, for streams.profile",
        act="npucompose_devtools.profiles.command:act_import",
        arguments=(
            PROFILES,
            SOC,
            argument("--cann", required=True, metavar="VERSION", help="version of CANN that it was made with"),
            argument("--out", metavar="FILE", help="default: kernel_times.json"),
        ),
    ),
    "check": Command(
        about="hold rows of a profile out, predict them, and print how far that is off",
        act="npucompose_devtools.profiles.command:act_check",
        arguments=(PROFILES, SOC, AS_JSON),
    ),
}
COMPARE_DUMPS = Command(
    about="compare two dumps of one step, eager and graph, up to the first operator that differs",
    act="npucompose_devtools.accuracy.command:act",
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
PROFILE = Command(about="times of kernels from a profile of an NPU", actions=PROFILE_ACTIONS)
SIZES = Command(about="which sizes of a server's steps are recorded, and what that takes", actions=SIZES_ACTIONS)
