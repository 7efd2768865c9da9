"""Cases of engines' command lines and configurations that a recipe is imported from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npucompose.recipe.dialects import Settings, flattened, read_command_line
from npucompose_extras.engine_dialects.vllm import Vllm
from tests.refusals.case import Case

LINE, SCRIPT, SIZES, VLLM = (
    "npucompose_extras.engine_dialects.command_line",
    "npucompose_extras.engine_dialects.start_script",
    "npucompose_extras.engine_dialects",
    "npucompose_extras.engine_dialects.vllm",
)


def words(text: str) -> Callable[[Path], Any]:
    return lambda _: read_command_line(text, "it")


def beside(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "serve.yaml").write_text("- port\n")
    return read_command_line("vllm serve m --config serve.yaml", str(folder / "serve.sh"))


def settings(**said: Any) -> Callable[[Path], Any]:
    return lambda _: Vllm().read(Settings(flat=flattened({"compilation_config": said})))


def level(said: Any) -> Callable[[Path], Any]:
    return lambda _: Vllm().read(Settings(flat={"optimization_level": said}))


CASES = (
    Case(SCRIPT, "a command line has at most", words("vllm serve m " + "-O3 " * 20_000), "a command line has at most"),
    Case(SCRIPT, 'a quote "', words('vllm serve m -cc "x'), 'it:1: a quote " is not closed', "TypeError"),
    Case(SCRIPT, "a quote '", words("vllm serve m \\\n -cc 'x"), "it:2: a quote ' is not closed"),
    Case(SCRIPT, "` is not closed", words("vllm serve `m"), "it:1: ` is not closed", "AttributeError"),
    Case(SCRIPT, "'${after} is", words("vllm serve $(m"), "it:1: $( is not closed", "TypeError"),
    Case(SCRIPT, "'( is not closed'", words("A=(--a 1"), "it:1: ( is not closed"),
    Case(SCRIPT, "has no end", words("cat <<E\nvllm m\n"), "it:1: the text up to a line E has", "TypeError"),
    Case(LINE, "are wanted", beside, "serve.yaml: options of an engine are wanted", "AttributeError"),
    Case(LINE, "parts.", words("--a" + ".b" * 20 + " 1"), "has more than 8 parts"),
    Case(VLLM, "has the levels", level(9), "-O9: vLLM has the levels", "KeyError"),
    Case(VLLM, "none of", settings(cudagraph_mode="HALF"), "cudagraph_mode=HALF: none of"),
    Case(VLLM, "vLLM's are 0 to 3", settings(mode="x"), "mode=x: vLLM's are 0 to 3", "TypeError"),
    Case(SIZES, "are whole numbers", settings(cudagraph_capture_sizes=["x"]), "sizes are whole numbers above 0"),
)
