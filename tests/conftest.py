"""One thread for every test: on a shared machine, unpinned threads stall by ten times."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# No test asserts a time, and a busy machine would miss hypothesis's 200 ms an example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def autocast_stays_as_it_is():
    """Fail the test that leaves autocast changed, and not the next one, which would suffer."""
    before = _autocast_settings()
    yield
    after = _autocast_settings()
    for device, (enabled, dtype) in before.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    assert after == before, "the test leaves autocast changed"


def _autocast_settings():
    return {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    }


def pytest_configure(config):
    for number in range(14):
        config.addinivalue_line("markers", f"lesson{number:02d}: belongs to lesson {number:02d}")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
