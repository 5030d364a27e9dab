"""`chimera <command> …` and `python -m chimera <command> …`."""

import sys

from chimera.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
