"""Planted faults keep their place in code that moves: one whose text is gone would be planted nowhere."""

import pytest
from backend_faults import FAULTS as OF_BACKENDS
from oracle_faults import FAULTS, ROOT, Fault

EVERYWHERE = [*FAULTS, *(fault for part in OF_BACKENDS.values() for fault in part)]


@pytest.mark.parametrize("fault", EVERYWHERE, ids=lambda fault: fault.name)
def test_the_text_of_a_planted_fault_stands_once(fault: Fault) -> None:
    assert (ROOT / fault.path).read_text().count(fault.text) == 1
