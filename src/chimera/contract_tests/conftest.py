"""Every test: a fixed seed; one thread, so that tests can run side by side."""

import os

import pytest
import torch

torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
