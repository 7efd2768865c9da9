"""Any model class of the Hugging Face library, made from a configuration with random weights, or from a folder on this
disk as `save_pretrained` or the hub's cache holds it (`config.json` as plain data). Nothing is downloaded, and nothing
that a folder names is imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from attrs import frozen

from npucompose.errors import ConfigError, MissingExtra, did_you_mean
from npucompose.models.base import Built, Inputs, Model, generator, inference, seeded
from npucompose.schema.experiment import FORWARD, Scenario, ScenarioName
from npucompose.table.options import CLASS, foreign_config_problems, option

if TYPE_CHECKING:
    from torch import nn
import json
import re
from pathlib import Path

from npucompose.errors import raise_for
from npucompose.input_safety import read_text
from npucompose.table.options import is_name

DEFAULT = "LlamaForCausalLM"


@frozen(kw_only=True)
class Transformers(Model):
    """forward(what the class takes) -> the logits, or what the class returns first; `outputs=all`: every tensor.

    The inputs follow from the class: input_ids, pixel_values, input_features or input_values, and decoder_input_ids.
    `config` speaks of the chosen class alone, in its own words; what it does not name has a small size, or with
    `small=false` the size that the class has by itself.
    """

    name: ClassVar[str] = "transformers"
    scenarios: ClassVar[tuple[ScenarioName, ...]] = ("forward", "prefill", "decode", "generate")
    architecture: str | None = option(
        None,
        "a class of the package, with its task's head or without; null: the folder's, or LlamaForCausalLM",
        name=CLASS,
        optional=True,
    )
    config_class: str | None = option(
        None, "the class of its configuration; null: the one that the architecture names", name=CLASS, optional=True
    )
    config: Mapping[str, Any] = option(factory=dict, doc="keys of the configuration: {n_embd: 64, n_layer: 3}")
    small: bool = option(True, "what config does not name: small sizes, or false: the class's own; with a folder, its")
    folder: str | None = option(
        None,
        "a folder with a config.json, or a model's name in the Hugging Face cache: whose class and sizes are taken",
    )
    weights: Literal["random", "folder"] = option("random", "drawn from the seed, or the folder's .safetensors")
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", "of weights and inputs")
    outputs: Literal["first", "all"] = option("first", "the first tensor, or every one")
    batch: int = option(1, "texts, images or recordings", ge=1)
    tokens: int = option(16, "tokens of a text", ge=1)
    scenario: Scenario = option(factory=Scenario, doc="what is run of the model", from_experiment="scenario")
    device: str = option("cpu", "whose kernels run it", from_experiment="device")
    frames: int = option(64, "frames of speech features; a class with a fixed length has its own", ge=1)
    samples: int = option(2000, "samples of a wave form", ge=1)

    def __attrs_post_init__(self) -> None:
        if problem := next(foreign_config_problems(self.config, "config"), None):
            raise ValueError(problem)
        if self.weights == "folder" and self.folder is None:
            raise ValueError("'weights' are those of a folder: say which with model.folder")

    def check(self) -> None:
        sizes = {name: getattr(self, name) for name in ("batch", "tokens")}
        if self.scenario.name != FORWARD and sizes != {"batch": 1, "tokens": 16}:
            raise ConfigError(
                "model.batch and model.tokens are sizes of scenario=forward: write scenario.batch and scenario.prompt."
            )
        if importlib.util.find_spec("transformers") is None:
            raise MissingExtra("model=transformers", "transformers", "transformers")
        folder = self._folder()
        if folder is not None and self.weights == "folder" and not folder.weights():
            raise ConfigError(f"model.weights=folder: there is no .safetensors in {self.folder}; no pickle is read.")

    def source_files(self) -> tuple[str, ...]:
        folder = self._folder()
        if folder is None:
            return ()
        return tuple(map(str, (folder.path / CONFIG, *(folder.weights() if self.weights == "folder" else ()))))

    def _folder(self) -> Folder | None:
        return None if self.folder is None else Folder.of(self.folder, "model.folder")

    def build(self, seed: int) -> Built:
        self.check()
        import torch

        from npucompose_extras.pretrained.inputs_and_outputs import Outputs, Sizes, makers

        dtype = getattr(torch, self.dtype)
        with seeded(seed):
            module = self._made().to(dtype)
        if self.scenario.name != FORWARD:
            return self._generating(module, seed)
        sizes = Sizes(batch=self.batch, tokens=self.tokens, frames=self.frames, samples=self.samples)
        made = makers(module, sizes)

        def inputs(step: int) -> Inputs:
            g = generator(seed, step)
            tensors = {name: make(g) for name, make in made.items()}
            return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}

        return Built(module=inference(Outputs(module, tuple(made), first=self.outputs == "first")), inputs=inputs)

    def _generating(self, module: Any, seed: int) -> Built:
        """The half of generation that the scenario names, on prompts of its sizes."""
        from npucompose_extras.pretrained.generation import Prompt, built, prompt_of
        from npucompose_extras.pretrained.inputs_and_outputs import Sizes, makers

        def prompts(batch: int, tokens: int) -> Prompt:
            sizes = Sizes(batch=batch, tokens=tokens, frames=self.frames, samples=self.samples)
            made = makers(module, sizes)
            read = made[module.main_input_name](generator(seed, 0))
            begin = made.get("decoder_input_ids")
            read = read.to(module.dtype) if read.is_floating_point() else read
            return prompt_of(module, read, None if begin is None else begin(generator(seed, 0)))

        return built(inference(module), self.scenario, prompts, seed)

    def _made(self) -> nn.Module:
        import transformers  # pyright: ignore[reportMissingImports]

        from npucompose_extras.pretrained.inputs_and_outputs import offline
        from npucompose_extras.pretrained.small_configs import arguments

        folder = self._folder()
        named = self.architecture or (folder.architecture if folder is not None else None) or DEFAULT
        architecture = self._class("architecture", named, transformers.PreTrainedModel)
        config_class = self._config_class(architecture)
        given = arguments(config_class, self._config(config_class), self.small and folder is None, self._positions())
        given = _over(folder.config, given) if folder is not None else given
        try:
            with offline():
                config = config_class(**given)
                # A cache that a model makes for itself is no output, and one of growing length is another graph.
                for part in {id(one): one for one in (config, config.get_text_config())}.values():
                    part.use_cache = False
                if folder is not None and self.weights == "folder":
                    return architecture.from_pretrained(
                        str(folder.path), config=config, use_safetensors=True, local_files_only=True
                    )
                return architecture(config)
        except Exception as error:
            what = f"{named}({config_class.__name__}(…))"
            where = "model.config" if folder is None else f"model.folder={self.folder}"
            raise ConfigError(f"{where}: {what} raised {type(error).__name__}: {error}") from error

    def _positions(self) -> int:
        """That the longest text of the scenario takes."""
        if self.scenario.name == FORWARD:
            return 0
        return self.scenario.new_tokens + max(tokens for _, tokens in self.scenario.points)

    def _config(self, config_class: Any) -> Mapping[str, Any]:
        """Beside a cache the experts are computed without a shape that depends on which token goes to which of them."""
        from npucompose_extras.pretrained.generation import implementation
        from npucompose_extras.pretrained.small_configs import keys_of

        routes = set(keys_of(config_class)) & {"num_local_experts", "num_experts", "n_routed_experts"}
        if self.scenario.name == FORWARD or not routes:
            return self.config
        return {"experts_implementation": implementation(self.device), **self.config}

    def _config_class(self, architecture: Any) -> Any:
        import transformers  # pyright: ignore[reportMissingImports]

        if self.config_class is not None:
            return self._class("config_class", self.config_class, transformers.PretrainedConfig)
        found = getattr(architecture, "config_class", None)
        if not isinstance(found, type):
            raise ConfigError(
                f"model.architecture '{architecture.__name__}' names no configuration class: say which with "
                "model.config_class."
            )
        return found

    def _class(self, key: str, name: str, base: type[Any]) -> Any:
        """A class of the package that is a `base`: no other is called with what a configuration says."""
        import transformers  # pyright: ignore[reportMissingImports]

        found = getattr(transformers, name, None)
        if not isinstance(found, type):
            hint = did_you_mean(name, [other for other in dir(transformers) if other[:1].isupper()])
            problem = f"model.{key} '{name}' is not a class of transformers {transformers.__version__}. {hint}"
            raise ConfigError(problem.strip())
        if not issubclass(found, base):
            raise ConfigError(
                f"model.{key} '{name}' is no {base.__name__} of transformers {transformers.__version__}, or one that "
                "picks its class itself: name the class, as in LlamaForCausalLM and LlamaConfig."
            )
        return found


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, `above` where they say different things; mappings are put together."""
    made = {**below, **above}
    for key, value in above.items():
        inner = below.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            made[key] = _over(cast("Mapping[str, Any]", inner), cast("Mapping[str, Any]", value))
    return made


