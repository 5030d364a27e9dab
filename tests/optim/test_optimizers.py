"""Optimisers, schedules and groups: torch's and other packages', rates of any component.

Every parameter is in exactly one group, with the rates of TITAN Table 3 (SPEC T1, T2).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.config.compose import compose, plain
from chimera.config.groups import groups as options
from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.norm.dyt import DyT
from chimera.optim.muon import MuonAdamW
from chimera.optim.optimizer import Group, build, check, components, groups, undecayed
from chimera.optim.schedule import warmup_constant, warmup_cosine, warmup_linear, wsd
from chimera.train.check import check_parts
from tests import forks


def settings(*overrides: str) -> Optim:
    made = instantiate(plain(compose(list(overrides)))["optim"], _convert_="all")
    assert isinstance(made, Optim)
    return made


def torch_optimisers() -> list[str]:
    named = (getattr(torch.optim, name) for name in torch.optim.__all__)
    classes = [c for c in named if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)]
    return sorted({c.__name__ for c in classes} - {"Optimizer"})


#: What cannot train a model of matrices and vectors by one call of `step()`.
REFUSED = {
    "LBFGS": "closure",
    "SparseAdam": "dense gradients",
    "Muon": "2D",
}


@pytest.mark.parametrize("name", torch_optimisers())
def test_every_optimiser_of_torch_steps_or_is_refused(name: str) -> None:
    given = settings(f"optim.optimizer._target_=torch.optim.{name}")
    if name in REFUSED:
        with pytest.raises(UserError, match=f"{name} cannot train a model: .*{REFUSED[name]}"):
            check(given)
    else:
        check(given)


@pytest.mark.parametrize("name", sorted(set(options()["optim"])))
def test_every_choice_lowers_the_loss_of_a_model(name: str) -> None:
    with torch.compiler.set_stance("force_eager"):
        model = zoo.model()
        given = settings(f"optim={name}", "optim.warmup=0.0")
        check(given)
        optimizer, schedule = build(given, groups(model, given), 30, fused=False)
        losses = []
        for _ in range(12):
            loss = nn.functional.cross_entropy(
                model(zoo.tokens()).logits.transpose(1, 2), zoo.tokens()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0]


def test_rates_of_any_component_and_no_other() -> None:
    words = ["mixer=delta", "data=text", "data.path=README.md", "optim.rates.delta=2"]
    config = plain(compose(words))
    check_parts(config)
    given = instantiate(config["optim"], _convert_="all")
    rates = {g.component: g.lr for g in groups(zoo.model(mixer="delta"), given)}
    assert rates["delta"] == 2 * given.lr
    with pytest.raises(UserError, match=r"no part is called detla; .* did you mean 'delta'"):
        check_parts(plain(compose([*words[:-1], "optim.rates.detla=2"])))
    check_parts(plain(compose([*words[:-1], "optim.rates.mamba=2"])))  # of a table for many models


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["optim.optimizer._target_=no_such.Lion"], "no_such.Lion cannot be imported"),
        (["+optim.optimizer.momentmu=0.9"], "optim.optimizer.momentmu is no key"),
        (["optim=sgd", "+optim.optimizer.dampening=0.5"], "SGD cannot train .* zero dampening"),
        (["schedule=wsd", "optim.schedule.decya=0.5"], "optim.schedule.decya is no key"),
        (["schedule=wdd"], "schedule=wdd is not known; .* did you mean 'wsd'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_parts(plain(compose([*words, "data=text", "data.path=README.md"])))


def grouped(*tensors: Tensor) -> list[dict[str, Any]]:
    names = ("attention", "embedding", "norm")
    return [
        {"params": [nn.Parameter(t.clone())], "name": n, "lr": 0.01, "weight_decay": 0.1}
        for n, t in zip(names, tensors, strict=True)
    ]


def given_gradients(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        for p in group["params"]:
            p.grad = (p.detach() * 3).sin()


SAVE = """
import sys
import torch
from torchao.optim.subclass_8bit import OptimState8bit
from chimera.rundir.checkpoint_io import write
import math
from collections.abc import Callable
from pathlib import Path
state = {0: {"exp_avg": OptimState8bit.zeros((64, 64))}}
write({"state_dict": {}, "optimizer_states": [{"state": state}]}, Path(sys.argv[1]))
"""
LOAD = """
import sys
import math
from collections.abc import Callable
from pathlib import Path
from chimera.rundir.checkpoint_io import load
assert "torchao" not in sys.modules
print(type(load(Path(sys.argv[1]))["optimizer_states"][0]["state"][0]["exp_avg"]).__name__)
"""


@pytest.mark.slow
def test_a_checkpoint_with_8_bit_states_is_read_by_a_process_that_trains_nothing(
    tmp_path: Path,
) -> None:
    file = str(tmp_path / "last.ckpt")
    saved = forks.run("-c", SAVE, file)
    assert saved.returncode == 0, saved.stderr
    loaded = forks.run("-c", LOAD, file)
    assert loaded.stdout.strip() == "OptimState8bit", loaded.stderr


class TestMuon:
    tensors = (torch.randn(6, 4), torch.randn(5, 4), torch.randn(4))

    def test_matrices_follow_torchs_muon_and_the_rest_adamw(self) -> None:
        ours, theirs = grouped(*self.tensors), grouped(*self.tensors)
        both = MuonAdamW(ours)
        muon = torch.optim.Muon(theirs[:1], adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(theirs[1:], betas=(0.9, 0.95))
        for _ in range(3):
            given_gradients(ours)
            given_gradients(theirs)
            both.step()
            muon.step()
            adamw.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a["params"], b["params"], rtol=0, atol=0)

    def test_a_loaded_state_goes_on_with_the_same_numbers(self) -> None:
        whole, broken = grouped(*self.tensors), grouped(*self.tensors)
        first, before = MuonAdamW(whole), MuonAdamW(broken)
        for optimizer, of in ((first, whole), (before, broken)):
            given_gradients(of)
            optimizer.step()
        after = MuonAdamW(broken)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        for group in first.param_groups + after.param_groups:
            group["lr"] = 0.003  # as the schedule does
        for optimizer, of in ((first, whole), (after, broken)):
            given_gradients(of)
            optimizer.step()
        for a, b in zip(whole, broken, strict=True):
            torch.testing.assert_close(a["params"], b["params"], rtol=0, atol=0)

    def test_no_matrix_is_refused(self) -> None:
        with pytest.raises(ValueError, match="needs a trained matrix"):
            MuonAdamW([{"params": [nn.Parameter(torch.ones(3))], "name": "norm"}])


def group(parameter: nn.Parameter) -> list[Group]:
    return [Group("one", 0.1, 0.01, [parameter])]


def steps(optimizer: Any, parameter: nn.Parameter, schedule: Any) -> list[float]:
    found = []
    for _ in range(4):
        parameter.grad = parameter.detach() ** 2 + 1
        optimizer.step()
        schedule.step()
        found.append(parameter.item())
    return found


@pytest.mark.parametrize("given", [settings(), Optim(lr=2e-3)], ids=["composed", "plain"])
def test_the_default_is_adamw_with_warmup_and_cosine(given: Optim) -> None:
    ours, theirs = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer, schedule = build(given, group(ours), 4, fused=True)
    adamw = torch.optim.AdamW(
        [{"params": [theirs], "lr": 0.1, "weight_decay": 0.01}], betas=(0.9, 0.95), eps=1e-8,
        fused=True,
    )  # fmt: skip
    by_hand = torch.optim.lr_scheduler.LambdaLR(adamw, warmup_cosine(4, 0.1, 0.0))
    assert steps(optimizer, ours, schedule) == steps(adamw, theirs, by_hand)
    assert optimizer.defaults["fused"]


def test_another_optimiser_takes_what_it_has_an_argument_for() -> None:
    given = settings(
        "optim.optimizer._target_=torch.optim.SGD",
        "optim.schedule._target_=chimera.optim.schedule.warmup_constant",
    )
    parameter = nn.Parameter(torch.ones(1))
    optimizer, schedule = build(given, group(parameter), 4, fused=False)
    assert isinstance(optimizer, torch.optim.SGD)
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert parameter.item() == pytest.approx(1 - 0.1 * 1.01)
    assert schedule.get_last_lr() == [0.1]


def test_an_argument_of_the_node_comes_before_the_key_of_optim() -> None:
    node = {"_target_": "torch.optim.AdamW", "_partial_": True, "eps": 0.5}
    given = Optim(lr=1.0, eps=1e-8, optimizer=instantiate(node))
    optimizer, _ = build(given, group(nn.Parameter(torch.ones(1))), 4, fused=False)
    assert optimizer.defaults["eps"] == 0.5


def test_a_rate_of_the_node_is_refused_as_components_have_theirs() -> None:
    node = {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.5}
    with pytest.raises(UserError, match=r"optim.optimizer.lr .* use optim.lr"):
        check(Optim(lr=1.0, optimizer=instantiate(node)))


@pytest.mark.parametrize("schedule", [warmup_cosine, warmup_linear, warmup_constant, wsd])
def test_every_schedule_rises_linearly_and_then_never(
    schedule: Callable[..., Callable[[int], float]],
) -> None:
    factor = schedule(100, 0.1)
    assert [factor(s) for s in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert factor(10) == 1.0
    assert all(factor(s) >= factor(s + 1) for s in range(10, 100))
    assert schedule(10, 0.0)(0) == 1.0


@pytest.mark.parametrize(
    ("factor", "values"),
    [
        (warmup_cosine(100, 0.1, 0.2), {55: 0.6 + 0.4 * math.cos(math.pi / 2), 100: 0.2}),
        (warmup_linear(100, 0.2, 0.5), {60: 0.75, 100: 0.5}),
        (warmup_constant(100, 0.2), {100: 1.0}),
        (wsd(100, 0.1, 0.5, decay=0.2), {10: 1.0, 50: 1.0, 80: 1.0, 90: 0.75, 100: 0.5}),
    ],
)
def test_schedules_by_hand(factor: Callable[[int], float], values: dict[int, float]) -> None:
    for step, value in values.items():
        assert factor(step) == (value if value == 1.0 else pytest.approx(value))
    assert factor(1000) == factor(100)


def test_by_default_they_fall_to_zero_and_the_stable_one_in_the_last_tenth() -> None:
    for schedule in (warmup_cosine, warmup_linear, wsd):
        assert schedule(100, 0.1)(100) == pytest.approx(0.0)
    assert [wsd(100, 0.1)(s) for s in (89, 90, 95)] == pytest.approx([1.0, 1.0, 0.5])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mixer", zoo.distinct("mixer"))
def test_every_parameter_in_exactly_one_group(mixer: str) -> None:
    model = zoo.model(mixer=mixer, norm="qdyt")
    optim = instantiate(plain(compose([]))["optim"], _convert_="all")
    ids = [id(p) for group in groups(model, optim) for p in group.parameters]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters() if p.requires_grad}
    assert "other" not in components(model).values()


def test_rates_of_titan_table_3() -> None:
    optim = instantiate(plain(compose(["optim.lr=1e-4"]))["optim"], _convert_="all")
    model = zoo.model(mixer="retnet", norm="dyt")
    found = {group.component: group for group in groups(model, optim) if not group.undecayed}
    assert found["embedding"].lr == pytest.approx(1e-4)
    assert found["norm"].lr == pytest.approx(2e-4)
    assert found["norm"].weight_decay == 0.001
    assert found["retnet"].lr == pytest.approx(1.5e-4)
    assert found["retnet"].weight_decay == 0.01
    others = set(found) - set(optim.rates)
    assert others
    assert all(found[name].lr == pytest.approx(1e-4) for name in others)
    assert optim.rates["ode"] * optim.lr == pytest.approx(5e-5)
    assert optim.rates["mamba"] * optim.lr == pytest.approx(1e-4)
    assert optim.rates["attention"] * optim.lr == pytest.approx(1e-4)
    assert optim.betas == [0.9, 0.95]


def test_a_frozen_parameter_is_in_no_group() -> None:
    model = zoo.model()
    for parameter in (model.backbone.embedding.weight, model.backbone.scale.scale):
        parameter.requires_grad_(False)
    optim = instantiate(plain(compose([]))["optim"], _convert_="all")
    assert "embedding" not in {group.component for group in groups(model, optim)}


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        ({"mixer": "mamba"}, {"mamba": ("A_log", "D", "dt_bias")}),
        ({"mixer": "delta"}, {"delta": ("rate", "decay_bias")}),
        ({"mixer": "titan_memory"}, {"mamba": ("alpha_logit", "A_log", "D", "dt_bias")}),
        ({"mixer": "mlstm"}, {"mlstm": ("gate_bias",)}),
        ({"mixer": "slstm"}, {"slstm": ("gate_bias",)}),
        ({"norm": "dyt"}, {"norm": ("alpha",)}),
        ({"norm": "qdyt"}, {"norm": ("alpha",)}),
        ({"norm": "layernorm"}, {}),
    ],
)
def test_decay_leaves_rates_gates_and_slopes_alone(
    choices: dict[str, str], names: dict[str, tuple[str, ...]]
) -> None:
    config = zoo.config(**choices)
    if choices.get("mixer") == "delta":
        config["mixer"]["decay"] = True
    made = build_model(zoo.TINY, choose(config), vocab_size=8, causal=True)
    found = groups(made, Optim(lr=1e-3, weight_decay=0.1))
    alone = {group.component: group for group in found if group.undecayed}
    assert {name: set(group.undecayed) for name, group in alone.items()} == {
        component: set(wanted) for component, wanted in names.items()
    }
    for group in alone.values():
        assert group.weight_decay == 0
        assert group.lr == next(g.lr for g in found if g.component == group.component)
    named = dict(made.named_parameters())
    assert {id(named[name]) for name in undecayed(made)} == {
        id(p) for group in alone.values() for p in group.parameters
    }


def test_an_undecayed_parameter_without_a_gradient_of_its_own_keeps_its_value() -> None:
    norm = DyT(4)
    made = groups(norm, Optim(lr=0.1, weight_decay=0.5))
    optimizer, _ = build(Optim(lr=0.1, weight_decay=0.5), made, 10, fused=False)
    for parameter in norm.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert bool((norm.alpha == 0.5).all())
    assert bool((norm.weight < 1).all())
