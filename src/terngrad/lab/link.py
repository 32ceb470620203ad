"""The rates of links, and how the kernel's token bucket is told to keep to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from terngrad.errors import ConfigurationError

LINKS = ("100mbit", "1gbit", "10gbit", "none")  # the usual ones; any tc rate of that form will do
QUEUE = "50ms"  # of waiting packets, before any is dropped
LARGEST_SEGMENT = 65_536  # bytes, of which the kernel makes packets; its own choice
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True)
class Link:
    """What a host's cable carries in each direction; 0 bits per second: as much as the machine can."""

    name: str
    bits_per_s: int

    @property
    def burst_bytes(self) -> int:
        """What may pass at once after a pause: 0.8 ms of the rate, but at least twenty packets.

        More is a free ride for short messages. Less loses rate whenever the kernel looks after the bucket too late.
        """
        return max(32_000, self.bits_per_s // 8 // 1250)

    @property
    def segment_bytes(self) -> int:
        """The largest segment that a host hands to its link: half of the bucket, so that it passes in one piece, with
        all its headers, and the bucket does not run over meanwhile. Larger ones the kernel would cut into packets on
        the processor.
        """
        return min(LARGEST_SEGMENT, self.burst_bytes // 2) if self.bits_per_s else LARGEST_SEGMENT

    def discipline(self) -> list[str]:
        """The queueing discipline as arguments of tc; none if there is no limit."""
        if not self.bits_per_s:
            return []
        return ["tbf", "rate", self.name, "burst", f"{self.burst_bytes}b", "latency", QUEUE]

    def describe(self) -> dict[str, Any]:
        """Rate, burst and queue; None where there is no limit."""
        limited = self.bits_per_s > 0
        return {
            "link": self.name,
            "rate_bits_per_s": self.bits_per_s if limited else None,
            "burst_bytes": self.burst_bytes if limited else None,
            "queue": QUEUE if limited else None,
        }


def parse_link(name: str) -> Link:
    """The link of a name such as "100mbit", "1gbit" or "none"."""
    if name == "none":
        return Link(name, 0)
    found = re.fullmatch(r"([1-9]\d*)([kmg])bit", name)
    if found is None:
        raise ConfigurationError(
            f"link={name!r}: a link is a whole number of kbit, mbit or gbit a second, or none; "
            f"pass for example {', '.join(LINKS)}"
        )
    return Link(name, int(found[1]) * _UNITS[found[2]])
