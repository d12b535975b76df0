"""Compiling ahead: what `syncopate compile` hands over. For each program that C++ asks for, the kernels are compiled as a launch would compile
them, for a GPU that need not be there, and their code and arguments are written into a bundle."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import DTYPES, is_descriptor
from ..call.prepared import descriptor_like, unwrapped
from ..call.stage_call import _launch_of
from ..call.stated import StatedKernel
from ..call.tuples import flat, nested
from ..device import jit
from ..group import Group
from ..ops import OPERATORS, mixture_stages
from ..strategy import Strategy, complete
from .standard_output import answering, interruptible

META = torch.device("meta")
ADDRESS = 1 << 40  # of what the runtime gives: 64 bits, a multiple of 16
MOST_LOOKED_AT = 1024  # rows at an end of a bucket: a schedule takes about a ms
FAR_ROWS = 1 << 20  # of all ranks' heaps, where a kernel addresses these by rows


class NoGpu:
    """As much of Triton's driver as compiling takes."""

    def __init__(self, arch: str) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("a")), 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


class Absent(Group):
    """The first rank of a group that is not there: it meets nobody, and needs no GPU."""

    sms: int = 132

    def __post_init__(self) -> None:
        pass

    def multiprocessors(self, on_host: int = 132) -> int:
        return self.sms


class Kernels:
    """Those of a bundle, each once."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.sections: dict[str, bytes] = {}

    def add(self, entry: dict[str, Any], cubin: bytes) -> int:
        for index, known in enumerate(self.entries):
            if self.sections[known["code"]] == cubin and entry | {"code": known["code"]} == known:
                return index
        name = f"kernels/{hashlib.sha256(cubin).hexdigest()[:16]}.cubin"
        self.sections[name] = cubin
        self.entries.append({**entry, "code": name})
        return len(self.entries) - 1

    def compile(
        self, kernel: Any, arguments: Mapping[str, Any], grid: Sequence[int], options: Mapping[str, Any]
    ) -> int:
        """For these arguments, as a launch with them would; the number of the kernel."""
        function = unwrapped(kernel)
        if not hasattr(function, "warmup"):
            raise ValueError(
                f"{getattr(kernel, '__name__', kernel)}: bundles hold kernels of Triton and Gluon"
            )
        binary = function.warmup(*jit.in_order(function, arguments), grid=tuple(grid), **options)
        of = binary.metadata
        signature = dict(binary.src.signature)
        descriptors = iter(getattr(of, "tensordesc_meta", None) or [])
        names = {place: name for place, name, _, _ in jit.items_of(signature, dict(arguments))}
        parameters = [
            parameter(name, kind, value, descriptors)
            for _, name, kind, value in jit.items_of(signature, dict(arguments))
            if kind != "constexpr"
        ]
        divisible = [
            place for place, found in dict(binary.src.attrs).items() if ["tt.divisibility", 16] in found
        ]
        workspace = arguments.get("sy_workspace")
        entry = {
            "entry": of.name,
            "warps": int(of.num_warps),
            "shared": int(of.shared),
            "parameters": parameters,
            "constants": {
                names[place]: plain(value)
                for place, value in dict(binary.src.constants).items()
                if place in names
            },
            "multiples_of_16": sorted(names[place] for place in divisible if place in names),
        }
        more = {
            "ctas": (int(getattr(of, "num_ctas", 1)), 1),
            "scratch": (int(of.global_scratch_size or 0), 0),
            "scratch_align": (int(of.global_scratch_align or 1), 1),
            "workspace": (0 if workspace is None else workspace.numel() * workspace.element_size(), 0),
        }
        entry |= {name: value for name, (value, usual) in more.items() if value != usual}
        return self.add(entry, binary.asm["cubin"])


def parameter(name: str, kind: Any, value: Any, descriptors: Iterable[Any]) -> dict[str, Any]:
    """As the manifest names it."""
    if not str(kind).startswith("tensordesc"):
        return {"name": name, "kind": str(kind)}
    of = next(iter(descriptors), None)
    if of is None:
        raise ValueError(
            f"parameter {name}: a descriptor that Triton lowered to a pointer is not launched from C++"
        )
    return {
        "name": name,
        "kind": "tensordesc",
        "block": [int(n) for n in of["block_size"]],
        "descriptor": [int(n) for n in value.block_shape],
        "element_bytes": int(of["elem_size"]),
        "element_type": int(of["elem_type"]),
        "swizzle": int(of["swizzle"]),
    }


def plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def unspecialised(value: int) -> int:
    """A number of rows that is compiled for no other property than that it is one."""
    return max(3, int(value) | 1)


def arguments_of(
    operator: Any, artifact: Any, index: int, kernel: Any, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Of a stage's emitted kernel, as Prepared.arguments: with stand-ins for what lies in the heap."""
    schedule, stage = artifact.schedule, artifact.stages[index]
    shapes = {name: (shape, DTYPES[dtype]) for name, shape, dtype in artifact.plan.tensors}
    full = flat(given)
    for name, tensor in stage.bindings.items():
        shape, dtype = shapes[tensor]
        rows = FAR_ROWS if tensor in schedule.tensors_by_row else shape[0]
        buffer = torch.empty(rows, *shape[1:], dtype=dtype, device=META)
        full[name] = descriptor_like(full[name], buffer) if is_descriptor(full[name]) else buffer
    full = {name: unspecialised(value) if name == "M" else value for name, value in full.items()}
    stated = kernel if isinstance(kernel, StatedKernel) else None
    words = torch.empty(64, dtype=torch.int32, device=META)
    made = nested(full) | {"sy_schedule": words, "sy_control": words}
    if stated:
        made |= stated.flags(schedule, index) | stated.nowhere()
        made |= dict.fromkeys(("sy_schedule", "sy_control"), ADDRESS)
        if schedule.kernel_summands:
            made["sy_sums"] = ADDRESS
    if schedule.loads is not None and schedule.loads.own:
        read = next(full[p] for p, tensor in stage.bindings.items() if tensor == schedule.loads.tensor)
        made["sy_own"] = read if is_descriptor(read) else _syncopate.layout.OWN_BASE + 1
    return made


