"""What a GPU gives, in one program: `make gpu`, or `python -m benchmarks.gpu` (docs/gpu.md)."""
