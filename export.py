"""A finished run as a folder that loads anywhere: `python export.py run=<dir> to=<folder>`."""

import sys

from chimera.cli import export

if __name__ == "__main__":
    sys.exit(export(sys.argv[1:]))
