"""The tree of a live configuration object: what differs from the defaults, under its options' names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.npu.torchair.config import node_filter
from npucompose.recipe import of_config, vendor_options
from npucompose.recipe.vendor_options import Unread, attributes, group_of, set_option, translated


def config_with(**options: Any) -> SimpleNamespace:
    """An object with those options: `debug__run_eagerly=True`."""
    made = SimpleNamespace(ge_config=SimpleNamespace())
    for path, value in options.items():
        *groups, last = path.split("__")
        at = made
        for group in groups:
            if not hasattr(at, group):
                setattr(at, group, SimpleNamespace())
            at = getattr(at, group)
        setattr(at, last, value)
    return made


def test_a_live_object_gives_the_tree_of_what_differs() -> None:
    held = SimpleNamespace(_value="O1")
    config = config_with(
        mode=SimpleNamespace(_value="reduce-overhead"),
        debug__run_eagerly=1,
        ge_config__oo_level=held,
        debug__graph_dump__type="py",
        aclgraph_config__use_custom_pool=(0, 7),
        debug__data_dump__filter=node_filter(("mm", "a*")),
        experimental_config__frozen_parameter=False,
    )
    assert of_config(config) == {
        "mode": {"name": "reduce-overhead"},
        "compiler": {
            "aclgraph_config": {"use_custom_pool": "pool"},
            "debug": {"run_eagerly": True, "data_dump": {"filter": ["mm", "a*"]}, "graph_dump": {"type": "py"}},
            "ge_config": {"oo_level": "O1"},
        },
    }
    assert of_config(config_with(aclgraph_config__use_custom_pool="mine"))["compiler"] == {
        "aclgraph_config": {"use_custom_pool": "mine"}
    }


def test_the_package_of_a_live_object_shows_in_its_groups() -> None:
    flat = SimpleNamespace(clone_input=False, capture_limit=3)
    assert of_config(flat) == {
        "mode": {"name": "npugraph_ex"},
        "compiler": {"npugraph_ex": {"capture_limit": 3, "clone_input": False}},
    }
    own = config_with(mode="npugraph_ex", debug__aclgraph__disable_reinplace_inplaceable_ops_pass=True)
    assert of_config(own) == {"mode": {"name": "npugraph_ex"}, "compiler": {"npugraph_ex": {"inplace_pass": False}}}
    assert of_config(config_with(debug__run_eagerly=False)) == {"mode": {"name": "max-autotune"}}


def test_what_a_live_object_says_otherwise_is_refused_or_listed() -> None:
    config = config_with(mode="npugraph_ex", ge_config__oo_level="O1", debug__graph_dump__type="no")
    unread: list[Unread] = []
    assert of_config(config, unread) == {"mode": {"name": "npugraph_ex"}}
    assert [(u.line, u.code) for u in unread] == [(0, "debug.graph_dump.type = 'no'"), (0, "ge_config.oo_level")]
    assert unread[1].why == "ge_config.oo_level=O1 has no counterpart among npugraph_ex's options"
    with pytest.raises(ConfigError) as refused:
        of_config(config)
    assert list(refused.value.problems) == list(map(str, unread))
    with pytest.raises(ConfigError, match="a SimpleNamespace has none of the options of a CompilerConfig"):
        of_config(SimpleNamespace(ge_config=3))
    with pytest.raises(ConfigError, match=r"unknown torch_npu version '0\.1'"):
        of_config(config, torch_npu_version="0.1")


def test_the_tree_of_another_version_names_it() -> None:
    config = config_with(debug__run_eagerly=True, ge_config__multistream_parallel_mode="cv")
    assert of_config(config, torch_npu_version="2.6.0") == {
        "mode": {"name": "max-autotune"},
        "compiler": {"torch_npu_version": "2.6.0.post5", "debug": {"run_eagerly": True}},
    }


def test_an_option_is_set_or_the_reason_is_said() -> None:
    values: dict[str, Any] = {}
    assert set_option("torchair", values, "debug.run_eagerly", 1) is None
    assert set_option("npugraph_ex", values, "clone_input", 0) is None
    assert values == {"debug.run_eagerly": True, "npugraph_ex.clone_input": False}
    assert values["debug.run_eagerly"] is True
    for package, path, value, why in (
        ("torchair", "clone_input", False, "torchair's CompilerConfig has no such option"),
        ("npugraph_ex", "debug.run_eagerly", True, "npugraph_ex's CompilerConfig has no such option"),
        ("torchair", "debug.run_eagerly", 2, "takes true | false"),
        ("torchair", "post_grad_custom_pre_pass", 1, "it has no place in YAML: "),
        ("torchair", "debug.graph_dump.typ", "py", "Did you mean 'debug.graph_dump.type'"),
    ):
        assert why in str(set_option(package, values, path, value))  # type: ignore[arg-type]
    assert len(values) == 2


def test_attributes_are_found_by_every_name_of_their_option() -> None:
    assert group_of("torchair", "debug.graph_dump")
    assert not group_of("torchair", "debug.graph_dump.type")
    assert not group_of("npugraph_ex", "debug")
    found = attributes("torchair")
    assert all(not path.startswith("npugraph_ex") for path in found)
    assert {leaf.genuine_path for leaf in found.values()} <= set(found)
    assert set(attributes("npugraph_ex")) & {"clone_input", "capture_limit"}
    kept, lost = translated({"debug.aclgraph.disable_reinplace_inplaceable_ops_pass": True, "ge_config.oo_level": "O1"})
    assert kept == {"npugraph_ex.inplace_pass": False}
    assert len(lost) == 1
    assert str(Unread(line=0, code="a", why="b")) == "a: b"
    assert str(Unread(line=3, code="a", why="b")) == "line 3: a: b"


def test_only_the_filter_that_is_written_is_known_again() -> None:
    import ast

    names: dict[str, Any] = {}
    text = f"from __future__ import annotations\n\nimport fnmatch\n\n\n{vendor_options.filter_source()}"
    exec(compile(text, "script.py", "exec"), names)
    assert vendor_options.patterns_of(names["node_filter"](("a", "b*"))) == ("a", "b*")
    assert vendor_options.patterns_of(node_filter(())) == ()
    for other in (print, lambda n: n, 3, node_filter):
        assert vendor_options.patterns_of(other) is None
    (ours,) = ast.parse(vendor_options.filter_source()).body
    assert isinstance(ours, ast.FunctionDef)
    assert vendor_options.is_node_filter(ours)
    documented = ast.parse(vendor_options.filter_source().replace("Any", "Any", 1)).body[0]
    assert isinstance(documented, ast.FunctionDef)
    documented.body[0] = ast.Expr(ast.Constant("Other words."))
    assert vendor_options.is_node_filter(documented)
    documented.body.pop(0)
    assert vendor_options.is_node_filter(documented)
    documented.name = "other"
    assert not vendor_options.is_node_filter(documented)
    ours.body.pop()
    assert not vendor_options.is_node_filter(ours)
