"""Whether all ranks make the same call, asked before one that would hang, or end the process, where they do not."""

from __future__ import annotations

from torch.distributed import distributed_c10d as c10d

from .. import _syncopate
from ..group import Group


def is_fake(group_name: str) -> bool:
    """Whether the group is one of dry runs, whose other ranks do not exist."""
    return c10d.get_backend(c10d._resolve_process_group(group_name)) == "fake"


def in_a_line(text: str) -> str:
    """The message of an error; of a Python traceback within it, what was raised."""
    said, traceback, rest = text.partition("Traceback (most recent call last):")
    raised = (line for line in rest.splitlines() if line and not line[0].isspace())
    return said + next(raised, "") if traceback else text.partition("\n")[0]


def require_same_call(name: str, group: Group, extents: tuple[int, ...], others: str) -> None:
    """Raises ValueError on all ranks where their calls differ, also in what the pair might have several sizes of: a rank finds
    its own call here without asking the others, so that each has to know what all have. Collective."""
    if group.size == 1:
        return
    call = f"{name} {list(extents)} {others}"
    try:
        _syncopate.all_gather(group.rendezvous, call, "", group.meeting_seconds)
    except _syncopate.UsageError as error:
        raise ValueError(f"syncopate.{name}: {error}") from None
    except _syncopate.MachineError as error:
        why = f"{in_a_line(str(error))}: see whether that process has ended, or makes other calls"
        raise RuntimeError(f"syncopate.{name} on rank {group.rank}: {why}") from None
