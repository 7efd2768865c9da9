"""How a reference kernel says that it does not take an argument."""

from __future__ import annotations

from npucompose.errors import NpuComposeError


class UnsupportedArgument(NpuComposeError, ValueError):
    """An argument that the reference kernel does not take, or that the operator's own document forbids."""

    def __init__(self, op: str, argument: str, given: str, possible: str) -> None:
        self.parts = (op, argument, given, possible)
        super().__init__(f"torch.ops.npu.{op}: '{argument}' {given}. {possible}")

    def __reduce__(self) -> tuple[type[UnsupportedArgument], tuple[str, str, str, str]]:
        return type(self), self.parts
