"""Components by name."""

from chimera.contract_tests.zoo import *  # noqa: F403
