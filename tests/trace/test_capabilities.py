"""What the documentation's table says headrace can do has a test, by name."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "trace.md"
TESTS = {
    "preprocessing per epoch and operation": "tests.trace.test_report.test_epochs_and_loaders_are_told_apart",
    "preprocessing per batch (T1)": "tests.trace.test_report.test_figures",
    "flow from worker to trainer": "tests.trace.test_export.test_arrows_lead_from_ready_to_got",
    "wait of the trainer (T2)": "tests.trace.test_report.test_wait_and_delay_distributions",
    "delay of a batch": "tests.trace.test_report.test_wait_and_delay_distributions",
    "preprocessing per sample, by index": "tests.loader.test_trace.test_everything_is_there",
    "without a patched torch": "tests.loader.test_trace.test_torch_s_loader_is_recorded_and_gives_the_same",
    "C functions per operation": "tests.trace.hardware.test_command.test_samples_land_in_the_right_operation",
    "live": "tests.cli.test_top.test_a_loader_of_another_process_is_seen",
}


def ticked():
    """The rows of the table in which headrace has a tick."""
    table = PAGE.read_text().partition("## Compared with other profilers")[2]
    return re.findall(r"^\| ([^|]+?) \| ✓ ", table, re.MULTILINE)


def test_the_table_and_the_tests_agree():
    assert sorted(ticked()) == sorted(TESTS)


@pytest.mark.parametrize("capability", TESTS)
def test_there_is_such_a_test(capability):
    module, _, name = TESTS[capability].rpartition(".")
    found = importlib.import_module(module)
    classes = [vars(value) for value in vars(found).values() if isinstance(value, type)]
    assert any(callable(names.get(name)) for names in [vars(found), *classes])
