"""MMLU, one-shot, with generated answers (SPEC D5, E4; TPTT 5.4); run by `evaluate.mmlu`."""
