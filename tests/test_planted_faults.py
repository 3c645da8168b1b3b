"""Tests of the table of planted faults."""

import re

import pytest

from planted_faults import ROOT, SOURCE, Fault, read_faults

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: str(fault.number))
def test_a_fault_fits_the_source_and_the_tests(fault: Fault) -> None:
    """Its text occurs once, the changed file is valid Python, and its tests exist."""
    text = (SOURCE / "rollax" / fault.file).read_text()
    compile(fault.plant(text), fault.file, "exec")
    for test in fault.tests:
        file, _, name = test.partition("::")
        tests = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^def {name.partition('[')[0]}\(", tests, re.MULTILINE), test


def test_text_that_occurs_twice_raises_value_error() -> None:
    fault = Fault(1, "", "tree.py", before="min", after="max", tests=())
    assert fault.plant("a min b") == "a max b"
    with pytest.raises(ValueError, match="must occur once in tree.py, got 2"):
        fault.plant("min, min")
