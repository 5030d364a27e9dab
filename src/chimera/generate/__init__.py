"""Text from a trained decoder: `python generate.py run=<dir> prompt="…"`."""
