"""The layer of torch_served.py, exported for two ranks and compiled ahead by AOTInductor. Run by test_bundle.py.

torch_package.py PACKAGE.pt2
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import syncopate  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch_served import K, N, data, layer  # noqa: E402


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return layer(x, w, v)


if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    given = data(0, 8, K, seed=3), data(0, K, N, seed=1), data(0, N, K, seed=2)
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        exported = torch.export.export(Layer(), given, dynamic_shapes=({0: rows}, None, None))
    torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
