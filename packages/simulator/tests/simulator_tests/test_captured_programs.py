"""The capture programs inside torch.npu.graph on the simulated runtime: the code of `explain --capture`, or none."""

from __future__ import annotations

from typing import Any

import pytest

from npu_simulator.refusals import checks
from npucompose.npu.capture.rules import rules
from simulator_tests.processes import in_a_process
from tests.capture.programs import Program, programs
from tests.npu.needs import offline

NO_GROUP = "a process group of HCCL, which one process without a device does not have"
KEPT = "memory that is given again: a recording here keeps the memory of every value"
NOT_RUN = {
    "barrier": NO_GROUP,
    "is_completed": NO_GROUP,
    "a_collective_that_nothing_waits_for": NO_GROUP,
    "a_message_that_nothing_waits_for": NO_GROUP,
    "a_collective_that_is_waited_for": NO_GROUP,
    "a_collectives_result_is_read_before_the_wait": NO_GROUP,
    "what_a_message_sends_is_read_meanwhile": NO_GROUP,
    "what_a_message_sends_is_changed_meanwhile": NO_GROUP,
    "a_value_is_dropped_while_a_side_stream_reads_it": KEPT,
    "a_side_streams_value_is_dropped_while_the_capturing_stream_reads_it": KEPT,
    "a_temporary_of_one_line_is_dropped_at_its_end": KEPT,
    "collectives_in_order": NO_GROUP,
    "a_stream_as_on_a_gpu": "torch.cuda in the place of torch.npu",
    "synchronize_as_on_a_gpu": "torch.cuda in the place of torch.npu",
    "asks_for_memory": "device memory that could be counted",
    "checks_for_overflow": "torch.npu.npu_check_overflow, which torch_npu 2.13.0 has in torch_npu.npu.utils alone",
    "a_generator_that_no_graph_knows": "torch_npu before 2.13.0",
    "gelu_in_place_where_it_has_no_kernel": "torch_npu before 2.13.0",
    "a_function_that_no_table_has": "a function of torch.npu that there is not",
    "sets_a_dump": "CANN's dump",
}
"""{program: what it needs and the simulated runtime lacks}."""
OWN_SENTENCE = {
    "a_replay_before_the_capture": "replay_without_capture",
    "a_pool_before_the_capture": "pool_without_capture",
    "a_seed_by_chance": "generator_in_capture",
    "a_generator_made_inside": "generator_in_capture",
    "asks_for_an_offset": "generator_in_capture",
    "copies_a_generator": "generator_in_capture",
}
"""{program: the check of torch_npu's library whose sentence it meets}, where the rule names another's."""
OPEN_ITSELF = {"an_event_of_another_capture"}
"""The program leaves a capture of its own open, so that no other may begin."""
RUN = [name for name in programs() if name not in NOT_RUN]


def disagreement(program: Program, found: dict[str, Any]) -> str | None:
    """What the program should have met and did not."""
    first = next(iter(found["errors"]), "")
    if program.rule is None or not program.sure:
        met = not first and (program.rule is not None or not found["noted"])
    elif program.code is not None:
        met = str(program.code) in f"{first}{found['warned']}" and "# here" in f"{first}{found['warned']}"
    elif (sentence := sentence_of(program)) is not None:
        met = first.startswith(f"RuntimeError: {sentence}")
    else:
        met = not first and any("# here" in line for line in found["noted"])
    return None if met else f"{program.rule} {program.code}: {found}"


def sentence_of(program: Program) -> str | None:
    """How torch_npu's own sentence begins; None where a device says nothing."""
    if program.name in OWN_SENTENCE:
        return checks().of(OWN_SENTENCE[program.name]).raises.partition("{")[0]
    assert program.rule is not None
    return rules().of(program.rule).raises


@offline
def test_each_program_meets_the_code_of_the_device_and_a_near_miss_meets_none() -> None:
    found = in_a_process("captured_programs.py", "run", *RUN)
    assert found.keys() == set(RUN)
    assert len(RUN) >= 200
    wrong = {name: said for name in RUN if (said := disagreement(programs()[name], found[name]))}
    assert wrong == {}
    after = {name: found[name]["again"] for name in RUN if name not in OPEN_ITSELF and found[name]["again"]}
    assert after == {}, "the capture behind one that failed"


@offline
@pytest.mark.slow
def test_without_its_rule_no_program_meets_its_code() -> None:
    """Negative control: what is found is found by the rule."""
    broken = [name for name in RUN if programs()[name].rule and programs()[name].sure and name not in OWN_SENTENCE]
    found = in_a_process("captured_programs.py", "control", *broken)
    still = {name for name in broken if disagreement(programs()[name], found[name]) is None}
    assert still == set()
