"""Any model class of the Hugging Face library, made from a config with random weights: nothing is downloaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError, MissingExtra, did_you_mean
from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option

if TYPE_CHECKING:
    from torch import nn

SMALL_LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}


@frozen(kw_only=True)
class Transformers(Model):
    """forward(input_ids [batch, tokens]) -> the logits, or what the class returns first."""

    name: ClassVar[str] = "transformers"
    architecture: str = option("LlamaForCausalLM", "a class of the package that takes input_ids")
    config_class: str = option("LlamaConfig", "the class of its configuration")
    config: Mapping[str, Any] = option(factory=lambda: dict(SMALL_LLAMA), doc="what config_class is called with")
    batch: int = option(1, "sequences", ge=1)
    tokens: int = option(16, "tokens of a sequence", ge=1)

    def check(self) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise MissingExtra("model=transformers", "transformers", "transformers")

    def build(self, seed: int) -> Built:
        self.check()
        import torch

        from npucompose.models.modules import pretrained
        from npucompose.models.modules.seeding import generator, inference, seeded

        with seeded(seed):
            module, vocabulary = self._made()
        wrapped = inference(pretrained.FirstOutput(module))

        def inputs(step: int) -> Inputs:
            shape = (self.batch, self.tokens)
            return {"input_ids": torch.randint(vocabulary, shape, generator=generator(seed, step))}

        return Built(module=wrapped, inputs=inputs)

    def _made(self) -> tuple[nn.Module, int]:
        architecture, config_class = (self._class(key) for key in ("architecture", "config_class"))
        try:
            # An unknown key would be kept as an attribute that nobody reads: a mistyped one must not pass.
            default = config_class()
            for key in self.config:
                if key != "attn_implementation" and not hasattr(default, key):
                    hint = did_you_mean(key, vars(default))
                    problem = f"model.config has '{key}', which {self.config_class} does not know. {hint}"
                    raise ConfigError(problem.strip())
            config = config_class(**self.config)
            config.use_cache = False
            module = architecture(config)
        except ConfigError:
            raise
        except Exception as error:
            what = f"{self.architecture}({self.config_class}(…))"
            raise ConfigError(f"model.config: {what} raised {type(error).__name__}: {error}") from error
        if getattr(module, "main_input_name", None) != "input_ids" or config.is_encoder_decoder:
            raise ConfigError(
                f"model.architecture '{self.architecture}' needs other inputs than input_ids; use model=python for it."
            )
        return module, config.get_text_config().vocab_size

    def _class(self, key: str) -> Any:
        import transformers  # pyright: ignore[reportMissingImports]

        name = getattr(self, key)
        found = getattr(transformers, name, None)
        if not isinstance(found, type):
            hint = did_you_mean(name, [other for other in dir(transformers) if other[:1].isupper()])
            problem = f"model.{key} '{name}' is not a class of transformers {transformers.__version__}. {hint}"
            raise ConfigError(problem.strip())
        return found
