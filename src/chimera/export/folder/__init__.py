"""The files of an exported model.

config.json         the run's configuration, how the model's head looks, what is packed
model.safetensors   weights; ternary ones packed by option, 1.6 bits each
adapter/            what of an adapter is not merged, laid out as peft does it
tokenizer/          ours; tokenizer.json and its configuration for AutoTokenizer where there is one
body/config.json    of a Hugging Face body
README.md           the model card
"""
