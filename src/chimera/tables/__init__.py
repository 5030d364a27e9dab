"""Small experiments that need no model: each module runs with `python -m`."""
