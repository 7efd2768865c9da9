"""Values that come from outside of a script: the environment, the command line, files. They are named, not guessed."""

from __future__ import annotations

from collections.abc import Sequence

from npucompose.recipe.values import Const, Unknown, Value, plain


def from_environment(args: Sequence[Value]) -> Unknown:
    """`os.getenv("MODE", "reduce-overhead")`: which variable it is, and what holds where nobody sets it."""
    name = plain(args[0]) if args else None
    said = f"the environment variable {name}" if isinstance(name, str) else "an environment variable"
    default = args[1] if len(args) > 1 else None
    unset = f" (where it is unset: {plain(default)!r})" if isinstance(default, Const) else ""
    return Unknown(why=f"it is not constant: it comes from {said}{unset}", name=name if isinstance(name, str) else "")
