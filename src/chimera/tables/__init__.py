"""Compute tables of the papers that need no training: `python -m chimera.tables.<name>`."""
