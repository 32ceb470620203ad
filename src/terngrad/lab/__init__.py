"""A slow network on one machine: hosts that are network namespaces, on links that the kernel keeps to a rate.

`Lab` is the network; `run_command` starts one command on every host of a new one, as `terngrad lab` does. Bandwidth is
that of the link asked for, latency that of the machine. docs/lab.md says what a lab is and is not.
"""

from terngrad.lab.command import LabResult, run_command
from terngrad.lab.hosts import Lab, LinkBytes
from terngrad.lab.link import LINKS
from terngrad.lab.obstacles import LabError

__all__ = ["LINKS", "Lab", "LabError", "LabResult", "LinkBytes", "run_command"]
