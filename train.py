"""Train one run: `python train.py mixer=retnet quant=bitnet158 norm=qdyt`; `--help` lists all.

The story of a run is `chimera.train.run.run`; what is allowed on the command line, `conf/`.
"""

import sys

from chimera.cli.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