class AheadOperator:
    """An operator of a manifest, whose programs are compiled without a GPU."""

    def __init__(self, part: Mapping[str, Any]) -> None:
        self.key = part["problem"]
        self.w_transposed = bool(part.get("w_transposed", False))
        self.activation = part.get("activation", "")
        self.read = _syncopate.ops.parse_spec(self.key)
        self.kind = OPERATORS[self.read["operator"]]
        self.group = Absent(0, self.read["ranks"], None, "cuda")
        self.group.sms = self.read["sms"] or Absent.sms

    def made(self, rows: int, strategy: Strategy) -> Any:
        extents = {e.lower(): value for e, value in self.read["extents"].items()} | {"m": rows}
        options: dict[str, Any] = {"activation": self.activation} if self.activation else {}
        if self.read["dtype"] != self.read["out"]:
            options |= {"out_dtype": DTYPES[self.read["out"]], "scales": self.read["scales"]}
        operator = self.kind(
            **extents,
            dtype=DTYPES[self.read["dtype"]],
            group=self.group,
            strategy=strategy,
            w_transposed=self.w_transposed,
            **options,
        )
        operator.device = META
        return operator

    def compile(
        self, rows: int, strategy: Strategy, kernels: Kernels, sources: dict[str, bytes]
    ) -> list[int]:
        """The kernels of its stages, for so many rows."""
        operator = self.made(rows, strategy)
        calls = operator.calls_of_stand_ins()
        taken = [_launch_of(call, {}) for call in calls]
        fused = operator.fused
        for index, one in enumerate(taken):
            fused._bind_to_plan(index, one, self.group, "cuda")
        texts = fused._texts["cuda"]
        artifact = fused._fuse(taken, texts, "cuda", self.group.sms)
        made = []
        for index, (text, stage, call) in enumerate(zip(texts, artifact.stages, calls, strict=True)):
            kernel = text.load(stage)
            arguments = arguments_of(operator, artifact, index, kernel, call.arguments)
            number = kernels.compile(kernel, arguments, artifact.grid_of(index, 0), call.options)
            sources[f"source/{number}_{Path(stage.file).name}"] = stage.source.encode()
            made.append(number)
        return made


def rows_to_look_at(first: int, last: int, ranks: int, equal: bool) -> Sequence[int]:
    """Of a bucket, those whose schedules may ask for different kernels, from the last one on: all, or of very many all near its ends,
    and every 37th, which has any remainder of a shard and of a tile."""
    step = ranks if equal else 1
    last -= last % step
    all_of_them = range(last, first - 1, -step)
    if len(all_of_them) <= 2 * MOST_LOOKED_AT:
        return all_of_them
    ends = (*all_of_them[:MOST_LOOKED_AT], *all_of_them[-MOST_LOOKED_AT:])
    return sorted({*ends, *all_of_them[::37]}, reverse=True)


def compile_mixture(manifest: dict[str, Any], kernels: Kernels, sources: dict[str, bytes]) -> None:
    """Of each number of tokens that a bucket is for."""
    from .compile_mixture import ahead

    part = manifest["operator"]
    read = _syncopate.ops.parse_spec(part["problem"])
    for bucket in part["buckets"]:
        tokens, strategy = bucket["rows"], Strategy.from_json(bucket["strategy"])
        key = re.sub(r"\bT=\d+", f"T={tokens}", part["problem"], count=1)
        traits, _ = _syncopate.bundle.variant(key, strategy, False, tokens, tokens)
        ids = torch.int32 if part.get("int32_ids", False) else torch.int64
        made = ahead(read, key, tokens, strategy, part.get("activation", ""), ids)
        bucket["variants"] = [{"traits": traits, "kernels": made.compile(kernels.compile, sources)}]
        print(f"{tokens} tokens a rank: compiled", file=sys.stderr)


