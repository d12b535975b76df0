"""Which versions of PyTorch and Triton this is meant for, as pyproject.toml says; `make versions` tries each. Others may do, with a
warning when this is imported."""

import functools
import re
import warnings
from importlib import metadata

#: Of each package the first version that is tried, and the last one; (major, minor).
TRIED = {"torch": ((2, 11), (2, 15)), "triton": ((3, 6), (3, 9))}


def numbers_of(version: str) -> tuple[int, int]:
    """(major, minor), or (0, 0) of what has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@functools.cache
def triton_before(major: int, minor: int) -> bool:
    """Whether what is installed is older: then it needs what later ones do not."""
    return numbers_of(metadata.version("triton")) < (major, minor)


def warn_of_untried() -> None:
    """Of what is installed and is none of them."""
    for package, (first, last) in TRIED.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # which is said by what needs it
        if not first <= numbers_of(version) <= last:
            warnings.warn(
                f"syncopate is tried with {package} {first[0]}.{first[1]} to {last[0]}.{last[1]}, not with {version}, which is "
                f"installed here: pip install '{package}>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}'",
                RuntimeWarning,
                stacklevel=2,
            )


warn_of_untried()
