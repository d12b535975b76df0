"""The C++ library as `cmake --install` puts it: what it exports, what its headers include, and projects that use it."""

import re
import sys
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT
from environments import Environment, run

pytestmark = [pytest.mark.sweep, pytest.mark.xdist_group("cpp")]
PROJECT = Path(__file__).resolve().parent / "project"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> Path:
    """Where `cmake --install` put the C++ library."""
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", ROOT / "build", "--prefix", folder, cwd=folder)
    return folder


def test_the_shared_library_has_the_minor_version_in_its_name(prefix):
    (library,) = prefix.rglob("libsyncopate.so")
    said = run("readelf", "-d", library, cwd=prefix)
    assert re.search(r"SONAME.*\[libsyncopate\.so\.0\.1\]", said)
    assert library.resolve().name == "libsyncopate.so.0.1.0"
    assert not list(prefix.rglob("*.a"))


def test_it_exports_its_own_names_and_no_library_inside_it(prefix):
    (library,) = prefix.rglob("libsyncopate.so")
    lines = run("nm", "-DC", "--defined-only", library, cwd=prefix).splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    ours = re.compile(
        r"((typeinfo|typeinfo name|vtable|VTT) for |(non-)?virtual thunk to )?syncopate::|sy_|std::ostream& syncopate::"
    )
    assert len(names) > 500
    assert [name for name in names if not ours.match(name)] == []


def test_what_it_needs_is_the_c_and_cpp_library_and_the_distributions_own(prefix):
    (library,) = prefix.rglob("libsyncopate.so")
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library, cwd=prefix)))
    usual = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
    assert needed - usual <= {"libsqlite3.so.0", "libpugixml.so.1"}


def test_no_public_header_includes_one_of_another_library():
    """Of a language: <vector>. CUDA's own, of headers that only nvcc compiles, are not another library there."""
    others = []
    for header in (ROOT / "include").rglob("*.hpp"):
        included = re.findall(r"^\s*#\s*include\s*([<\"][^>\"]+)", header.read_text(), re.M)
        others += [
            (str(header), name)
            for name in included
            if not re.fullmatch(r"<[a-z_]+|<sys/types\.h|\"syncopate/\S+", name)
        ]
    assert others == []


def test_all_public_headers_compile_with_the_prefix_alone(prefix, tmp_path):
    headers = sorted(path.relative_to(prefix / "include") for path in (prefix / "include").rglob("*.hpp"))
    assert len(headers) > 100
    (tmp_path / "all.cpp").write_text(
        "".join(f'#include "{header}"\n' for header in headers) + "int main() {}\n"
    )
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    run("g++", *flags, f"-I{prefix / 'include'}", "all.cpp", cwd=tmp_path)


def built(source: Path, prefix: Path, folder: Path) -> Path:
    run("cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", cwd=prefix)
    run("cmake", "--build", folder, cwd=prefix)
    return folder


def test_a_project_of_a_few_lines_finds_the_installed_library(prefix, tmp_path):
    assert "plan" in run(prefix / "bin" / "syncopate", "--help", cwd=tmp_path)
    made = built(PROJECT, prefix, tmp_path / "made")
    assert run(made / "user", cwd=tmp_path) == "4 ranks\nan error is caught as its own\n"


def test_the_examples_build_with_the_installed_library_and_run(prefix, tmp_path):
    made = built(EXAMPLES / "cpp", prefix, tmp_path / "examples")
    kernel = EXAMPLES / "matmul_pointers.py"
    said = run(made / "example_feed_forward", kernel, "block", "2", cwd=tmp_path)
    assert "rank 0, stage 0: [tile 0]" in said and (tmp_path / "block" / "schedule.json").exists()


def test_a_command_without_its_package_says_what_to_do(prefix, tmp_path):
    bare = Environment(tmp_path / "bare")
    run(sys.executable, "-m", "venv", "--without-pip", bare.folder, cwd=tmp_path)
    words = [prefix / "bin" / "syncopate", "run", "ag:M=1"]
    said = run(*words, cwd=tmp_path, code=3, PATH=f"{bare.bin}:/usr/bin:/bin")
    assert re.match(
        r"error: \S+ has no package syncopate: install it there with pip, or set SYNCOPATE_PYTHON", said
    )
