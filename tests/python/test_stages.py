"""Two stages around one plan: the feed-forward block is that of the unfused kernels, and what cannot run is refused."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(("ranks", "calls"), [(1, 2), (2, 2), (3, 2), (5, 1)])
def test_a_feed_forward_block_is_identical_to_the_unfused_kernels_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_stages.py", ranks, calls, timeout=600)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: 8 configurations, {8 * calls} calls, identical" in outcome.out


def test_plans_are_joined_op_by_op_and_refused_where_they_share_a_tensor():
    import syncopate as sy

    mesh = sy.plans.mesh_of(3)
    gather = sy.plans.all_gather(mesh, sy.Tensor("X", (12, 4), "fp32"))
    reduce = sy.plans.push_reduce(mesh, sy.Tensor("C", (12, 8), "fp32"), split=2, all=True)
    joined = sy.plans.join([gather, reduce], [sy.Tensor("H", (12, 6), "fp32")])
    assert joined.check() == []
    assert [name for name, _, _ in joined.tensors] == ["X", "C", "H"]
    assert joined.num_ranks == 3
    with pytest.raises(ValueError, match="plan 1: tensor X is in another part already"):
        sy.plans.join([gather, gather])
    with pytest.raises(ValueError, match="plan 1: its mesh is not that of plan 0"):
        sy.plans.join([gather, sy.plans.all_gather(sy.plans.mesh_of(2), sy.Tensor("Y", (12, 4), "fp32"))])


def test_run_checks_a_feed_forward_block_by_its_name(run):
    spec = "feed_forward:M=50,K=16,F=32,N=24,dtype=fp32,activation=gelu,rows=2,split=2"
    words = [sys.executable, "-m", "syncopate.run", spec, "--ranks=3", "--calls=2"]
    outcome = run(*words, "--check", timeout=300)
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("identical to the unfused kernel") == 3
    refused = run(*words[:3], spec.replace("gelu", "step"), "--ranks=2", timeout=60)
    assert (refused.code, refused.out) == (2, "") and "unknown activation 'step'" in refused.err
