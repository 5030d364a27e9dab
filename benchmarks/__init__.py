"""Measure speed, memory and recall. Speeds are compared within one run; no test asserts them."""
