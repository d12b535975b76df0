"""Cases of the corpus as words of the command: words.py CASE…, a line of JSON each.

Imports kernels, so it runs in a process of its own, as worker.py does.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
HERE = Path(__file__).resolve().parent


def scalar_word(value: Any) -> str:
    """As --args takes it: a string in quotes, an element type without."""
    from syncopate import debug

    plain = debug.scalar(value)
    return f'"{plain}"' if isinstance(value, str) else str(plain)


def words_of(name: str) -> dict[str, Any]:
    from syncopate.call.arguments import describe, function_of, is_tensor
    from syncopate.call.tuples import flat

    from corpus import cases, checks

    case = cases.REGISTRY[name](0)
    arguments = flat(checks.full_arguments(case))
    tensors, shapes = {}, {}
    for parameter, value in arguments.items():
        if not is_tensor(value):
            continue
        shape, strides, dtype, block = describe(value)
        shapes[parameter] = "x".join(map(str, shape)) + f":{dtype}"
        tensors[parameter] = f"{parameter}={shapes[parameter]}:{','.join(map(str, strides))}"
        tensors[parameter] += "@" + "x".join(map(str, block)) if block else ""
    function = function_of(case.kernel)
    scalars = {n: scalar_word(v) for n, v in arguments.items() if not is_tensor(v)}
    return {
        "name": name,
        "kernel": f"{inspect.getsourcefile(function)}:{function.__name__}",
        "args": ",".join(f"{n}={v}" for n, v in scalars.items()),
        "tensors": tensors,
        "shapes": shapes,
        "values": [f"{n}={','.join(map(str, v))}" for n, v in checks.values_of(case).items()],
        "grid": ",".join(map(str, case.grid)),
    }


def main() -> None:
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python")]
    for family in {name.split("/")[0] for name in sys.argv[1:]}:
        importlib.import_module(f"corpus.{family}")
    for name in sys.argv[1:]:
        print(json.dumps(words_of(name)), flush=True)


if __name__ == "__main__":
    main()
