"""What a kernel's `@triton.autotune` and `@triton.heuristics` leave open, and a call with what they choose."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..call.arguments import LAUNCH_OPTIONS, function_of, is_tensor
from ..call.stage_call import Call
from ..call.stated import require_one_cta


def autotuner_of(kernel: Any) -> Any | None:
    """The layer of @triton.autotune around a kernel."""
    while hasattr(kernel, "fn"):
        if getattr(kernel, "configs", None):
            return kernel
        kernel = kernel.fn
    return None


def heuristics_of(kernel: Any) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    found: dict[str, Any] = {}
    while hasattr(kernel, "fn"):
        values = getattr(kernel, "values", None)
        found |= values if isinstance(values, Mapping) else {}
        kernel = kernel.fn
    return found


def configurations_of(kernel: Any, arguments: Mapping[str, Any]) -> list[int]:
    """Indices of the configurations that a launch leaves open: those that agree with what it gives, and that the kernel's
    prune_configs_by keeps. [-1]: the kernel has none."""
    tuner = autotuner_of(kernel)
    if tuner is None:
        return [-1]
    name = function_of(kernel).__name__
    kept = kept_by_pruning(tuner, arguments, name)
    found = [
        index
        for index, config in enumerate(tuner.configs)
        if config in kept
        and all(arguments.get(name, value) == value for name, value in config.kwargs.items())
    ]
    if not found:
        raise ValueError(f"{name}: no configuration of @triton.autotune agrees with the launch")
    return found


def kept_by_pruning(tuner: Any, arguments: Mapping[str, Any], name: str) -> list[Any]:
    """What prune_configs_by of @triton.autotune leaves, as Triton has it: early_config_prune, then the top_k of perf_model,
    a count or a share of all. Both may read an argument by position or by name: they are given all in both ways."""
    kept, given = list(tuner.configs), dict(arguments)
    prune = getattr(tuner, "early_config_prune", None)
    if prune is not None:
        kept = list(prune(kept, given, **given))
        if not kept:
            raise ValueError(f"{name}: early_config_prune leaves no configuration")
    model = getattr(tuner, "perf_model", None)
    if model is None:
        return kept
    most = tuner.configs_top_k
    if isinstance(most, float) and most <= 1:
        most = int(len(tuner.configs) * most)
    if not isinstance(most, int) or isinstance(most, bool):
        raise ValueError(f"{name}: top_k: expected a whole number, or a share up to 1.0, got {most!r}")
    if len(kept) <= most:
        return kept
    return sorted(kept, key=lambda config: model(**{**given, **config.all_kwargs()}))[: max(1, most)]


def words_of(kernel: Any, index: int) -> dict[str, Any] | None:
    """A configuration as the store keeps it."""
    if index < 0:
        return None
    config = autotuner_of(kernel).configs[index]
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def configured(kernel: Any, call: Call, index: int) -> Call:
    """The call with what a configuration and @triton.heuristics choose."""
    arguments, options = dict(call.arguments), dict(call.options)
    if index >= 0:
        config = autotuner_of(kernel).configs[index]
        arguments |= {
            name: value for name, value in config.kwargs.items() if arguments.get(name, None) is None
        }
        chosen = {name: getattr(config, name, None) for name in LAUNCH_OPTIONS}
        usual = {"num_ctas": 1}
        options = {n: v for n, v in chosen.items() if v is not None and v != usual.get(n)} | options
        require_one_cta(kernel, options)
        if config.pre_hook is not None:
            # It may set the blocks of descriptors: of copies, since other configurations set others.
            arguments = {n: v if isinstance(v, torch.Tensor) else _copied(v) for n, v in arguments.items()}
            config.pre_hook(arguments)
    for name, heuristic in heuristics_of(kernel).items():
        if name not in arguments:
            arguments[name] = heuristic(arguments)
    signature = list(bind_order(kernel))
    return Call(call.grid, {n: arguments[n] for n in signature if n in arguments}, options)


def _copied(value: Any) -> Any:
    return copy.copy(value) if is_tensor(value) else value


def bind_order(kernel: Any) -> list[str]:
    return list(inspect.signature(function_of(kernel)).parameters)
