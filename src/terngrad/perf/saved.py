"""What `terngrad doctor --save` has kept, read again: for predictions elsewhere, and for "auto"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terngrad.errors import ConfigurationError
from terngrad.methods import from_spec
from terngrad.perf.diagnosis import (
    Trial,
    cluster_of,
    contention_with,
    cores_for,
    in_ddp,
    predict_all,
    slowest_cast,
)
from terngrad.perf.network import Cluster, Link
from terngrad.perf.places import Place
from terngrad.perf.probes import Codec, Speeds
from terngrad.perf.profile import Profile
from terngrad.perf.wires import Wire

LINK_ERROR = 0.2  # of the time that a step waits for its link


@dataclass(frozen=True)
class Saved:
    """An examination, as far as predictions need it."""

    profile: Profile
    codecs: Mapping[str, Codec]
    cluster: Cluster
    contention: float
    predictions: list[dict[str, Any]]
    cast_s: float = 0.0  # of an element to 16 bits, or back
    overheads: Mapping[str, float] = field(default_factory=dict)  # of a bucket, by name
    waits: Mapping[str, float] = field(default_factory=dict)  # for the link in the trial that showed them, by name

    @property
    def overheads_elsewhere(self) -> dict[str, float]:
        """For other links: what an error in the rate of the trial's link might be is none."""
        return {name: s for name, s in self.overheads.items() if s > LINK_ERROR * self.waits.get(name, 0.0)}

    @classmethod
    def read(cls, path: str | Path) -> Saved:
        """Of a file."""
        try:
            found = json.loads(Path(path).read_text())
            places = [Place.read(one) for one in found["places"]]
            wires = [Wire(**one) for one in found["wires"]]
            speeds = [Speeds(**one) for one in found["speeds"]]
            codecs = {spec: Codec.read(one) for spec, one in found["codecs"].items()}
            cluster = cluster_of(places, wires, Link.read(found["link"]) if found["link"] else None)
            contention = contention_with(min(cores_for(place, places) for place in places))
            overheads: dict[str, float] = {}
            waits: dict[str, float] = {}
            if found.get("trial"):  # there is none of one rank, and none in older files
                trial = Trial.read(found["trial"])
                methods = {spec: from_spec(spec) for spec in trial.codecs}
                overheads = trial.overheads(speeds, cluster, methods, contention)
                known = {spec: (methods[spec], codec) for spec, codec in trial.codecs.items()}
                tried = predict_all(in_ddp(trial.profile, speeds), cluster, known, contention, slowest_cast(speeds))
                waits = {name: one.timeline.exposed_s for name, one in tried.items()}
            return cls(
                in_ddp(Profile.read(found["profile"]), speeds),
                codecs,
                cluster,
                contention,
                found["predictions"],
                slowest_cast(speeds),
                overheads,
                waits,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"profile {str(path)!r}: {_what_is_wrong(error)}; pass a file that `terngrad doctor --save FILE` wrote"
            ) from error


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "it is not JSON"
    return f"it has no {error}" if isinstance(error, KeyError) else "its entries are not those of a profile"
