"""What a GPU gives (docs/guide/gpu.md): `make gpu`, or `python -m benchmarks.gpu`."""
