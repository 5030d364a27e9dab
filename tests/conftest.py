"""Every test: one thread per worker, a fixed seed, no network."""

import os

import pytest
import torch

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