def compile_operator(manifest: dict[str, Any], kernels: Kernels, sources: dict[str, bytes]) -> None:
    part = manifest["operator"]
    operator, first, before = AheadOperator(part), 1, 0
    equal = operator.read["equal_blocks"]
    for bucket in part["buckets"]:
        strategy = Strategy.from_json(bucket["strategy"])
        if bucket["rows"] != before:  # else it takes what the one before it does not
            first, before = before + 1, bucket["rows"]
        variants: dict[str, dict[str, Any]] = {}
        for rows in rows_to_look_at(first, bucket["rows"], operator.group.size, equal):
            try:
                traits, boxes = _syncopate.bundle.variant(
                    operator.key, strategy, operator.w_transposed, bucket["rows"], rows
                )
            except _syncopate.SyncopateError:
                if rows == bucket["rows"]:
                    raise
                continue  # what these rows cannot be is said when they are asked for
            key = json.dumps([traits, boxes], sort_keys=True)
            if key not in variants:
                numbers = operator.compile(rows, strategy, kernels, sources)
                variants[key] = {"traits": traits, "kernels": numbers}
                print(f"{bucket['rows']} rows: compiled for {rows}", file=sys.stderr)
        bucket["variants"] = list(variants.values())


def compile_folder(folder: Path, manifest: dict[str, Any], kernels: Kernels) -> dict[str, bytes]:
    """The kernels of what `syncopate fuse -o` wrote, and its files."""
    from .folder import FolderStage
    from .folder_imports import recorded_files

    artifact = _syncopate.artifact_from_folder(str(folder))
    numbers = []
    for index, stage in enumerate(artifact.stages):
        one = FolderStage(stage, folder, recorded_files(artifact))
        local = {
            name: torch.empty(*shape, dtype=DTYPES[dtype], device=META)
            for name, (shape, dtype, _) in stage.tensors.items()
        }
        bound = {tensor: local[name] for name, tensor in one.bindings.items()}
        arguments = arguments_of(None, artifact, index, one.emitted, one.arguments(bound, local))
        if "M" in one.scalars:
            arguments["M"] = one.scalars["M"]
        numbers.append(kernels.compile(one.emitted, arguments, artifact.grid_of(index, 0), {}))
    manifest["folder"]["kernels"] = numbers
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    known = {file for stage in artifact.stages for file in stage.files} | {"schedule.json"}
    recorded = {*recorded_files(artifact), *known}
    return {
        f"folder/{path.relative_to(folder)}": path.read_bytes()
        for path in files
        if str(path.relative_to(folder)) in recorded
    }


def made_by() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("triton", "torch"))


def report(options: argparse.Namespace, manifest: Mapping[str, Any], kernels: int) -> None:
    of = {name: manifest[name] for name in ("name", "arch")}
    if options.json:
        part = manifest.get("folder") or {}
        ranks = part["ranks"] if part else _syncopate.ops.parse_spec(manifest["operator"]["problem"])["ranks"]
        print(json.dumps({"output": options.output, **of, "ranks": ranks, "kernels": kernels}))
        return
    where = sys.stderr if options.output == "-" else sys.stdout
    print(f"{options.output}: {of['name']} for {of['arch']}, {kernels} kernels", file=where)


@interruptible
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="syncopate compile", description=__doc__.splitlines()[0])
    parser.add_argument("--operator", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--manifest", default="")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    manifest = json.loads(options.operator or options.manifest)
    if not re.fullmatch(r"sm_\d+a?", manifest["arch"]):
        print(f"error: --arch {manifest['arch']}: expected one such as sm_90", file=sys.stderr)
        return 2
    from triton.runtime import driver

    driver.set_active(NoGpu(manifest["arch"]))
    choosing = sys.modules[complete.__module__]  # the package has a function of its name
    choosing.runs_gluon = mixture_stages.runs_gluon = lambda device: manifest["arch"].startswith("sm_90")
    kernels, sources = Kernels(), {}
    try:
        if options.operator and manifest["operator"]["problem"].startswith("moe:"):
            compile_mixture(manifest, kernels, sources)
        elif options.operator:
            compile_operator(manifest, kernels, sources)
        else:
            sources = compile_folder(Path(options.folder), manifest, kernels)
        manifest["kernels"] = kernels.entries
        manifest["made_by"] += ", " + made_by()
        _syncopate.bundle.write(json.dumps(manifest), kernels.sections | sources, options.output)
    except Exception as error:  # noqa: BLE001 - the command's outer face
        code = getattr(error, "exit_code", 1 if isinstance(error, (ValueError, TypeError)) else None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code)
    with answering():
        report(options, manifest, len(kernels.entries))
    return 0


if __name__ == "__main__":
    outcome = main()
    gc.collect()  # what cycles still hold at the exit the bindings of Triton 3.9 call leaks
    sys.exit(outcome)
