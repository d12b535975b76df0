"""The ops' library and torch agree: its declarations are those of the installed torch's headers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SOURCES = Path(__file__).resolve().parents[2] / "python" / "torch_ops"
INCLUDE = Path(torch.__file__).with_name("include")
TORCHS = [
    "#include <torch/csrc/inductor/aoti_torch/c/shim.h>",
    "#include <torch/csrc/stable/c/shim.h>",
]

pytestmark = pytest.mark.skipif(
    not shutil.which("g++") or not (INCLUDE / "torch/csrc/stable/c/shim.h").exists(),
    reason="there are no torch headers, or no compiler",
)


def compiles(folder: Path, shims: str) -> subprocess.CompletedProcess:
    (folder / "shims.hpp").write_text(shims)
    (folder / "both.cpp").write_text("\n".join([*TORCHS, '#include "shims.hpp"']))
    command = ["g++", "-std=c++20", "-fsyntax-only", "-DUSE_CUDA", f"-I{INCLUDE}", str(folder / "both.cpp")]
    return subprocess.run(command, capture_output=True, text=True)


def test_what_the_ops_declare_of_torch_is_what_torch_declares(tmp_path):
    done = compiles(tmp_path, (SOURCES / "shims.hpp").read_text())
    assert done.returncode == 0, done.stderr


def test_a_declaration_that_differs_is_seen(tmp_path):
    shims = (SOURCES / "shims.hpp").read_text()
    other = shims.replace("AOTITorchError torch_call_dispatcher(", "int64_t torch_call_dispatcher(")
    assert other != shims
    assert "torch_call_dispatcher" in compiles(tmp_path, other).stderr


def test_each_function_that_is_declared_is_looked_up_and_torch_has_it():
    names = set(re.findall(r"\b((?:aoti_)?torch_\w+)\(", (SOURCES / "shims.hpp").read_text()))
    looked_up = set(re.findall(r"F\((\w+)\)", (SOURCES / "torch_api.hpp").read_text()))
    assert names == looked_up
    library = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.so"))
    optional = {"aoti_torch_get_current_cuda_stream"}  # in libtorch_cuda.so
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True).stdout
    for name in names - optional:
        assert re.search(rf"\b{name}\b", symbols), name


def test_attention_takes_the_same_options_in_cpp_and_in_python():
    from syncopate.torch import custom_ops

    schema = torch.ops.syncopate.attention.default._schema
    given = {argument.name: argument.default_value for argument in schema.arguments if argument.kwarg_only}
    assert {name: given[name] for name in given if name not in ("module", "rows")} == custom_ops.ATTENTION
