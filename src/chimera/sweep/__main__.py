"""`python -m chimera.sweep <paper>/<table> [key=value …]`: runs what is missing of a table."""

import sys

from chimera.cli import table

if __name__ == "__main__":
    sys.exit(table(sys.argv[1:]))
