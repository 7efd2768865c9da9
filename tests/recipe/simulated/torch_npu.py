"""On the path of a kit's processes in place of the genuine package: the simulated runtime with its backends."""

from __future__ import annotations

import sys

from npu_simulator import install
from npucompose.targets.npu_offline import wheel

sys.modules.pop(__name__)  # the simulated runtime takes the name, and the import statement gives what has it
install(wheel.locate())
