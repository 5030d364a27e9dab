"""Small tasks on sequences of symbols, drawn by a seed, that separate mixers."""
