"""Commands and environments as users have them: with nothing of the checkout in them."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from conftest import HUNG


def run(*words: object, cwd: Path, code: int = 0, **environment: str) -> str:
    """What a command prints, with none of the checkout in its environment."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SYNCOPATE_PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=2 * HUNG,  # a wheel is compiled beside other tests
    )
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + (done.stderr if code else "")


@dataclass(frozen=True)
class Environment:
    """A virtual environment. PyTorch and Triton, gigabytes, it borrows from the one that runs the tests."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, pip: str = "") -> "Environment":
        run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
        made = cls(folder)
        made.python(
            "-m", "pip", "install", "-q", f"pip=={pip}" if pip else "--upgrade", *([] if pip else ["pip"])
        )
        (made.site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        return made

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def site(self) -> Path:
        found = self.python("-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])")
        return Path(found.strip())

    def python(self, *words: object, cwd: Path | None = None, **environment: str) -> str:
        return run(self.bin / "python", *words, cwd=cwd or self.folder, **environment)

    def files(self) -> set[Path]:
        """All but what Python compiled, and the packages of pip itself."""
        found = (
            path for path in self.folder.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"
        )
        return {path for path in found if "pip" not in path.relative_to(self.folder).parts}
