"""A GGUF file holds the model: its tensors, and an oracle computes our logits from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chimera.cli.finished import export
from chimera.cli.train import main as train
from chimera.contract_gguf import NotInGGUF
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.export.gguf import Type, convert, named, vocabulary, write
from chimera.norm.standard import RMSNorm
from tests.export.folders import DECODER, pieces

pytest.importorskip("gguf", reason="the package gguf is not installed: pip install .[gguf]")
from tests.export import llama

LLAMA = {"norm": "rmsnorm", "ffn": "swiglu", "position": "rope"}
#: Decoders that llama.cpp knows, with the architecture.
KNOWN: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "llama": ("llama", LLAMA, {}),
    "gqa, untied, loops": ("llama", {"mixer": "gqa"}, {"tie_head": False, "loops": 2}),
    "ternary_weight": ("llama", {"quant": "ternary_weight"}, {}),
    "int8": ("llama", {"quant": "int8"}, {"embedding_scale": "none"}),
    "relu2": ("arcee", {"ffn": "relu2"}, {}),
    "bitnet": ("bitnet", {"quant": "bitnet158", "mixer": "mqa"}, {}),
}
UNKNOWN = {
    "mixer=retnet is not known to llama.cpp; of this group it knows attention, gqa, mqa": {
        "mixer": "retnet"
    },
    "norm=layernorm is not known": {"norm": "layernorm"},
    "position=alibi is not known": {"position": "alibi"},
    "position=learned is not known": {"position": "learned"},
    "ffn=moe is not known": {"ffn": "moe"},
    "quant=hbit is not known": {"quant": "hbit"},
    "norm=none is not known to llama.cpp with no norm before the head": {"norm": "none"},
    "quant=int4_act is not known": {"quant": "int4_act"},
}


def model_of(settings: dict[str, Any], **choices: str) -> Any:
    """An untrained decoder; weights of norms are not 1, the factor of embeddings is not 1."""
    shape = replace(zoo.TINY, dim=64, heads=4, head_transform=False, **settings)
    chosen = {**LLAMA, **choices}
    model: Any = zoo.build(shape, chosen, causal=True, vocab_size=pieces().vocab_size).eval()
    for module in model.modules():
        if isinstance(module, RMSNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


def file_of(model: Any, to: Path, kind: Type = "f32") -> Path:
    made = convert(model, max_len=32)
    words = vocabulary(pieces(), [pieces().sep_id])
    del words["precompiled_charsmap"]  # the reader takes seconds for its 240,000 bytes
    write(to, made, words, kind=kind, name="test", about="of a test")
    return to


@pytest.mark.parametrize("case", KNOWN)
def test_an_oracle_computes_our_logits_from_the_file(case: str, tmp_path: Path) -> None:
    architecture, choices, settings = KNOWN[case]
    model = model_of(settings, **choices)
    if case == "bitnet":  # exact where the weights of a norm are equal
        for block in model.backbone.blocks:
            torch.nn.init.constant_(block.mixer_norm.weight, 0.7)
            torch.nn.init.constant_(block.ffn_norm.weight, 1.3)
    for module in model.modules():  # llama.cpp rounds activations in its own way, the oracle not
        if hasattr(module, "bits"):
            module.bits = 40
    file = file_of(model, tmp_path / "model.gguf")
    keys, _ = llama.read(file)
    assert keys["general.architecture"] == architecture
    ids = zoo.tokens(2, 16, pieces().vocab_size)
    with torch.no_grad():
        ours = model.double()(ids).logits
    theirs = llama.logits(file, ids)
    error = (ours - theirs).abs().max() / ours.abs().max()
    assert error < 1e-5, error


@pytest.mark.parametrize(("kind", "step"), [("f16", 2**-11), ("q8_0", 1 / 254 + 2**-11)])
def test_every_tensor_is_in_the_file(kind: Type, step: float, tmp_path: Path) -> None:
    model = model_of({"tie_head": False})
    _, tensors = llama.read(file_of(model, tmp_path / "model.gguf", kind))
    made = convert(model, max_len=32)
    assert set(tensors) == set(made.tensors)
    assert len(tensors) == 3 + 2 * 9
    for name, tensor in made.tensors.items():
        largest = tensor.abs().max()
        error = (tensors[name] - tensor).abs().max()
        assert error <= (1e-7 if tensor.ndim == 1 else step) * largest, name


@pytest.mark.parametrize("kind", ["tq1_0", "tq2_0"])
def test_ternary_matrices_are_exact_to_the_scale(kind: Type, tmp_path: Path) -> None:
    model = model_of({"depth": 1}, quant="ternary_weight", ffn="swiglu")
    with pytest.raises(UserError, match="type=f16"):  # rows of 64
        file_of(model, tmp_path / "model.gguf", kind)
    wide = zoo.build(
        replace(zoo.TINY, dim=256, depth=1, head_transform=False),
        {**LLAMA, "quant": "ternary_weight"},
        causal=True,
        vocab_size=pieces().vocab_size,
    )
    file = file_of(wide, tmp_path / "model.gguf", kind)
    _, tensors = llama.read(file)
    layer: Any = wide.backbone.blocks[0].mixer
    codes, scale = layer.q_proj.ternary()
    found = tensors["blk.0.attn_q.weight"]
    assert torch.equal(found.sign().to(torch.int8), codes)
    assert found.abs().max().item() == pytest.approx(scale.item(), rel=2**-11)
    assert torch.equal(tensors["token_embd.weight"].half().double(), tensors["token_embd.weight"])


@pytest.mark.parametrize("words", UNKNOWN)
def test_a_part_that_llama_cpp_does_not_know_is_named(words: str) -> None:
    choices = UNKNOWN[words]
    with pytest.raises(NotInGGUF) as caught:
        convert(model_of({}, **choices), max_len=32)
    message = named(caught.value, {**zoo.PLAIN, **LLAMA, **choices})
    assert message.startswith(words), message
    assert "\n" not in message


def test_parts_that_no_architecture_has_together_are_named() -> None:
    with pytest.raises(UserError, match=r"squared ReLU without a gate \(arcee\)"):
        convert(model_of({}, quant="bitnet158", ffn="relu2"), max_len=32)


def test_a_run_becomes_a_file_and_bad_lines_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(["the cat sees a big red dog"] * 300))
    run, file = tmp_path / "run", tmp_path / "out" / "model.gguf"
    words = [*DECODER, f"data.path={tmp_path}/text.txt", "ffn=swiglu", "model.dim=32"]
    words += ["model.depth=1", "model.max_len=32", "trainer.max_steps=2", "scale=smoke"]
    words += [f"data.cache_dir={tmp_path}/cache", f"run_dir={run}"]
    assert train(words) == 0
    assert export([f"run={run}", f"to={file}"]) == 0
    assert b"tokenizer.ggml.precompiled_charsmap" in file.read_bytes()
    assert export([f"run={run}", f"to={file}"]) == 0  # it replaces its own
    other = tmp_path / "other.gguf"
    changed = file.read_bytes().replace(b"[UNK]", b"[HUH]", 1)
    other.write_bytes(changed)
    (tmp_path / "link.GGUF").symlink_to(file)
    capsys.readouterr()
    for bad in (
        [f"to={tmp_path}/link.GGUF"],
        [f"to={other}"],
        [f"to={tmp_path}/new.gguf", "packed=true"],
        [f"to={tmp_path}/new.gguf", "type=tq2_0"],
        [f"to={tmp_path}/new.gguf", "adapter=alone"],
        [f"to={tmp_path}/folder", "type=f16"],
    ):
        assert export([f"run={run}", *bad]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "new.gguf").exists()
    assert other.read_bytes() == changed
