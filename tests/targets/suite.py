"""What every target owes its callers: subclass TargetSuite and write only its fixture."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from npucompose.compose.conf import choices_of
from npucompose.errors import ConfigError
from npucompose.table.modes import MODES
from npucompose.targets import TARGETS
from npucompose.targets.base import Target
from npucompose.vendor.compiler import EVERY_LEAF


class TargetSuite:
    @pytest.fixture
    def target(self) -> Target:
        raise TypeError("a suite needs its target")

    def test_it_is_registered_and_has_a_yaml(self, target: Target) -> None:
        assert TARGETS.get(target.name) is type(target)
        assert target.name in choices_of("target")

    def test_its_modes_are_modes(self, target: Target) -> None:
        assert set(target.modes) <= set(MODES.names())
        assert "eager" in target.modes

    def test_a_mode_that_it_cannot_run_is_refused_by_name(self, target: Target) -> None:
        for mode in set(MODES.names()) - set(target.modes):
            with pytest.raises(ConfigError, match=target.name):
                target.check(mode)

    def test_its_supported_options_are_options_that_act_in_the_mode(self, target: Target) -> None:
        for mode in target.modes:
            for path in target.support(mode).options:
                assert mode in EVERY_LEAF[path].modes

    def test_its_capabilities_name_it(self, target: Target) -> None:
        for mode in target.modes:
            can = target.capabilities(mode)
            assert (can.target, can.mode) == (target.name, mode)

    def test_its_identity_is_text_and_asking_loads_no_torch(self, target: Target) -> None:
        identity: Any = target.identity()
        assert identity
        assert all(isinstance(v, str) for v in identity.values())
        code = (
            "import sys; from npucompose.targets import TARGETS; "
            f"TARGETS.get({target.name!r})().identity(); sys.exit('torch' in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
