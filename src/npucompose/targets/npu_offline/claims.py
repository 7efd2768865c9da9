"""What is proven on which torch_npu: the option tree where it was read, execution where it was run. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from npucompose.errors import ConfigError, listed
from npucompose.targets.npu_offline.option_trees import live_tree
from npucompose.targets.npu_offline.wheel import torch_wanted
from npucompose.vendor.option_specs import PREFIX, stored_path
from npucompose.vendor.versions import REFERENCE, every_leaf, genuine_tree, learn, order_of, versions

EXECUTED: Mapping[str, str] = {
    "2.13.0": "every claim of tests/npu on the stand-in, with torch 2.13.0",
    "2.14.0": "every claim of tests/npu on the stand-in, with torch 2.14.0 (73 of 73, on 2026-11-22)",
}
"""{version: what was run on it}: its genuine TorchAir compiled, captured and replayed on the stand-in, and compared."""

SET_AND_READ = "the slow tests set every leaf through YAML and read it back from its objects"


def claims_on(tree: Path, version: str) -> Iterator[str]:
    """A line for each claim on the wheel unpacked in `tree`: its options, setting them, execution."""
    try:
        leaves = live_tree(tree)
    except ConfigError as error:
        yield f"option tree: not read: {error}"
        leaves = None
    if leaves is not None:
        learn(version, leaves)
        flat = sum(leaf.path.startswith(PREFIX) for leaf in leaves)
        both = f"{len(leaves) - flat} of torchair, {flat} of npugraph_ex"
        yield f"option tree: read from it: {len(leaves)} leaves ({both})"
        yield _beside_the_reference(version)
        known = version in versions()
        yield f"setting options: {SET_AND_READ if known else 'not tried on this version'}"
    yield f"execution: {executed(version, torch_wanted(tree))}"


def executed(version: str, torch: str | None = None) -> str:
    """`proven: …`, or what was not run and what it would need."""
    if version in EXECUTED:
        return f"proven: {EXECUTED[version]}"
    needs = f"; it needs torch {torch}" if torch else ""
    not_run = "nothing of its compiling, capturing and replaying was run"
    return f"not proven: {not_run}{needs}. Proven on: {listed(EXECUTED)}"


def _beside_the_reference(version: str) -> str:
    """What its tree has more and less than the one that conf/compiler spells out."""
    mine, reference = genuine_tree(version), genuine_tree(REFERENCE)
    same = [name for name in versions() if name != version and genuine_tree(name) == mine]
    alike = f"the tree of {max(same, key=order_of)}" if same else "a tree of its own"
    yaml = {stored_path(leaf): path for path, leaf in every_leaf().items()}
    more = [yaml[path] for path in mine if path not in reference]
    less = [yaml[path] for path in reference if path not in mine]
    words = [f"{len(paths)} {what} {REFERENCE}" for paths, what in ((more, "not in"), (less, "only in")) if paths]
    return f"option tree: it is {alike}" + (f"; leaves: {', '.join(words)}" if words else "")
