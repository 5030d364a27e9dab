"""Exported models as the transformers library wants them: `AutoModel`, `AutoTokenizer`."""
