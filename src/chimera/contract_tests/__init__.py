"""Tests that every component has to pass, Chimera's own and those of a user.

    python -m chimera.contract_tests --config-dir=conf mixer=running_mean   # of a folder
    pytest --pyargs chimera.contract_tests -k running_mean                  # of an installed plugin

The tests find the components in the configuration folders (`chimera.config.groups`).
They need pytest.
"""
