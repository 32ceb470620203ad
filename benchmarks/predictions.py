"""What the performance model makes of what bench_hooks has probed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hook_worker import NO_SYNC

import terngrad
from terngrad.perf import Cluster, Link, Profile, diagnosis
from terngrad.perf.probes import Codec, Speeds


def predict(probed: Mapping[str, Any], world_size: int) -> dict[str, float]:
    """Seconds of a step with each method that was probed, with plain DDP, and without communication."""
    bare = Profile.read(probed["profile"])
    speeds = [Speeds(**one) for one in probed["speeds"]]
    profile = bare if probed["bucket_view"] else diagnosis.in_ddp(bare, speeds)
    known = {spec: (terngrad.from_spec(spec), Codec.read(codec)) for spec, codec in probed["codecs"].items()}
    cluster = Cluster(world_size, Link.read(probed["link"]))
    contention = diagnosis.contention_with(probed["cores"])
    methods = {spec: method for spec, (method, _) in known.items()}
    overheads = diagnosis.Trial.read(probed["trial"]).overheads(speeds, cluster, methods, contention)
    found = diagnosis.predict_all(profile, cluster, known, contention, diagnosis.slowest_cast(speeds), overheads)
    return {NO_SYNC: bare.compute_s, **{name: one.step_s for name, one in found.items()}}
