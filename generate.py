"""Continue a text with a run of task=causal_lm: `python generate.py run=<dir> prompt="…"`."""

import sys

from chimera.cli.finished import generate as main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
