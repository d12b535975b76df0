"""A user's program: a plan, a strategy, a problem and its estimate, as mypy --strict must take it."""

from __future__ import annotations

import json

import syncopate as sy
import torch


def plan_of(rows: int, ranks: int) -> sy.Plan:
    mesh = sy.Mesh(gpu=ranks)
    return sy.plans.all_gather(mesh, sy.Tensor("A", (rows, 32), "bf16"), split=2)


def quickest(m: int, n: int, k: int) -> sy.Strategy:
    problem = sy.strategy.Problem("matmul_all_reduce", m, n, k, torch.bfloat16, ranks=4, num_sms=132)
    return sy.strategy.choose(problem)


def describe(plan: sy.Plan) -> dict[str, int | str | list[str]]:
    names: list[str] = [name for name, _shape, _dtype in plan.tensors]
    try:
        found = len(plan.check())
    except sy.SyncopateError as error:
        raise SystemExit(error.exit_code) from error
    return {"ranks": plan.num_ranks, "tensors": names, "findings": found, "version": sy.__version__}


if __name__ == "__main__":
    strategy = quickest(4096, 4096, 4096)
    assert isinstance(strategy.split, int) or strategy.split is None
    print(json.dumps(describe(plan_of(64, 4))))
