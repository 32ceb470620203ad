"""Process groups of our own: a channel's messages must not mix with those of anyone else."""

from __future__ import annotations

import datetime as dt
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from terngrad.errors import ExchangeError


def timeout_of(group: dist.ProcessGroup) -> dt.timedelta:
    """How long a collective of this group may take."""
    found: dt.timedelta = group._get_backend(group._device_types[0]).options._timeout
    return found


def own_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new group of the same ranks for one channel alone, with the same backend, and the same timeout: torch's
    default is half an hour. Ranks outside the group take no part.
    """
    ranks = dist.get_process_group_ranks(group)
    options: Any = {"timeout": timeout_of(group), "backend": dist.get_backend_config(group)}
    _even_out(group, ranks, options)
    own: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True, **options)
    return own


def _even_out(group: dist.ProcessGroup, ranks: list[int], options: Any) -> None:
    """Lets all ranks be in as many groups, by groups of one.

    torch (2.13 and before) names a group without the others' help by its ranks and by how many groups this process is
    in. Where that differs, as after `new_group([0])`, each rank would wait for another name, until the timeout.
    """
    names, sizes = _told_by_all(group, ranks)
    if len(names) > 1:
        for _ in range(max(sizes) - _num_groups()):
            dist.new_group([dist.get_rank()], use_local_synchronization=True, **options)
        names, _ = _told_by_all(group, ranks)
    if len(names) > 1:
        raise ExchangeError(
            f"ranks {ranks} are in different numbers of process groups, and this torch would name a new one of theirs "
            "differently on each; attach before those groups are made"
        )


def _told_by_all(group: dist.ProcessGroup, ranks: list[int]) -> tuple[set[str], set[int]]:
    """What torch would name a group of these ranks, on each of them, and the numbers of groups that they are in.

    By way of the store that the group was made with: where a rank is lost, nothing of a collective is left behind that
    the group's end would wait for.
    """
    store, mine = c10d._world.pg_map[group][1], dist.get_rank(group)
    turn = store.add(f"terngrad/turns/{mine}", 1)
    store.set(f"terngrad/{turn}/{mine}", f"{_name(ranks)} {_num_groups()}")
    keys = [f"terngrad/{turn}/{rank}" for rank in range(len(ranks))]
    store.wait(keys, timeout_of(group))
    told = [store.get(key).decode().split() for key in keys]
    return {name for name, _ in told}, {int(size) for _, size in told}


def _name(ranks: list[int]) -> str:
    """What torch would name a group of these ranks; where it cannot be asked, what that depends on."""
    name_of = getattr(c10d, "_hash_ranks_to_str", None)
    return str(name_of(ranks) if name_of is not None else _num_groups())


def _num_groups() -> int:
    return len(c10d._world.pg_names)
