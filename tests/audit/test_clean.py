"""Right loops, as people write them: nothing wrong and nothing suspect is found in any."""

import warnings

import pytest

import mptutor
from tests.audit.loops.clean import CLEAN

NEEDS = {
    "lightning_fabric": "lightning",
    "lightning_trainer": "lightning",
    "hugging_face_accelerate": "accelerate",
}


@pytest.mark.parametrize("loop", CLEAN, ids=lambda loop: loop.__name__)
def test_no_false_alarm(loop):
    if loop.__name__ in NEEDS:
        pytest.importorskip(NEEDS[loop.__name__])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mptutor.audit() as a:
            loop()
    alarms = [f for f in a.findings if f.level != "note"]
    assert not alarms, str(a)
    broken = [text for text in a.trace.unseen if "Error" in text]
    assert not broken, "an observer failed"


def test_there_are_enough_of_them():
    assert len(CLEAN) >= 25
