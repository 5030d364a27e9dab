"""Train one run: `python train.py mixer=retnet quant=bitnet158 norm=qdyt`; `--help` lists all.

`chimera.train.run.run` trains it; the folder `conf/` defines the groups and keys of the command
line. Tab completion of Hydra looks for the text @hydra.main in this file.
"""

import sys

from chimera.cli.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
