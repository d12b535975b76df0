"""Kernels of the corpus fused from the command line, without a line of Python: an input gathered, an output reduced, shards
exchanged; on three host ranks the results are those of the unfused kernel, bit for bit."""

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import BINARY, HUNG, warm_python

HERE = Path(__file__).resolve().parent
RANKS = 3

pytest.importorskip("triton")
if not BINARY.exists() or not list((HERE.parents[1] / "python" / "syncopate").glob("_syncopate*.so")):
    pytest.skip("the command or the extension is not built", allow_module_level=True)

GATHER, REDUCE, ALL = "all_gather", "reduce_scatter", "all_reduce"
EXCHANGE = "all_to_all"  # each rank makes a part along one axis, and ends with one along the other
# case, template, the parameter that is bound, the axis along which ranks hold it
RUNS = [
    ("grids/grouped_tiles_without_masks", GATHER, "a_ptr", 0),
    ("grids/rows_in_stretches", GATHER, "x_ptr", 0),
    ("grids/early_return_of_one_program", GATHER, "x_ptr", 0),
    ("grids/partial_sums_by_stride", GATHER, "x_ptr", 0),
    ("grids/persistent_beside_batches", GATHER, "x_ptr", 1),
    ("grids/tiles_of_a_triangle", GATHER, "x_ptr", 1),
    ("grids/tiles_in_a_snake", REDUCE, "y_ptr", 0),
    ("grids/heads_behind_rows", REDUCE, "y_ptr", 1),
    ("grids/split_k_in_turn", GATHER, "a_ptr", 0),
    ("grids/blocks_from_the_last_to_the_first", ALL, "y_ptr", 0),
    ("typed/tensors_where_descriptors_would_do", GATHER, "x", 0),
    ("typed/descriptors_where_tensors_would_do", REDUCE, "y", 0),
    ("typed/blocks_as_wide_as_sixteen_bytes", GATHER, "x_ptr", 0),
    ("typed/element_types_as_arguments", GATHER, "x_ptr", 0),
    ("typed/tuples_of_one_tensor", GATHER, "xs[0]", 0),
    ("typed/block_pointers_with_a_known_base", GATHER, "x_ptr", 0),
    ("typed/softmax_in_a_wider_type", GATHER, "x_ptr", 1),
    ("ragged/sums_of_known_segments", GATHER, "x_ptr", 0),
    ("ragged/sparse_times_dense", GATHER, "b_ptr", 0),
    ("ragged/bags_of_known_words", GATHER, "table_ptr", 0),
    ("ragged/tiles_of_known_groups", GATHER, "a_ptr", 0),
    ("ragged/rows_to_known_places", GATHER, "x_ptr", 0),
    ("ragged/attention_in_a_window", GATHER, "k_ptr", 0),
    ("ragged/channels_to_pixels", REDUCE, "y_ptr", 1),
    ("varlen/causal_attention_of_packed_sequences", GATHER, "v_ptr", 0),
    ("varlen/decode_with_a_known_page_table", GATHER, "k_ptr", 0),
    ("varlen/experts_of_known_tokens", GATHER, "a_ptr", 0),
    ("ragged/channels_to_pixels", EXCHANGE, "y_ptr", 0),
    ("typed/softmax_in_a_wider_type", EXCHANGE, "y_ptr", 0),
    ("attention/persistent_forward_by_host_descriptors", EXCHANGE, "o_desc", 0),
    ("moe/weighted_sum_of_experts", EXCHANGE, "out_ptr", 0),
    ("public/filters_by_channel", EXCHANGE, "y_ptr", 1),
    ("rotary/pairs_of_halves", EXCHANGE, "out_ptr", 0),
    ("matmul/batched_on_three_axes", EXCHANGE, "c_ptr", 0),
]
ALWAYS = {
    "grids/rows_in_stretches",
    "varlen/causal_attention_of_packed_sequences",
    "ragged/channels_to_pixels",
}  # the others in sweeps


def syncopate(folder: Path, *words: object) -> str:
    environment = {**os.environ, "SYNCOPATE_PYTHON": warm_python()}
    done = subprocess.run(
        [str(BINARY), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HUNG,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def words(name: str) -> dict:
    """Of the case, as the command takes them."""
    done = subprocess.run(
        [warm_python(), HERE / "words.py", name], capture_output=True, text=True, timeout=HUNG
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fused(name: str, template: str, parameter: str, axis: int, folder: Path) -> Path:
    """The kernel fused with the template's plan for one parameter; others as the case has them."""
    case = words(name)
    makes = template != GATHER
    syncopate(
        folder, "plan", "make", template, "--ranks", RANKS, "--tensor", f"T:{case['shapes'][parameter]}", "--axis", axis,
        *(["--produced"] if makes else []), *(["--to-axis", 1 - axis] if template == EXCHANGE else []), "-o", "plan.json",
    )  # fmt: skip
    tensors = [
        word for name, word in case["tensors"].items() if name != parameter or "@" in word
    ]  # a bound one follows the plan, but for its block
    syncopate(
        folder, "fuse", case["kernel"], "--plan", "plan.json", "--bind", f"{parameter}=T", "--args", case["args"],
        *(word for tensor in tensors for word in ("--tensor", tensor)),
        *(word for values in case["values"] for word in ("--values", values)),
        "--grid", case["grid"], "-o", "fused",
    )  # fmt: skip
    return folder / "fused"


@pytest.mark.parametrize(
    ("name", "template", "parameter", "axis"),
    [
        pytest.param(*run, id=f"{run[0]}-{run[1]}", marks=[] if run[0] in ALWAYS else pytest.mark.sweep)
        for run in RUNS
    ],
)
def test_a_kernel_fused_by_the_command_gives_the_unfused_bits(name, template, parameter, axis, tmp_path):
    folder = fused(name, template, parameter, axis, tmp_path)
    out = syncopate(tmp_path, "run", folder, "--check")
    assert out.count("identical to the unfused kernel") == RANKS, out
