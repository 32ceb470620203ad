"""What may stand in the way of a lab, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from terngrad.errors import TerngradError

# What lets users without root rights make namespaces: the setting, what it must be, and who has it.
_SETTINGS = (
    ("user.max_user_namespaces", "above 0"),
    ("kernel.unprivileged_userns_clone", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "0"),
)
_SBIN = ("/usr/sbin", "/sbin")  # where tc lives, and which is not on every user's PATH


class LabError(TerngradError):
    """There is no lab, or not any more; the message says what is missing and what to do."""


def find_programs() -> dict[str, str]:
    """Where `ip` and `tc` are; LabError if this machine has no such thing."""
    if sys.platform != "linux":
        raise LabError(f"a lab is made of Linux network namespaces, and this is {sys.platform}: use a Linux machine")
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SBIN))
    found = {name: shutil.which(name, path=path) for name in ("ip", "tc")}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        raise LabError(
            f"a lab needs the program{'s' * (len(missing) > 1)} {' and '.join(missing)}: install the package iproute2"
        )
    return {name: where for name, where in found.items() if where is not None}


def explain(error: str, settings: Path = Path("/proc/sys")) -> LabError:
    """The error of a system that refused to make namespaces, with the ways to make it agree."""
    states = [f"{name} must be {needed} ({_state(name, settings)})" for name, needed in _SETTINGS]
    return LabError(
        f"cannot make the hosts of a lab: {error.rstrip('. ')}. Making them takes root rights (in a container: "
        "CAP_SYS_ADMIN and CAP_NET_ADMIN, as `docker run --privileged` gives them) or user namespaces. "
        f"For the latter {', '.join(states)}; set what differs as root by `sysctl -w NAME=VALUE`. "
        "The kernel must have veth, bridge and sch_tbf"
    )


def _state(name: str, settings: Path) -> str:
    path = settings / name.replace(".", "/")
    return f"is {path.read_text().strip()}" if path.exists() else "not on this kernel"
