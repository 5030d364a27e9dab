"""MMLU, one-shot, answered by generating (SPEC D5, E4; TPTT 5.4); run by `evaluate.mmlu`."""
