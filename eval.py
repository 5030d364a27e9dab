"""Repeat the final test of a run from its directory alone: `python eval.py run=<dir>`."""

import sys

from chimera.cli import evaluate

if __name__ == "__main__":
    sys.exit(evaluate(sys.argv[1:]))
