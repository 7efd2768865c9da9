"""What the stage `capture` tells of several recordings."""

from __future__ import annotations

from npucompose.experiment.stages.capture import _shared


def test_a_slab_that_several_recordings_share_counts_once() -> None:
    assert _shared([{"slabs": [(0, 100)]}, {"slabs": [(0, 100), (1, 30)]}, {"slabs": []}]) == 130


def test_what_a_recording_does_not_know_is_not_told() -> None:
    assert _shared([{"slabs": [(0, 100)]}, {"kernels": 3}]) is None
