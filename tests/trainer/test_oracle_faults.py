"""Planted faults keep their place in code that moves: one whose text is gone would be planted nowhere."""

import pytest
from oracle_faults import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_text_of_a_planted_fault_stands_once(fault: Fault) -> None:
    assert (ROOT / fault.path).read_text().count(fault.text) == 1
