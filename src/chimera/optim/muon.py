"""Muon for the matrices of the hidden layers, AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

#: Components whose matrices are tables, not maps between hidden layers: AdamW updates them.
TABLES = ("embedding", "position", "head")


class MuonAdamW(Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) beside AdamW.

    Muon updates a matrix by its momentum with all singular values set near 1 (a Newton-Schulz
    iteration). The update is scaled to the size of AdamW's (arXiv 2502.16982), so that one
    learning rate and one weight decay serve both. Matrices are parameters with two dimensions
    outside of `tables`; AdamW updates everything else: tables, vectors, stacked experts.

    Args:
        params: parameter groups with a `name`, the component, and their rate and decay.
        lr, weight_decay: for groups without their own.
        betas, eps: of AdamW.
        momentum, nesterov: of Muon.
        ns_steps: Newton-Schulz steps.
        tables: components that AdamW updates.

    Raises:
        ValueError: no parameter is a matrix.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        tables: Sequence[str] = TABLES,
    ) -> None:
        matrices = list[dict[str, Any]]()
        rest = list[dict[str, Any]]()
        for group in params:
            is_matrix = [p.ndim == 2 and group["name"] not in tables for p in group["params"]]
            for part, wanted in ((matrices, True), (rest, False)):
                chosen = [p for p, m in zip(group["params"], is_matrix, strict=True) if m == wanted]
                if chosen:
                    part.append({**group, "params": chosen})
        if not matrices:
            raise ValueError("Muon needs a trained matrix outside of embedding, position and head")
        super().__init__([*matrices, *rest], {"lr": lr, "weight_decay": weight_decay})
        self._matrix_groups = len(matrices)
        self._muon = Muon(
            matrices,
            lr,
            weight_decay,
            momentum,
            nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = AdamW(rest, lr, betas, eps, weight_decay) if rest else None
        self.param_groups = [*self._muon.param_groups]
        if self._adamw is not None:
            self.param_groups += self._adamw.param_groups
        self._share()

    def _share(self) -> None:
        """Let both optimisers use the groups and the state of this one."""
        self._muon.param_groups = self.param_groups[: self._matrix_groups]
        self._muon.state = self.state
        if self._adamw is not None:
            self._adamw.param_groups = self.param_groups[self._matrix_groups :]
            self._adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer`."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See `torch.optim.Optimizer`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()
        if self._adamw is not None:
            self._adamw.step()
        return loss
