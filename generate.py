"""Continue a text with a run of task=causal_lm: `python generate.py run=<dir> prompt="…"`."""

import sys

from chimera.cli import generate

if __name__ == "__main__":
    sys.exit(generate(sys.argv[1:]))
