"""Stands in for CUDA's libraries, gigabytes, where a CUDA build of torch is to be imported on a machine without a GPU.

    cuda_stubs.py SITE      SITE: the folder that has torch in it

Of each library that torch is linked with and that is neither there nor the system's, one is made beside torch's own whose
functions all fail as where there is no device. cc makes them; readelf and nm say what is asked for.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

#: What a library's symbols begin with that are asked for without its name as their version.
PREFIXES = {
    "libcuda.so": "cu[A-Z]", "libcudart": "cuda|__cuda", "libcufile": "cuFile", "libcupti": "cupti",
    "libcusparseLt": "cusparseLt", "libnccl": "p?nccl", "libnvshmem": "nvshmem",
}  # fmt: skip
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
TEXT = re.compile("String|ErrorName|StrError")  # of functions that give text


def output(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def asked_for(folder: Path) -> dict[str, dict[str, str]]:
    """Of each library that is missing its symbols, each with its version or ""."""
    libraries = sorted(folder.glob("*.so*"))
    needed = {
        name for file in libraries for name in re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", file))
    }
    known = set(re.findall(r"^\s+(\S+) \(", output("/sbin/ldconfig", "-p"), re.M))
    known |= {file.name for file in libraries}
    found = {name: {} for name in sorted(needed - known) if re.match("lib(cu|nv|nccl)", name)}
    for file in libraries:
        for line in output("nm", "-D", "--undefined-only", "--with-symbol-versions", file).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            for name in [version] if version in found else homes(symbol, found):
                found[name][symbol] = version
    return found


def homes(symbol: str, names: dict[str, dict[str, str]]) -> list[str]:
    stems = [stem for stem, prefix in PREFIXES.items() if re.match(prefix, symbol)]
    return [name for name in names if any(name.startswith(stem) for stem in stems)]


def make(library: Path, symbols: dict[str, str]) -> None:
    functions = [
        f'const char *{symbol}(void) {{ return "no CUDA"; }}'
        if TEXT.search(symbol)
        else f"int {symbol}(void) {{ return {NO_DEVICE}; }}"
        for symbol in sorted(symbols)
    ]
    versions = sorted(set(symbols.values()) - {""})
    of = {version: [symbol for symbol, its in symbols.items() if its == version] for version in versions}
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        code.write_text("\n".join(functions) + "\n")
        script.write_text(
            "".join(f"{version} {{ global: {'; '.join(of[version])}; }};\n" for version in versions)
        )
        options = ["-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
        output("cc", *options, *[f"-Wl,--version-script={script}"] * bool(versions), "-o", library, code)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "torch" / "lib"
    for name, symbols in asked_for(folder).items():
        make(folder / name, symbols)
