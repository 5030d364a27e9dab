"""Speed and memory, measured as ratios within one run; nothing here is asserted in tests."""
