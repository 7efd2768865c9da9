"""The table of SoCs: every row is whole, and a name means the device that its owner means."""

from __future__ import annotations

import attrs
import pytest

from npucompose.errors import ConfigError
from npucompose.report.listing import SOC_HEAD, _soc_cells, socs
from npucompose.vendor.devices import ATLAS_A2, DEFAULT, device_of, soc_of, table

SOCS = table().socs


def test_every_row_has_a_family_and_every_family_a_soc_and_a_source() -> None:
    assert {row.family for row in SOCS.values()} == set(table().families)
    assert all(product.source and product.captures is not None for product in table().families.values())
    assert all(row.cube > 0 and row.streams > 0 and row.depth > 32 and row.mhz > 0 for row in SOCS.values())


def test_a_soc_is_found_in_its_own_family_by_its_own_name() -> None:
    for name, row in SOCS.items():
        assert table().family(name) == row.family
        for spelled in (name, name.lower(), name.replace("-", "_")):
            found = soc_of(spelled)
            assert found is not None
            assert (found.name, found.cube, found.number) == (name, row.cube, row.number)


@pytest.mark.parametrize(
    ("name", "cube", "vector", "streams", "depth"),
    [
        ("Ascend910B1", 24, 48, 32768, 2048), ("Ascend910B3", 20, 40, 32768, 2048),
        ("Ascend910B4", 20, 40, 32768, 2048), ("Ascend910_9391", 24, 48, 32768, 2048),
        ("Ascend310P3", 8, 7, 992, 2048), ("Ascend910A", 32, 0, 2016, 2042),
    ],
)  # fmt: skip
def test_the_figures_are_those_of_the_runtimes_own_files(
    name: str, cube: int, vector: int, streams: int, depth: int
) -> None:
    row = SOCS[name]
    assert (row.cube, row.vector, row.streams, row.depth) == (cube, vector, streams, depth)


def test_a_family_stands_for_its_largest_where_limits_are_asked_and_for_its_first_where_one_is_simulated() -> None:
    family = soc_of("ascend910b")
    assert family is not None
    assert (family.name, family.cube, family.vector) == ("ascend910b", 24, 48)
    assert device_of("a2").name == "Ascend910B1"
    assert device_of("ascend310p").name == "Ascend310P1"
    assert device_of(None).name == DEFAULT
    assert device_of("Ascend310P3").name == "Ascend310P3"


def test_nothing_named_is_nothing_and_an_unknown_name_is_refused() -> None:
    assert soc_of(None) is None
    with pytest.raises(ConfigError, match=r"unknown product 'h100' @ target\.soc"):
        soc_of("h100")


def test_a_plan_is_simulated_on_the_cores_and_the_clock_of_the_soc() -> None:
    small = device_of("Ascend910B4").model()
    assert (small.name, small.cube, small.vector) == ("Ascend910B4, nominal", 20, 40)
    assert small.cube_gflops == pytest.approx(ATLAS_A2.cube_gflops * 1500 / 1850)
    assert device_of(DEFAULT).model().cube_gflops == ATLAS_A2.cube_gflops
    assert (small.l2_bytes, small.l2_gbytes_s) == (96 * 2**20, pytest.approx(7000 * 1500 / 1850 * 20 / 24))
    assert device_of(DEFAULT).model() == attrs.evolve(ATLAS_A2, name=f"{DEFAULT}, nominal")
    alike = device_of("Ascend910A").model()
    assert (alike.cube, alike.vector) == (0, 32), "one kind of core computes everything"
    assert alike.lacks(32, 32) is None
    assert alike.lacks(33, 1) == "Ascend910A, nominal has 32 cores of one kind"


@pytest.mark.parametrize(
    ("name", "gbytes_s"),
    [("Ascend910B1", 1600), ("Ascend310P3", 204), ("Ascend310B4", 25.6), ("Ascend950DT_9591", 4000)],
)
def test_memory_is_as_fast_as_a_document_says_or_as_an_atlas_a2_s(name: str, gbytes_s: float) -> None:
    assert device_of(name).model().gbytes_s == gbytes_s


@pytest.mark.parametrize(("aicore", "vectorcore", "fits"), [(20, 40, True), (21, 40, False), (20, 41, False)])
def test_as_many_cores_as_there_are_fit(aicore: int, vectorcore: int, fits: bool) -> None:
    assert (device_of("Ascend910B4").model().lacks(aicore, vectorcore) is None) is fits


def test_the_list_shows_every_soc_with_what_it_cannot_do() -> None:
    rows = {row["soc"]: row for row in socs()}
    assert set(rows) == set(SOCS)
    cells = dict(zip(SOC_HEAD, _soc_cells(rows["Ascend310P3"]), strict=True))
    assert (cells["cube"], cells["vector"], cells["streams × depth"]) == ("8", "7", "992 × 2048")
    assert (cells["tiling sink"], cells["captures"]) == ("no", "yes")
    assert _soc_cells(rows["Ascend910B2C"])[4] == "unknown"
