"""Which line of the model is being run: the innermost frame that is neither torch's, Python's nor ours. No torch."""

from __future__ import annotations

import linecache
import os
import re
import sys
from functools import cache
from types import FrameType

from npucompose.errors import is_persons_own
from npucompose.packages import folder_of


def model_line() -> str | None:
    """`model.py:12 in forward: y = x.item()`; None where no line of a model is being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_models(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line} in {frame.f_code.co_name}: {code}"


def traced_model_line(trace: str) -> str | None:
    """The same of a traceback's text, as torch keeps it with each node; a line of torch's where there is no other."""
    found = _FRAME.findall(trace)
    if not found:
        return None
    file, line, function, code = next((one for one in reversed(found) if is_models(one[0])), found[-1])
    return f"{os.path.basename(file)}:{line} in {function}: {code.strip()}"


@cache
def is_models(file: str) -> bool:
    """The models of npucompose count as models, an installed package's too."""
    return file.startswith(_MODELS) or (_VENDOR not in file and is_persons_own(file))


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s+(.+)')
_MODELS = tuple(f"{folder}models{os.sep}" for folder in folder_of("npucompose"))
_VENDOR = f"{os.sep}torch_npu{os.sep}"
"""In the path of the vendor's Python, wherever its wheel lies."""
