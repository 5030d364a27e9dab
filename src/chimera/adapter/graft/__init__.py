"""A linear memory in the attentions of a pretrained model."""
