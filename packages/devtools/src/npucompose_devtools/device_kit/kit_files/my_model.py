"""Your model and the inputs of one call. Put your own in the place of this one; nothing else of the kit needs a change.

Where kit.json says `frozen: true`, the recipe's passes are edits of one graph: your model must then be the one that the
recipe was made for, with the same shapes and dtypes, or compiled.py refuses it and says so.
"""

import torch


class Mine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("my_model.py: put your model here")


def make() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """(the module in eval mode, {argument of forward: value}); the kit moves both to the device."""
    return Mine().eval(), {"x": torch.ones(2, 2)}
