"""Tables of the papers that are computed rather than trained: `python -m chimera.tables.<name>`."""
