"""The functions of `import chimera as ch`; `docs/guide/library.md` shows them.

layers    ch.layers.mixer, .norm, .ffn, .quant: layers for a training loop of one's own
graft     ch.graft.liza, .save, .load: LiZAttention in a model of transformers
library   ch.build, ch.load, ch.datamodule, ch.fit, ch.runs: models, data, runs

Arguments are checked as those of the command line. A mistake is a `chimera.errors.UserError`, which
is a ValueError of one line. This file imports nothing.
"""
