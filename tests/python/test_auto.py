"""sy.fuse(…, strategy="auto"): what is chosen for a user's kernel, and its @triton.autotune configurations."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import SWEEP, warm_python

pytest.importorskip("torch")
pytest.importorskip("triton")
sy = pytest.importorskip("syncopate")
HERE = Path(__file__).resolve().parent


def chosen_on_ranks(tmp_path, name):
    environment = os.environ | {"SYNCOPATE_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("SYNCOPATE_TUNE", None)
    command = [warm_python(), str(HERE / "host_auto.py"), "2", name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@pytest.mark.parametrize("plan", ["all_gather", "reduce_scatter"] if SWEEP else ["reduce_scatter"])
def test_an_autotuned_kernel_is_searched_over_its_configurations_and_the_store_keeps_the_winner(
    tmp_path, plan
):
    ranks = chosen_on_ranks(tmp_path, plan)
    first = ranks[0]
    for key in ("by_estimate", "winner", "stored", "names"):
        assert ranks[1][key] == first[key], key
    assert first["stored"] == first["winner"]
    # Where it does not compile on one rank, all take the default, and say the same.
    assert first["fallen"] == ranks[1]["fallen"] == first["usual"]
    assert first["said"] == ranks[1]["said"]
    (said,) = first["said"]
    assert "found for fuse:product" in said and "rank 1: too little shared memory" in said
    assert first["by_estimate"].endswith("configuration=(0,))]")  # on the host the first one is the default
    for blocks in ("BLOCK_M=16,BLOCK_N=16", "BLOCK_M=32,BLOCK_N=16", "BLOCK_M=32,BLOCK_N=32"):
        assert any(name.startswith(blocks) for name in first["names"]), blocks
    assert any("ldst_dedicated" in name for name in first["names"])
    assert first["measured"] > 1 and first["us"] <= first["default_us"]


def ranked_on_a_gpu(m, n, k, ranks):
    """Of the autotuned kernel behind an all-gather, as the estimate has it: no GPU is asked."""
    from syncopate import _syncopate

    plan = sy.plans.all_gather(sy.plans.mesh_of(ranks), sy.Tensor("A", (m, k), "bf16"))
    source = HERE / "autotuned_kernel.py"
    stages = []
    for block_m, block_n in ((16, 16), (128, 128)):
        scalars = {
            "M": m,
            "N": n,
            "K": k,
            "BLOCK_K": 64,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "EVEN": True,
        }
        tensors = {
            "a_ptr": ([m, k], [k, 1], "bf16", []),
            "b_ptr": ([k, n], [n, 1], "bf16", []),
            "c_ptr": ([m, n], [n, 1], "bf16", []),
        }
        grid = (-(-m // block_m), -(-n // block_n), 1)
        stages.append([(source.read_text(), str(source), "product", {"a_ptr": "A"}, scalars, tensors, grid)])
    return _syncopate.tune.rank_program(stages, plan, "cuda", 132, machine=f"h200x{ranks}")


def test_the_estimate_prefers_tiles_that_load_less():
    ranked = ranked_on_a_gpu(1024, 1024, 1024, 4)
    likely = [one for one in ranked if not one["pruned"]]
    assert likely[0]["configuration"] == 1
    assert likely == sorted(likely, key=lambda one: one["us"])
    backends = {one["strategy"].backend for one in likely}
    assert {"auto", "tma_dedicated", "ldst_dedicated"} <= backends
    for one in likely:
        parts = one["fixed"] + one["compute"] + one["exposed"]
        assert abs(one["us"] - parts) < 1e-6 * one["us"] and one["compute"] > 0


def test_what_is_no_strategy_is_refused():
    plan = sy.plans.all_gather(sy.plans.mesh_of(2), sy.Tensor("A", (64, 64), "fp32"))
    with pytest.raises(ValueError, match='expected a Strategy, "auto" or None, got "best"'):
        sy.fuse(lambda: None, plan, {"a_ptr": "A"}, strategy="best")


def test_a_launch_gives_what_nobody_chooses():
    from autotuned_kernel import product

    plan = sy.plans.all_gather(sy.plans.mesh_of(2), sy.Tensor("A", (64, 64), "fp32"))
    fused = sy.fuse(product, plan, {"a_ptr": "A"}, strategy="auto")
    with pytest.raises(TypeError, match="product needs a value for K, BLOCK_K"):
        fused.call(0, (1,), None, None, None, 64, 32)
    call = fused.call(0, (1,), None, None, None, 64, 32, 64, BLOCK_K=16)
    assert "BLOCK_M" not in call.arguments and "EVEN" not in call.arguments
    (configured,) = fused.configured([call], (2,))
    assert configured.arguments["BLOCK_M"] == 32 and configured.arguments["EVEN"] is True
    assert configured.options == {"num_warps": 8, "num_stages": 3}


def test_what_is_compiled_is_the_function_below_all_layers():
    import triton
    from autotuned_kernel import product
    from syncopate.call.prepared import unwrapped
    from syncopate.device import jit

    innermost = product.fn.fn  # below @triton.autotune and @triton.heuristics
    swapped = triton.heuristics({"EVEN": lambda _: True})(triton.autotune([triton.Config({})], [])(innermost))
    for kernel in (product, product.fn, swapped, innermost):
        function = unwrapped(kernel)
        assert function is innermost
        values = dict.fromkeys(function.arg_names, 1)
        assert jit.in_order(function, values) == [1] * len(values)


def test_configurations_that_contradict_the_launch_are_left_out():
    from autotuned_kernel import product
    from syncopate.face.autotuned import configurations_of

    assert configurations_of(product, {"BLOCK_M": 32}) == [1, 2]
    assert configurations_of(lambda: None, {}) == [-1]
    with pytest.raises(ValueError, match="product: no configuration of @triton.autotune agrees"):
        configurations_of(product, {"BLOCK_M": 64})


def pruned(**prune_configs_by):
    """The configurations of the autotuned kernel, with prune_configs_by of its own."""
    import triton
    from autotuned_kernel import product
    from syncopate.face.autotuned import autotuner_of, configurations_of

    configs = autotuner_of(product).configs
    kernel = triton.autotune(configs, key=["M"], prune_configs_by=prune_configs_by)(product.fn)
    return configurations_of(kernel, {"M": 32, "N": 16, "K": 64, "BLOCK_K": 16})


def early(configs, named, **given):
    assert named["M"] == given["M"] == 32 and given["BLOCK_K"] == 16
    return [config for config in configs if config.kwargs["BLOCK_N"] <= given["N"]]


def model(M, BLOCK_M, BLOCK_N, num_warps, num_stages, **rest):
    return M / BLOCK_M + num_stages + num_warps - BLOCK_N


def test_prune_configs_by_is_honoured():
    assert pruned(early_config_prune=early) == [0, 1]
    assert pruned(perf_model=model, top_k=1) == [2]
    assert pruned(perf_model=model, top_k=0.7) == [0, 2]
    assert pruned(perf_model=model) == [0, 1, 2], "all of them by default"
    assert pruned(early_config_prune=early, perf_model=model, top_k=1) == [0]
    with pytest.raises(ValueError, match="product: early_config_prune leaves no configuration"):
        pruned(early_config_prune=lambda configs, named, **given: [])
    with pytest.raises(ValueError, match="product: top_k: expected a whole number"):
        pruned(perf_model=model, top_k=2.5)
