"""A finished run as a folder that loads anywhere: `python export.py run=<dir> to=<folder>`."""

import sys

from chimera.cli.export import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
