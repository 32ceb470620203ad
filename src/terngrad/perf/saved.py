"""What `terngrad doctor --save` has kept, read again: for predictions elsewhere, and for "auto"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terngrad.errors import ConfigurationError
from terngrad.perf.diagnosis import cluster_of, contention_with, cores_for, in_ddp
from terngrad.perf.network import Cluster, Link
from terngrad.perf.places import Place
from terngrad.perf.probes import Codec, Speeds
from terngrad.perf.profile import Profile
from terngrad.perf.step import Line
from terngrad.perf.wires import Wire


@dataclass(frozen=True)
class Saved:
    """An examination, as far as predictions need it."""

    profile: Profile
    codecs: Mapping[str, Codec]
    cluster: Cluster
    contention: float
    predictions: list[dict[str, Any]]
    cast_s: float = 0.0  # of an element to 16 bits, or back

    @classmethod
    def read(cls, path: str | Path) -> Saved:
        """Of a file."""
        try:
            found = json.loads(Path(path).read_text())
            places = [Place.read(one) for one in found["places"]]
            wires = [Wire(**one) for one in found["wires"]]
            speeds = [Speeds(**one) for one in found["speeds"]]
            return cls(
                in_ddp(Profile.read(found["profile"]), speeds),
                {spec: read_codec(one) for spec, one in found["codecs"].items()},
                cluster_of(places, wires, Link.read(found["link"]) if found["link"] else None),
                contention_with(min(cores_for(place, places) for place in places)),
                found["predictions"],
                max(speed.cast_s for speed in speeds),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"profile {str(path)!r}: {error!r}; pass a file that `terngrad doctor --save FILE` wrote"
            ) from error


def read_codec(found: Mapping[str, Any]) -> Codec:
    lines = {name: Line(**found[name]) for name in ("encode", "decode", "add")}
    return Codec(**lines, size_ratio=found["size_ratio"], sum_ratio=found["sum_ratio"])