CONFIG = "config.json"
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
"""`Qwen/Qwen2-0.5B`; a path that leads anywhere else has another form."""
MOST_BYTES = 1_000_000
ABOUT = frozenset(
    {"architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "task_specific_params"}
)
"""Keys that say where a configuration comes from, and not what its model computes; `dtype` is the option's."""


@frozen(kw_only=True)
class Folder:
    path: Path
    architecture: str | None
    """The class that the configuration names first; None where it names none."""
    config: Mapping[str, Any]
    """What the class of the configuration is called with."""

    @staticmethod
    def of(name: str, where: str) -> Folder:
        """ConfigError where there is none, its configuration is no plain data, or needs code or files of its own."""
        path = Path(name)
        if not (path / CONFIG).is_file():
            path = _downloaded(name, where)
        try:
            said: Any = json.loads(  # the hub's cache is made of links
                read_text(path / CONFIG, MOST_BYTES, named=True)
            )
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}={name}: {CONFIG} is not JSON: {error}.") from error
        if not isinstance(said, dict):
            raise ConfigError(f"{where}={name}: {CONFIG} holds no mapping of keys.")
        whole = cast("dict[str, Any]", said)
        if "auto_map" in whole:
            raise ConfigError(f"{where}={name}: {CONFIG} names code of its own (auto_map), which is never imported.")
        config = _computed(whole)
        raise_for([f"{where}={name}: {problem}." for problem in foreign_config_problems(config, CONFIG)])
        named = whole.get("architectures") or [None]
        first = named[0] if isinstance(named, list) else None
        if first is not None and not (isinstance(first, str) and is_name(first, CLASS)):
            raise ConfigError(f"{where}={name}: 'architectures' of {CONFIG} must name a class: {str(first)[:60]!r}.")
        return Folder(path=path, architecture=first, config=config)

    def weights(self) -> tuple[Path, ...]:
        """The files of its weights, in the one format that holds data alone."""
        return tuple(sorted(self.path.glob("*.safetensors")))


def _downloaded(name: str, where: str) -> Path:
    """Where the Hugging Face cache of this machine holds the model of that name; it is asked for nothing more."""
    missing = f"{where}={name}: there is no {CONFIG} in such a folder"
    if HUB_NAME.fullmatch(name) is None or importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(f"{missing}.")
    from huggingface_hub import try_to_load_from_cache  # pyright: ignore[reportMissingImports]

    try:
        found = try_to_load_from_cache(name, CONFIG)
    except ValueError as error:  # no name of the hub
        raise ConfigError(f"{missing}.") from error
    if not isinstance(found, str):
        raise ConfigError(
            f"{missing}, and no model of that name in the Hugging Face cache of this machine. Nothing is downloaded "
            f"here; `hf download {name}` does."
        )
    return Path(found).parent


def _computed(said: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a configuration says about itself; the names of labels as their number."""
    left = {key: value for key, value in said.items() if key not in ABOUT and not key.startswith("_")}
    labels = left.pop("id2label", None)
    left.pop("label2id", None)
    if isinstance(labels, dict):
        left["num_labels"] = len(cast("dict[str, Any]", labels))
    return {key: _computed(value) if isinstance(value, dict) else value for key, value in left.items()}
