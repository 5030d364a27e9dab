"""Hybrid language models from interchangeable parts."""

__version__ = "0.1.0"
