"""Real data beside the checkout, for tests that have more to say where it is there.

Every such test makes small data of the same form where it is not.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CHIMERA_TEST_DATA", ROOT.parent / "shared" / "data"))
