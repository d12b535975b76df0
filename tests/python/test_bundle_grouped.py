"""Users' grouped kernels in bundles: written with no rank and no GPU, checked, and run by the command and through the C API."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HUNG, ROOT, SWEEP, free_port

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent
WHOLE = ROOT / "build" / "libsyncopate.so"
STAND_IN = ROOT / "build" / "fake_driver"
SIZES = [24, 3, 20, 24, 16, 16]  # of grouped_bundle.py: BOUND, OWN, K, N, BM, BN


def written(folder, ranks, arch, *words):
    """The file."""
    file = folder / f"grouped_{ranks}_{arch}.sybundle"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")])}
    environment.pop("TRITON_INTERPRET", None)
    outcome = subprocess.run(
        [sys.executable, HERE / "grouped_bundle.py", file, str(ranks), arch, *words],
        capture_output=True, text=True, timeout=HUNG, env=environment, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return file


def served(file, ranks, *words):
    """Ranks of grouped_served.py; what they print."""
    usual = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
    }
    started = [
        subprocess.Popen(
            [sys.executable, HERE / "grouped_served.py", WHOLE, file, *map(str, SIZES), *words],
            env={**os.environ, **usual, "RANK": str(rank), "PYTHONPATH": "", "TMPDIR": str(file.parent)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        return [(one.communicate(timeout=HUNG)[0], one.returncode) for one in started]
    finally:
        for one in started:
            one.kill()


@pytest.mark.skipif(not WHOLE.exists(), reason="the target `tests` is not built")
@pytest.mark.parametrize(
    ("ranks", "words"), [(1, []), (2, []), (3, ["drop"])] if SWEEP else [(2, []), (3, ["drop"])]
)
def test_a_bundle_is_right_for_any_counts_in_a_process_without_triton(ranks, words, tmp_path):
    file = written(tmp_path, ranks, "host", *words)
    for printed, code in served(file, ranks, *words):
        assert code == 0 and "ok: rank" in printed, printed


@pytest.mark.parametrize("words", [[], ["layer"], ["kept"]])
def test_the_command_shows_checks_and_runs_it(words, syncopate, tmp_path):
    file = written(tmp_path, 2, "host", *words)
    checked = syncopate("bundle", "check", file)
    assert checked.code == 0 and "2 ranks are whole" in checked.out, checked.err
    shown = syncopate("bundle", "show", file).out
    assert "tensor A: fp32 24 x 20\ntensor counts: int32 6\n" in shown, shown
    assert ("tensor C: fp32 24 x 24, which a call makes" in shown) == ("kept" not in words), shown
    ran = syncopate("bundle", "run", file, "--calls", 3)
    assert ran.code == 0 and "with tiles that nobody made" in ran.out, ran.out + ran.err
    assert syncopate("bundle", "run", file, "--check").code == 2
    assert syncopate("bundle", "run", file, "--rows", "5").code == 2


def test_two_kernels_tensors_of_one_name_have_names_of_their_own(syncopate, tmp_path):
    shown = syncopate("bundle", "show", written(tmp_path, 2, "host", "layer")).out
    names = [line.split()[1].rstrip(":") for line in shown.splitlines() if line.startswith("tensor ")]
    assert len(names) == len(set(names)) and names[:2] == ["A", "counts"], shown


@pytest.mark.parametrize("words", [[], ["layer"], ["kept"], ["few"]])
def test_a_bundle_for_a_gpu_is_written_without_one(words, syncopate, tmp_path):
    file = written(tmp_path, 2, "sm_90", *words)
    checked = syncopate("bundle", "check", file)
    assert checked.code == 0, checked.err
    manifest = json.loads(syncopate("bundle", "show", file, "--json").out)
    entries = [manifest["kernels"][number]["entry"] for number in manifest["grouped"]["kernels"]]
    assert entries[:3] == ["ragged_counts", "ragged_layout", "ragged_rows"]
    assert entries[-2:] == ["ragged_back", "ragged_take"] or "kept" in words
    for kernel in manifest["kernels"]:
        assert {"rank", "stride"}.isdisjoint(kernel["constants"]), "a kernel is for all ranks and heaps"
    if STAND_IN.exists():  # for the driver: arguments and launches, of kernels that do nothing
        ran = syncopate("bundle", "run", file, "--calls", 3, LD_LIBRARY_PATH=str(STAND_IN))
        assert ran.code == 0 and ran.out.count("3 calls") == 1, ran.out + ran.err


def test_what_is_changed_or_foreign_is_refused(syncopate, tmp_path):
    file = written(tmp_path, 2, "host")
    whole = file.read_bytes()
    for at, said in ((whole.index(b'"drops"') if b'"drops"' in whole else whole.index(b'"grouped"'), "manifest.json"),
                     (whole.index(b'"syncopate.launches/1"'), "folder/launches.json"), (whole.index(b"def by_offsets"), "folder/original")):  # fmt: skip
        changed = tmp_path / "changed.sybundle"
        changed.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        outcome = syncopate("bundle", "check", changed)
        assert outcome.code == 1 and said in outcome.err and "digest" in outcome.err, outcome.err
    other = tmp_path / "other.sybundle"
    sections: dict[str, bytes] = {}
    code = f"import syncopate._syncopate as s, json, sys\ntry:\n s.bundle.write(json.dumps({{}}), {sections!r}, {str(other)!r})\nexcept Exception as e:\n print(e)"
    refused = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, check=False)  # fmt: skip
    assert "the manifest is an empty object" in refused.stdout, refused.stdout + refused.stderr
    assert not other.exists()
