"""Export a finished run to a self-contained folder: `python export.py run=<dir> to=<folder>`."""

import sys

from chimera.cli.finished import export as main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
