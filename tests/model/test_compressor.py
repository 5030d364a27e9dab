"""The compressor's logits depend on the last output alone."""

from __future__ import annotations

import torch

from chimera.config.settings import Model
from chimera.contract_tests import zoo
from chimera.model.compressor import Compressor, sinusoid
from tests.kit import close


def test_all_logits_come_from_the_last_output() -> None:
    torch.manual_seed(0)
    shape = Model(dim=32, depth=1, heads=4, max_len=16)
    language = zoo.model(shape, causal=True, vocab_size=9, position="rope")
    model = Compressor(language).eval()
    ids = torch.randint(1, 9, (2, 7))
    outputs = []
    language.backbone.register_forward_hook(lambda *a: outputs.append(a[-1].y))
    logits = model(ids).logits.view(2, 7, 9)
    last = outputs[0][:, -1:]
    x = last + sinusoid(7, 32, last.device)
    wanted = language.head(model.decoder(x))
    close(logits, wanted, 1e-5)
    # Positions differ by their sinusoids only, and each has another one.
    assert (logits[:, :1] - logits[:, 1:]).abs().amax(-1).min() > 0
    index = torch.tensor([3, 8])
    close(model(ids, index=index).logits, logits.flatten(0, 1)[index], 1e-5)
