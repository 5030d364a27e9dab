"""Every test: a fixed seed; one thread, so that tests can run side by side."""

import os

import pytest
import torch

torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks for a project that does not: `-m "not slow"` leaves most pairs out."""
    config.addinivalue_line("markers", "slow: a pair like others that are tested")
    config.addinivalue_line("markers", "sampled(n, each=()): alike cases, of which some may run")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
