"""Which function of a file a kernel is, where the file has several of its name."""

import importlib.util
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

KERNELS = """import triton


@triton.jit
def k(x_ptr):
    pass


first = k


@triton.jit
def k(x_ptr):
    pass


class Kernels:
    @staticmethod
    @triton.jit
    def k(x_ptr):
        pass


def make():
    @triton.jit
    def k(x_ptr):
        pass

    return k
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNCOPATE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location("kernels_of_one_name", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def loaded(kernel, emitted: str):
    from syncopate.face.fused import _Text

    stage = SimpleNamespace(source=emitted, kernel="k", original=KERNELS)
    return _Text.of(kernel).load(stage)


def test_a_kernel_is_asked_for_by_its_line(module):
    from syncopate.call.arguments import name_in_file

    assert [name_in_file(k) for k in (module.first, module.k, module.Kernels.k, module.make())] == [
        "k@4", "k@12", "k@18", "k@25",
    ]  # fmt: skip


def test_an_emitted_kernel_is_the_one_that_was_fused(module):
    lines = KERNELS.splitlines(keepends=True)

    def fused(line: int) -> str:
        return "".join(
            text.replace("x_ptr", "x_ptr, sy_schedule") if number == line else text
            for number, text in enumerate(lines, 1)
        )

    assert "sy_schedule" in loaded(module.k, "# one line more\n" + fused(13)).fn.__code__.co_varnames
    assert "sy_schedule" in loaded(module.Kernels.k, fused(20)).fn.__code__.co_varnames
    with pytest.raises(RuntimeError, match="another function of that name than the one on line 4"):
        loaded(module.first, fused(5))


def test_a_kernel_made_inside_a_function_cannot_be_fused(module):
    from syncopate.face.fused import _Text

    with pytest.raises(
        ValueError, match=r"kernels.py:25: k is defined inside a function: .* at the top level"
    ):
        _Text.of(module.make())


def test_a_kernel_that_a_call_makes_under_another_name_is_made_from_its_function(module, tmp_path):
    from syncopate.device import jit

    text = "import triton\n\n\ndef _k(x_ptr):\n    pass\n\n\nfast = triton.jit(_k)\n"
    path = tmp_path / "emitted.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("emitted_under_another_name", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert type(jit.kernel_in(made, "_k")) is type(made.fast)
    assert jit.kernel_in(made, "_k").fn is made._k
    assert jit.kernel_in(made, "fast") is made.fast
