"""One part, as the process that `benchmarks.gpu` starts: the last line is its result as JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time

from benchmarks.gpu.setting import Setting


def main(arguments: list[str]) -> int:
    """Measure; arguments are the part, the device, the seconds, and --tiny."""
    part, device, seconds, *rest = arguments
    setting = Setting(device, "--tiny" in rest, float(seconds), time.monotonic())
    try:
        result = importlib.import_module(f"benchmarks.gpu.{part}").main(setting)
    except Exception as error:  # noqa: BLE001 - whatever it is, the file of the part says so
        import traceback

        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    print("RESULT " + json.dumps(result), flush=True)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
