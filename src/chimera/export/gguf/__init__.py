"""A trained decoder as one file for llama.cpp: weights, settings and tokenizer."""
