"""What Dynamo says becomes one paragraph with the operator and the model's line; an error of ours stays what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException, Unsupported
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from npucompose.compose.engine import sentence, translate_torch_errors
from npucompose.errors import CompileError, PassError

FRAME = 'from user code:\n   File "/home/me/m.py", line 3, in forward\n    return x.item()\n'
CANNOT = "torch.compile cannot make one graph of the model"
AT = " at m.py:3 in forward, `return x.item()`: "


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Unsupported call.\n  more\n\n", ": Unsupported call."),
        (f"Unsupported call\n{FRAME}", f"{AT}Unsupported call."),
        (f"Unsupported\n  Hint: set it. \n{FRAME}", f"{AT}Unsupported. set it."),
        ("", ": no reason given."),
        (
            f"unsupported operator: mine.op.default (see x)\n{FRAME}",
            f"{AT}the operator mine.op.default has no fake implementation, which tells the shapes of its results. "
            "Add one with torch.library.register_fake.",
        ),
        (
            "Failed\nDynamo failed to run FX node with fake tensors: call_function mm(*(x,)): "
            f"got RuntimeError('a by b.')\nHint: none of this\n{FRAME}",
            f"{AT}a by b.",
        ),
        (
            FRAME + '   File "/x/torch/_library/fake.py", line 9, in inner\n    raise here\n',
            f"{AT}from user code:.",
        ),
        (
            FRAME + '   File "/home/me/n.py", line 8, in deeper\n    y = g(x)\n',
            " at n.py:8 in deeper, `y = g(x)`: from user code:.",
        ),
    ],
)
def test_a_long_explanation_is_cut_to_what_where_and_what_to_do(message: str, words: str) -> None:
    assert sentence(message) == CANNOT + words


def raised(error: BaseException, debug: bool = False) -> BaseException:
    with pytest.raises(Exception) as found, translate_torch_errors(debug):  # noqa: PT011
        raise error
    return found.value


def test_an_operator_that_returns_what_it_writes_is_named_with_the_line() -> None:
    said = (
        "Found a custom (non-ATen) operator whose output has alias annotations: npu::f_(Tensor(a!) self) -> Tensor(a!)."
        ' We only\n\nWhile executing %f_\nOriginal traceback:\n  File "/home/me/m.py", line 3, in forward\n'
        "    return f_(x)\n\nUse tlparse\n"
    )
    error = raised(failed(RuntimeError(said)))
    assert isinstance(error, CompileError)
    at = " at m.py:3 in forward, `return f_(x)`: "
    assert str(error).startswith(f"{CANNOT}{at}torch.ops.npu.f_ returns an argument that it writes.")
    assert not isinstance(error.__cause__, BackendCompilerFailed)


def failed(inner: Exception) -> BackendCompilerFailed:
    return BackendCompilerFailed(lambda: None, inner, None)


def test_each_kind_of_failure_has_a_sentence() -> None:
    error = ConstraintViolationError("first\n second \n\nthird\nfourth\nfifth")
    found = raised(error)
    assert (str(found), found.__cause__) == ("shapes.mark_dynamic cannot hold: first second third", error)
    limit = raised(FailOnRecompileLimitHit("recompile_limit reached"))
    assert f"torch.compile has made {torch._dynamo.config.recompile_limit} versions of one function" in str(limit)
    backend = raised(failed(ValueError("\n bad thing.\nmore")))
    assert str(backend) == "the backend failed while it compiled the graph: ValueError: bad thing"
    other = raised(Unsupported("no way"))
    assert str(other).startswith(f"{CANNOT}: no way")
    assert {type(one) for one in (found, limit, backend, other)} == {CompileError}
    assert all(one.__cause__ is not None for one in (found, limit, backend, other))
    assert type(raised(KeyError("x"))) is KeyError


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_of_ours_comes_out_as_it_was_raised_from_wherever_it_lies(debug: bool) -> None:
    ours = PassError("mine")

    def chained(link: str) -> TorchDynamoException:
        middle, outer = ValueError("middle"), TorchDynamoException("outer")
        setattr(middle, link, ours)
        outer.__cause__ = middle
        return outer

    for error in (failed(ours), chained("__cause__"), chained("__context__")):
        found = raised(error, debug)
        assert found is ours
        assert (found.__cause__ is error) is debug


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    error = TorchDynamoException("round")
    inner: Any = ValueError("inner")
    error.__cause__, inner.__context__ = inner, error
    assert str(raised(error)).startswith(f"{CANNOT}: round")
