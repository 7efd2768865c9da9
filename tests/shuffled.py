"""`--shuffled SEED`: the files in random order, and the tests of each; the same order for the same seed and choice.

Within files, because fixtures of a module would be made anew for each test otherwise. A test that passes in one order
only leans on what another left behind.
"""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffled", metavar="SEED", help="run files, and the tests of each, in an order by this seed")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffled")
    return None if seed is None else f"in an order of its own: --shuffled {seed}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers of xdist each collect everything and must come to the same order."""
    seed = config.getoption("--shuffled")
    if seed is None:
        return
    files: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid):
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    generator = random.Random(seed)
    groups = list(files.values())
    generator.shuffle(groups)
    for group in groups:
        generator.shuffle(group)
    items[:] = [item for group in groups for item in group]
