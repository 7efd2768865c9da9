"""Where `option` lay until 0.2: what passes, models and targets of other packages may import still."""

from npucompose.table.options import option

__all__ = ["option"]
