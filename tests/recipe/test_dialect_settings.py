"""Settings of serving projects that act on nothing: each is said, with what it was and why."""

from __future__ import annotations

from pathlib import Path

from npucompose.recipe import import_file


def notes(tmp_path: Path, name: str, text: str) -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    found = import_file(path)
    return [*found.notes, *map(str, found.unread)]


def test_what_an_eager_run_of_cann_recipes_sets_beside_is_said_to_act_on_nothing(tmp_path: Path) -> None:
    text = "exe_mode: eager\nmodel_config:\n  enable_cache_compile: true\n  enable_superkernel: false\n"
    said = "\n".join(notes(tmp_path, "eager.yaml", text))
    assert "enable_cache_compile=true: exe_mode=eager compiles nothing" in said
    assert "enable_superkernel" not in said


def test_batch_sizes_are_said_where_they_are_given(tmp_path: Path) -> None:
    text = "torchair_graph_config: {enabled: true, graph_batch_sizes: [8, 16], graph_batch_sizes_init: false}\n"
    said = "\n".join(notes(tmp_path, "vllm.yaml", f"additional_config:\n  {text}"))
    assert "graph_batch_sizes=[8, 16]: vLLM pads batches to these sizes" in said
    assert "graph_batch_sizes_init" not in said


def test_settings_that_are_not_about_compiling_are_listed(tmp_path: Path) -> None:
    text = "torchair_graph_config: {enabled: true}\nmax_model_len: 4096\n"
    assert "not about compiling, and left out: max_model_len=4096" in notes(tmp_path, "rest.yaml", text)
