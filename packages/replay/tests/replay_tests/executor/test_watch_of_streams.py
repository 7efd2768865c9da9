"""The rule by which streams are left and tried again, written once more: the two agree after every replay.

A second writer's mistake is another one: a count that begins elsewhere, a limit that is one off or a comparison the
other way round makes the two differ in one of many thousand replays.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from attrs import define, field

from npucompose_replay.executor import build

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")


@define
class Rule:
    """What `StreamWatch` says of itself (src/watch.h), times in nanoseconds."""

    one: int
    own: int = 0
    timing: str = ""
    """Which way is timed now, five replays of it: "own" or "one"."""
    timed: list[int] = field(factory=list)
    late: list[tuple[int, bool]] = field(factory=list)
    """(time, whether it was late) of the replays since nothing was lost."""
    lost: int = 0
    suspicious: bool = False
    trial: int = 0
    """Replays that the present trial has left."""
    untimed: int = 0
    """Replays side by side since one stream was timed."""
    ran: int = 0
    """Nanoseconds side by side since the streams were last tried."""
    pause: int = 0
    pause_left: int = 0
    caution: int = 32
    replays: int = 0
    alone: int = 0
    falls: int = 0
    trials: int = 0

    def __attrs_post_init__(self) -> None:
        self.timing = "" if self.one else "own"

    @property
    def side_by_side(self) -> bool:
        return self.timing == "own" or (not self.timing and self.pause_left <= 0)

    @property
    def limit(self) -> int:
        return max(self.one + self.one // 32, self.own + self.own // 4)

    def took(self, ns: int) -> None:
        self.replays += 1
        self.alone += not self.side_by_side
        if self.timing:
            self.time(ns)
        elif self.side_by_side:
            self.beside(ns)
        else:
            self.waits(ns)

    def time(self, ns: int) -> None:
        self.timed.append(ns)
        if len(self.timed) < 5:
            return
        ordered, self.timed = sorted(self.timed), []
        if self.timing == "own":
            self.own, self.timing = ordered[1], "one"
            return
        self.one, self.timing, self.untimed = ordered[2], "", 0
        stretch = sum(took for took, _ in self.late)
        if self.suspicious and stretch > len(self.late) * self.limit:
            self.fall(stretch - len(self.late) * self.one)
        self.forget()

    def beside(self, ns: int) -> None:
        self.ran += ns
        trying, self.trial = self.trial > 0, max(self.trial - 1, 0)
        self.lost += ns - self.limit
        self.late.append((ns, ns > self.limit))
        if self.lost <= 0:
            self.lost, self.late = 0, []
        late = sum(late for _, late in self.late)
        if trying:
            if self.lost > 2 * self.limit and late >= 1:
                self.fall(self.lost)
                self.forget()
                return
        elif self.lost > 8 * self.limit and late >= 3:
            self.suspicious, self.timing = True, "one"
            return
        self.untimed += 1
        if self.untimed >= 4096:
            self.timing = "one"

    def waits(self, ns: int) -> None:
        more = min(ns, 2 * self.one) - self.one
        self.one += more // 8 if more >= 0 else -(-more // 8)  # towards nothing, as C++ divides
        self.pause_left -= ns
        if self.pause_left <= 0:
            self.trials += 1
            self.trial, self.ran, self.untimed = 16, 0, 0

    def fall(self, lost: int) -> None:
        self.falls += 1
        self.caution = 32 if self.ran > self.pause else min(2 * self.caution, 1024)
        self.pause = self.pause_left = lost * self.caution

    def forget(self) -> None:
        self.lost, self.late, self.suspicious = 0, [], False


def times(random: random.Random, one: int) -> Iterator[tuple[int, int]]:
    """What a replay takes on streams and on one, on a machine that changes now and then; mostly about `one`."""
    start = random.choice([0, 1, 5000])
    yield from [(one // 2, one)] * start or [(25 * one, one)]
    near = [one - one // 4, one, limit := one + one // 32, limit + 1, limit + 2, limit + one // 4]
    far = [one // 3, one + one // 2, 3 * one, 25 * one]
    while True:
        beside, alone = random.choice(random.choice([near, far])), random.choice([one, one + one // 8, 3 * one])
        hiccups = random.choice([0, 0, 0.01, 0.1, 0.5])
        for _ in range(random.choice([3, 20, 200, 5000])):
            late = random.choice([2, 3, 10, 40]) if random.random() < hiccups else 1
            yield beside * late + random.choice([0, 0, 1, 7]), alone * late + random.choice([0, 0, 1, 7])


@pytest.mark.parametrize(("one_ns", "about"), [(1000, 1000), (33, 33), (2, 2), (0, 5), (0, 1000)])
@pytest.mark.parametrize("seed", range(24))
def test_the_watch_follows_its_rule(one_ns: int, about: int, seed: int) -> None:
    watch, rule = build.load().StreamWatch(one_ns), Rule(one_ns)
    series = times(random.Random(seed), about)
    for number in range(6000):
        assert watch.side_by_side() == rule.side_by_side, number
        beside, one = next(series)
        took = beside if rule.side_by_side else one
        watch.took(took)
        rule.took(took)
        counts = watch.replays, watch.alone, watch.falls, watch.trials
        assert counts == (rule.replays, rule.alone, rule.falls, rule.trials), number
