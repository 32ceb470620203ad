"""What the doctor might have found, for the tests of whatever reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from terngrad.methods import from_spec
from terngrad.perf import Gradient, Line, Link, ParameterInfo, Profile
from terngrad.perf.diagnosis import Trial, cluster_of, contention_with, in_ddp, predict_all, verdict
from terngrad.perf.doctor import Examination
from terngrad.perf.findings import Finding
from terngrad.perf.places import Place
from terngrad.perf.probes import Codec, Speeds
from terngrad.perf.wires import Wire

LINK = Link(1e-4, 1e6)
CODECS = {
    "terngrad": Codec(Line(1e-4, 1e-9), Line(1e-4, 1e-9), Line()),
    "fp16": Codec(Line(1e-5, 1e-10), Line(1e-5, 1e-10), Line()),
}


def examination(numel: int = 100_000, ranks: int = 2, **changes: Any) -> Examination:
    """Of hosts with one rank each, on links of 8 Mb/s."""
    places = [
        Place(i, f"host{i}", "eth0", f"10.0.0.{i + 1}", {"eth0": f"10.0.0.{i + 1}"}, (0, 1), 1) for i in range(ranks)
    ]
    wires = [Wire(a, b, LINK.latency_s, LINK.bytes_per_s) for a, b in permutations(range(ranks), 2)]
    profile = Profile(0.01, (Gradient(ParameterInfo("a.weight", numel, False), 0.02),), 0.001)
    methods = {spec: from_spec(spec) for spec in CODECS}
    known = {spec: (methods[spec], codec) for spec, codec in CODECS.items()}
    speeds = [Speeds(5e9, 1e-3)] * ranks
    contention = contention_with(2)
    cluster = cluster_of(places, wires, LINK)
    trial = Trial(profile, CODECS, {"ddp": 2.0, "terngrad": 0.2}) if ranks > 1 else None
    overheads = trial.overheads(speeds, cluster, methods, contention) if trial else {}
    predictions = predict_all(in_ddp(profile, speeds), cluster, known, contention, overheads=overheads)
    found = Examination(
        places,
        [Finding("slow-host", "rank 1 <b>is</b> slow", (1,))],
        speeds,
        wires,
        LINK if ranks > 1 else None,
        profile,
        CODECS,
        trial,
        predictions,
        verdict(predictions),
    )
    return replace(found, **changes)


def saved(path: Path, **options: Any) -> Path:
    path.write_text(json.dumps(examination(**options).describe()))
    return path
