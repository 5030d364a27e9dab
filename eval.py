"""Repeat the final test of a run from its directory alone: `python eval.py run=<dir>`."""

import sys

from chimera.cli.finished import evaluate as main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
