"""Who takes part: the ranks of a process group, their device, and the store through which they meet."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from . import _syncopate

__all__ = [
    "FailedTogether",
    "Group",
    "alone",
    "of_folder",
    "of_process_group",
]

#: Seconds that ranks of groups without a deadline of their own may be apart where they set up, compile, meet and close.
setup_deadline = 600.0


ANY_TIME = 1e9  # of a meeting that has no deadline


class FailedTogether(RuntimeError):
    """What failed on some rank, and so on all of them."""


@dataclass
class Group:
    """The ranks that run a plan together. `device` is "host" or "cuda"; "": the one where there is a GPU, else the other.
    `ordinal`: the CUDA device of this process. `deadline`: seconds that its ranks may be apart where they set up, compile,
    meet and close, whatever the deadline of calls is; 0: any time; None: as set_deadline says."""

    rank: int
    size: int
    rendezvous: _syncopate.Rendezvous
    device: str = ""
    ordinal: int = 0
    keep: Any = field(default=None, repr=False)  # what must live as long as the rendezvous
    torch_group: Any = field(default=None, repr=False)  # weakly: the process group that it was made of
    deadline: float | None = None
    #: Of ranks of its store, where these may be on several; and which these ranks are there, where they are not all.
    hosts: Callable[[Sequence[int], float], list[str]] | None = field(default=None, repr=False)
    in_store: Sequence[int] | None = field(default=None, repr=False)
    #: Of a torch group: what puts something into its store, gets it, and puts it unless it is there.
    store: tuple[Callable[..., Any], ...] = field(default=(), repr=False)
    #: Ranks of it that meet apart, by name: they are closed, released and so on with it. Of such a part, weakly, its group.
    parts: dict[str, Group] = field(default_factory=dict, repr=False)
    part_of: Any = field(default=None, repr=False)
    #: How often it has gone on, as all its ranks count it.
    times_gone_on: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self.device = device_name(self.device) or default_device()
        require_device(self.device)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Group, and an operator or fused kernel of one, is of this process and its peers: make another one"
        )

    @functools.cached_property
    def nodes(self) -> int:
        """On how many hosts its ranks are, alike on each. Collective the first time, where they may be on several. Raises
        MachineError where ranks of a host do not follow each other, or hosts have unequal numbers of them."""
        if self.hosts is None or self.size == 1:
            return 1
        hosts = self.hosts(self.in_store or range(self.size), self.meeting_seconds)
        counts = Counter(hosts)
        each = self.size // len(counts)
        if any(hosts[rank] != hosts[rank // each * each] for rank in range(self.size)) or any(
            count != each for count in counts.values()
        ):
            where = ", ".join(f"{count} on {host}" for host, count in counts.items())
            raise _syncopate.MachineError(
                f"the group's ranks are {where}: each host needs as many, one after another"
            )
        self.rendezvous.ranks_of_node = each
        return len(counts)

    @functools.cached_property
    def machine(self) -> str:
        """The machine by which all its ranks choose, where theirs are not the same (a rank may have a file of its own): the text of
        rank 0's; else "". Collective the first time. Where a rank cannot read its file, all raise: that rank its own error."""
        if self.size == 1 or self.rendezvous is None:
            return ""
        name, sms = "", 0
        if self.device == "cuda":
            import torch

            name, sms = torch.cuda.get_device_name(self.ordinal), self.multiprocessors()
        read = functools.partial(_syncopate.tune.machine_text, name, self.size // self.nodes, sms)
        meet = functools.partial(_syncopate.all_gather, self.rendezvous, timeout=self.meeting_seconds)
        caller = self.rendezvous.caller
        try:
            # A name of its own: where the ranks' calls differ, they are to be told of them as calls.
            with self.calling("the group's machine"):
                text = self.together("the machine file, which is read", read)
                digest = hashlib.sha256(text.encode()).hexdigest()
                if len(set(meet("the machine file", digest))) == 1:
                    return ""
                return meet("the machine file of rank 0", text if self.rank == 0 else "")[0]
        except FailedTogether as failed:
            if failed.__cause__ is not None:
                raise failed.__cause__ from None
            raise FailedTogether(f"the group's machine: {failed}") from None
        except (_syncopate.MachineError, _syncopate.UsageError) as error:
            raise type(error)(f"{caller}: {error}" if caller else str(error)) from None

    def part(self, name: str, first: int, size: int) -> Group:
        """Its ranks from `first` on, `size` of them with this one, as a group that meets apart; made on first use. Of a torch group. It
        waits for nobody."""
        part = self.parts.get(name)
        if part is None:
            put, get, put_first = self.store
            own = f"part {name} {first} {self.times_gone_on}/"
            rendezvous = _syncopate.CallbackRendezvous(
                self.rank - first,
                size,
                lambda key, value: put(own + key, value),
                lambda key, timeout_ms: get(own + key, timeout_ms),
                lambda key, value: put_first(own + key, value),
            )
            part = Group(self.rank - first, size, rendezvous, self.device, self.ordinal, part_of=ref(self))
            rendezvous.share_budget(self.rendezvous)
            self.parts[name] = part
        part.deadline = self.deadline
        return part

    @property
    def root(self) -> Group:
        """The group that it is a part of; else itself."""
        return (None if self.part_of is None else self.part_of()) or self

    def goes_on(self, rendezvous: _syncopate.Rendezvous, in_store: Sequence[int], new: Group | None) -> None:
        """With the ranks of a rendezvous; `in_store`: which they are in its store, this group's or `new`'s."""
        if new is not None:
            self.hosts, self.store = new.hosts, new.store
        self.rendezvous, self.in_store = rendezvous, in_store
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self.keep = self.keep, None if new is None else new.keep
        self.__dict__.pop("machine", None)
        if self.hosts is not None or rendezvous.ranks_of_node == self.size:
            self.__dict__.pop("nodes", None)  # ranks may have come back on other hosts

    def take_nodes(self, nodes: int) -> None:
        """Before memory is made: of a group in a folder, as many nodes as a plan says; of others, those that there are."""
        if self.hosts is None and self.rendezvous.ranks_of_node == self.size and nodes > 1:
            self.rendezvous.ranks_of_node = self.size // nodes
            self.__dict__["nodes"] = nodes
        if self.nodes != nodes:
            raise ValueError(
                f"the group's ranks are on {self.nodes} nodes, and the plan's mesh is of {nodes}: make it for as many, "
                "or give it a group of one node's ranks"
            )

    @property
    def meeting_seconds(self) -> float:
        """`deadline` in seconds, whoever has set it, for a meeting."""
        return (setup_deadline if self.deadline is None else self.deadline) or ANY_TIME

    @property
    def process_group(self) -> Any | None:
        """torch's, where the group was made of one that is still there."""
        return None if self.torch_group is None else self.torch_group()

    def set_budget(self, size: int) -> None:
        """Bytes of this rank's device that all operators of the group together may take of what peers map, alike on all ranks; 0: no
        bound. What would take more raises MachineError on all ranks, before anything is allocated. Over nodes that counts mixtures, which are
        programs of each node's ranks, too."""
        self.rendezvous.set_budget(size)

    def memory(self) -> tuple[int, int]:
        """Bytes of this rank's device that the group's operators take of what peers map, and how many of those are released."""
        held = [one.rendezvous.memory for one in (self, *self.parts.values())]
        return sum(used for used, _, _ in held), sum(released for _, released, _ in held)

    def release(self) -> int:
        """Gives that memory back, as an engine does that sleeps; the bytes. Collective, with no call in progress: it waits for the
        device. Until `restore` no operator can be called or set up. What lies in the heap (shard, result, gathered) is lost. Where a
        rank fails, all raise, and nothing is released."""
        return self._all_or_none("release", "restore")

    def restore(self) -> int:
        """Takes it again, at the same addresses: operators and captured graphs go on, and nothing is compiled. Collective. Where a rank
        has too little memory, all raise, and all of it stays released."""
        return self._all_or_none("restore", "release")

    def _all_or_none(self, what: str, undo: str) -> int:
        """Of its memory and its parts'. A part has not all ranks, so these tell each other."""
        done: list[_syncopate.Rendezvous] = []
        total = 0

        def of(one: Group) -> None:
            nonlocal total
            one.rendezvous.timeout = self.meeting_seconds
            total += getattr(one.rendezvous, what)()
            done.append(one.rendezvous)

        of(self)
        if vars(self).get("nodes", 1) == 1:  # only of nodes there are parts
            return total

        def of_parts() -> None:
            for part in self.parts.values():
                of(part)

        try:
            self.together(what, of_parts)
        except FailedTogether as failed:
            for rendezvous in reversed(done):
                getattr(rendezvous, undo)()
            if failed.__cause__ is not None:
                raise failed.__cause__ from None
            raise _syncopate.MachineError(f"{what}: {failed}") from None
        return total

    def barrier(self, label: str) -> None:
        """Returns when all ranks have come to the barrier of this name. Raises MachineError for one that does not."""
        _syncopate.barrier(self.rendezvous, label, self.meeting_seconds)

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """For what the ranks meet in here; messages then say it in place of the meeting. The same on all ranks."""
        if self.rendezvous is None:  # as of operators that are only made
            yield
            return
        before, self.rendezvous.caller = self.rendezvous.caller, what
        try:
            yield
        finally:
            self.rendezvous.caller = before

    def together(self, what: str, work: Callable[[], Any]) -> Any:
        """What `work` makes here. Where it fails on some rank, FailedTogether on all of them, with that rank's error:
        so that no rank goes on alone. Collective; waits for what the others' work takes."""
        made, failure = None, None
        try:
            made = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others hear of it
            failure = error
        # That another rank gave up is not the cause.
        kind = "" if failure is None else "b" if isinstance(failure, _syncopate.SyncopateError) else "a"
        mine = kind + (("".join(str(failure).splitlines()[:1]) or type(failure).__name__) if kind else "")
        meet = functools.partial(
            _syncopate.all_gather, self.rendezvous, what, mine, self.meeting_seconds, bool(kind)
        )
        texts = [mine] if self.size == 1 else meet()
        failed = (
            min((text[0], rank, text[1:]) for rank, text in enumerate(texts) if text) if any(texts) else None
        )
        if failed is not None:
            raise FailedTogether(f"rank {failed[1]}: {failed[2]}") from failure
        return made

    def multiprocessors(self, on_host: int = 132) -> int:
        """Of this rank's GPU; without one, `on_host`: by default as many as an H100 or H200 has."""
        if self.device != "cuda":
            return on_host
        import torch

        return torch.cuda.get_device_properties(self.ordinal).multi_processor_count


# By process group, which is not kept alive, and device.
_groups: WeakKeyDictionary[Any, dict[str, Group]] = WeakKeyDictionary()
_made: Counter[str] = Counter()  # by prefix in the store: groups so far, in this process


def alive() -> list[Group]:
    """Those whose process groups have not been destroyed."""
    import torch.distributed as dist

    known = dist.distributed_c10d._world.pg_map if dist.is_initialized() else {}
    for process_group in list(_groups):
        if process_group not in known:
            del _groups[process_group]
    return [one for devices in _groups.values() for group in devices.values() for one in and_parts(group)]


def and_parts(group: Group) -> list[Group]:
    return [group, *group.parts.values()]


def known(process_group: Any) -> list[Group]:
    """The groups made of a process group so far."""
    return list(_groups.get(_require_process_group(process_group), {}).values())


def sums_in_two_shots(process_group: Any) -> bool:
    """Whether torch has a two-shot all-reduce for such a process group of GPUs, if these can map each other's memory."""
    import torch
    import torch.distributed as dist

    nccl = dist.get_backend(process_group) == "nccl"
    return nccl and hasattr(torch.ops.symm_mem, "two_shot_all_reduce_out")


def device_name(device: Any) -> str:
    """ "host" or "cuda", of what a user calls it: "cpu" and torch's devices, too. "" and None: "", none is said. Raises
    ValueError for others."""
    name = str(device or "").partition(":")[0]
    name = {"cpu": "host"}.get(name, name)
    if name not in ("", "host", "cuda"):
        raise ValueError(f'device: expected "cuda" or "host", got {device!r}')
    return name


def require_device(name: str) -> None:
    """MachineError where it is "cuda", and PyTorch has none."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        built = torch.backends.cuda.is_built()
        why = "no GPU, or no driver, is found" if built else "this build of PyTorch is for CPUs alone"
        raise _syncopate.MachineError(f'device "cuda": {why}; use device="host"')


def default_device(process_group: Any = None) -> str:
    """Where the ranks of a process group compute, if nothing else says so: on GPUs where there are some, and the group takes their
    tensors, as gloo's do, too."""
    import torch

    takes = process_group is None or any(kind.type == "cuda" for kind in process_group._device_types)
    return "cuda" if takes and torch.cuda.is_available() else "host"


def the_process_group(process_group: Any) -> Any:
    """It, or torch's default one for None. Raises RuntimeError where torch.distributed is not initialised."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is not initialised: call init_process_group, or pass a syncopate Group"
        )
    return _require_process_group(dist.group.WORLD if process_group is None else process_group)


def _require_process_group(given: Any) -> Any:
    import torch.distributed as dist

    if not isinstance(given, dist.ProcessGroup):
        if given is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("group: this rank is none of its members, which alone call")
        instead = ": give its get_group()" if hasattr(given, "get_group") else f": {given!r}"
        raise TypeError(
            f"group: expected a syncopate Group or a torch process group, got {type(given).__name__}{instead}"
        )
    return given


def rank_and_size(group: Any) -> tuple[int, int]:
    """Of this process in a Group, or in a torch process group."""
    if not isinstance(group, Group):
        group = the_process_group(group)
        return group.rank(), group.size()
    return group.rank, group.size


def of_process_group(process_group: Any, device: Any = "") -> Group:
    """The group of a torch.distributed process group (None: the default one), meeting through torch's store. `device`: "": as of
    default_device."""
    import torch
    import torch.distributed as dist

    process_group = the_process_group(process_group)
    device = device_name(device) or default_device(process_group)
    require_device(device)
    devices = _groups.get(process_group)
    if devices is None:
        devices = _groups[process_group] = {}
    if device not in devices:
        rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
        ranks = dist.get_process_group_ranks(process_group)
        # Ranks may use groups in another order. A store outlives them: a later group of the same name and ranks must not
        # find what an earlier one left there.
        prefix = f"syncopate/{process_group.group_name}/{'-'.join(map(str, ranks))}/{device}"
        made = _made[prefix]
        _made[prefix] += 1
        store = dist.PrefixStore(f"{prefix}/{made}", dist.distributed_c10d._get_default_store())

        def put(name: str, value: bytes) -> None:
            store.set(name, value)

        def get(name: str, timeout_ms: int) -> bytes:
            _await(store, name, timeout_ms / 1000)
            return store.get(name)

        ordinal = torch.cuda.current_device() if device == "cuda" else 0

        def put_first(name: str, value: bytes) -> bytes:
            return store.compare_set(name, "", value.decode())

        is_fake = (
            dist.get_backend(process_group) == "fake"
        )  # its other ranks do not exist, nor does its store
        if not is_fake:
            put(f"host/{rank}", host_id().encode())

        def hosts(ranks: Sequence[int], seconds: float) -> list[str]:
            try:
                return [get(f"host/{other}", int(1000 * seconds)).decode() for other in ranks]
            except TimeoutError:
                absent = [other for other in ranks if not store.check([f"host/{other}"])]
                raise _syncopate.MachineError(
                    f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} of {size} did not come within {seconds:g} s: "
                    f"no op has been called there in group '{process_group.group_name}'"
                ) from None

        rendezvous = _syncopate.CallbackRendezvous(rank, size, put, get, put_first)
        devices[device] = Group(
            rank,
            size,
            rendezvous,
            device,
            ordinal,
            keep=store,
            torch_group=ref(process_group),
            store=(put, get, put_first),
            hosts=None if is_fake else hosts,
        )
    return devices[device]


def host_id() -> str:
    """The same on all ranks that map each other's memory: the machine's, or what SYNCOPATE_HOST_ID or NCCL_HOSTID say, by which
    ranks of one machine stand for several."""
    given = os.environ.get("SYNCOPATE_HOST_ID") or os.environ.get("NCCL_HOSTID")
    if given:
        return given
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return socket.gethostname()


def _await(store: Any, name: str, seconds: float) -> None:
    """Until the store has it. Asked, since a store that waits for less than that logs warnings."""
    end, pause = time.monotonic() + seconds, 1e-4
    while not store.check([name]):
        if time.monotonic() >= end:
            raise TimeoutError(f"nothing at {name}")
        time.sleep(pause)
        pause = min(1.5 * pause, 5e-3)


def alone(device: str) -> Group:
    """A group of this process alone, on its current GPU or the host."""
    import tempfile

    import torch

    folder = tempfile.TemporaryDirectory(prefix="syncopate-")
    rendezvous = _syncopate.FileRendezvous(folder.name, 0, 1, "alone")
    ordinal = torch.cuda.current_device() if device == "cuda" else 0
    return Group(0, 1, rendezvous, device, ordinal, keep=folder)


def of_folder(
    folder: str | os.PathLike[str],
    rank: int,
    size: int,
    run_id: str,
    device: str,
    ordinal: int = 0,
    again: bool = False,
    deadline: float | None = None,
) -> Group:
    """A group of processes on one machine that meet in a folder; `run_id` is new for each run. `again`: this one was started in
    the place of a rank that died, and is to call sy.recover(group) first, as the others do. `deadline`: Group.deadline."""
    place = (os.fspath(folder), rank, size, run_id)
    if again:
        meeting = _syncopate.FileRendezvous.rejoin(*place)
    else:
        most = setup_deadline if deadline is None else deadline
        meeting = _syncopate.FileRendezvous(*place, timeout=most or ANY_TIME)
    return Group(rank, size, meeting, device, ordinal, deadline=deadline)


def takes_place(group: Group, process_group: Any, new: Group | None) -> None:
    """From now on `group` is the one of `process_group`, in the place of `new`, and of no other."""
    for devices in _groups.values():
        there = devices.get(group.device)
        if there is not None and (there is group or there is new):
            del devices[group.device]
    group.torch_group = None if process_group is None else ref(process_group)
    if process_group is not None:
        _groups.setdefault(process_group, {})[group.device] = group
