"""Process groups of our own: a channel's messages must not mix with those of anyone else."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from terngrad.errors import ExchangeError

_MOST_TRIES = 8


def timeout_of(group: dist.ProcessGroup) -> dt.timedelta:
    """How long a collective of this group may take."""
    found: dt.timedelta = group._get_backend(group._device_types[0]).options._timeout
    return found


def own_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new group of the same ranks for one channel alone, with the same backend, and the same timeout: torch's
    default is half an hour. Ranks outside the group take no part.
    """
    ranks = dist.get_process_group_ranks(group)
    timeout = timeout_of(group)
    _agree_on_a_name(group, ranks, timeout)
    own: dist.ProcessGroup = dist.new_group(
        ranks, timeout=timeout, backend=dist.get_backend_config(group), use_local_synchronization=True
    )
    return own


def _agree_on_a_name(group: dist.ProcessGroup, ranks: list[int], timeout: dt.timedelta) -> None:
    """Sees to it that torch will give a new group of these ranks the same name on all of them.

    torch (2.13 and before) names a group without the others' help by its ranks and by how many groups this process is
    in. Where that differs, as after `new_group([0])`, each rank would wait for another name, until the timeout; where
    groups were destroyed it may be a name that is taken. Ranks that are in fewer groups join groups of one.
    """
    problem = ""
    for _ in range(_MOST_TRIES):
        name = _next_name(ranks)
        told = _tell_all(group, [name, len(_names()), name in _names(), problem], timeout)
        names, counts, taken, problems = zip(*told, strict=True)
        if any(problems):
            break
        alike = len(set(names)) == 1
        if alike and not any(taken):
            return
        try:
            for _ in range(max(counts) + alike - len(_names())):
                dist.new_group([dist.get_rank()], timeout=timeout, backend="gloo", use_local_synchronization=True)
        except (RuntimeError, ValueError) as error:
            problem = str(error)
    raise ExchangeError(
        f"ranks {ranks} are in different process groups, and torch would not name a new one alike on all of them "
        f"({'; '.join(filter(None, problems)) or 'after ' + str(_MOST_TRIES) + ' tries'}); attach before they are made"
    )


def _tell_all(group: dist.ProcessGroup, mine: list[Any], timeout: dt.timedelta) -> list[list[Any]]:
    """What each rank says, on all of them.

    By way of the store that the group was made with, since a collective on the group would leave something behind
    where a rank is lost. The first rank collects and answers. Everyone asks under a name of its own, which is never
    used again, so that what an attempt that failed has left there is not taken for an answer.
    """
    store, rank, size = c10d._world.pg_map[group][1], dist.get_rank(group), dist.get_world_size(group)
    if rank:
        answer = f"terngrad/answer/{uuid.uuid4()}"
        store.set(f"terngrad/ask/{rank}", json.dumps([answer, mine]))
        store.wait([answer], timeout)
        found: list[list[Any]] = json.loads(store.get(answer))
        store.delete_key(answer)
        return found
    asking = [f"terngrad/ask/{other}" for other in range(1, size)]
    store.wait(asking, timeout)
    asked = [json.loads(store.get(key)) for key in asking]
    told = [mine, *(one for _, one in asked)]
    for key, (answer, _) in zip(asking, asked, strict=True):
        store.delete_key(key)
        store.set(answer, json.dumps(told))
    return told


def _next_name(ranks: list[int]) -> str:
    """What torch would name a group of these ranks; where it cannot be asked, what that depends on."""
    name_of = getattr(c10d, "_hash_ranks_to_str", None)
    return str(name_of(ranks) if name_of is not None else len(_names()))


def _names() -> set[str]:
    """Of the groups that this process is in."""
    return {str(name) for name in c10d._world.pg_names.values()}
