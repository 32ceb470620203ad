"""Hosts on a switch, made of network namespaces: each host one veth pair, both ends shaped to the link's rate.

    host 0 eth0 ---- p0 +--------+ p1 ---- eth0 host 1
                        | bridge |                        tbf at both ends of every pair, so both directions
                        +--------+

Needs root, `ip` and `tc`. The addresses exist inside the namespaces only. Everything is removed at the end, also after
an error or Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

RATES = {"100mbit": 100_000_000, "1gbit": 1_000_000_000, "10gbit": 10_000_000_000}  # bits per second
INTERFACE = "eth0"
QUEUE = "50ms"  # of waiting packets, before any is dropped
_STREAM = Path(__file__).resolve().with_name("stream.py")


def burst_bytes(rate: int) -> int:
    """What may pass at once after a pause: 0.8 ms of the rate, but at least ten packets.

    More is a free ride for short messages. Less than one 64 KB segment at 1 Gb/s halves what a stream gets through.
    """
    return max(16_000, rate // 8 // 1250)


def missing() -> str:
    """What this machine lacks for a network of namespaces, in words; empty if nothing."""
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if tools:
        return f"the program{'s' * (len(tools) > 1)} {' and '.join(tools)} (package iproute2)"
    return "root rights, to make network namespaces" if os.geteuid() != 0 else ""


class Network:
    """Namespaces that exist between enter and exit; `command(host, ...)` is how to start a program in one."""

    interface = INTERFACE

    def __init__(self, num_hosts: int, rate: str) -> None:
        self.num_hosts = num_hosts
        self.rate = rate
        self.burst_bytes = burst_bytes(RATES[rate])
        self.prefix = f"tgbench-{os.getpid()}"
        self._made: list[str] = []

    def __enter__(self) -> Network:
        atexit.register(self.close)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the namespaces, and with them all that is inside."""
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._made.pop()], check=False)
        atexit.unregister(self.close)

    def address(self, host: int) -> str:
        return f"10.97.{host // 250}.{host % 250 + 1}"

    def command(self, host: int, program: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._name(host), *program]

    def goodput(self, sender: int, receiver: int, seconds: float = 1.0) -> float:
        """Bits per second of payload that one TCP stream carries."""
        where = [self.address(receiver), "5001"]
        python = [sys.executable, str(_STREAM)]
        arriving = subprocess.Popen(
            self.command(receiver, [*python, "receive", *where]), stdout=subprocess.PIPE, text=True
        )
        try:
            subprocess.run(self.command(sender, [*python, "send", *where, str(seconds)]), check=True, timeout=60)
            return 8 * float(arriving.communicate(timeout=60)[0])
        finally:
            arriving.kill()
            arriving.wait()

    def describe(self) -> dict[str, Any]:
        """What the link is, and what one stream gets through it in each direction between the first two hosts."""
        return {
            "rate_bits_per_s": RATES[self.rate],
            "burst_bytes": self.burst_bytes,
            "queue": QUEUE,
            "congestion_control": self._congestion_control(),
            "goodput_bits_per_s": [self.goodput(0, 1), self.goodput(1, 0)],
        }

    def _congestion_control(self) -> str:
        """What TCP uses in the namespaces: the machine's choice, which a namespace may not always change."""
        program = ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]
        return subprocess.run(self.command(0, program), capture_output=True, text=True, check=True).stdout.strip()

    def _name(self, host: int | str) -> str:
        return f"{self.prefix}-{host}"

    def _make(self) -> None:
        switch = self._add("switch")
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        for host in range(self.num_hosts):
            self._add_host(host, switch)

    def _add(self, host: int | str) -> str:
        name = self._name(host)
        _run(f"ip netns add {name}")
        self._made.append(name)
        return name

    def _add_host(self, host: int, switch: str) -> None:
        name, port = self._add(host), f"p{host}"
        _run(f"ip link add {INTERFACE} netns {name} type veth peer name {port} netns {switch}")
        _run(f"ip -n {switch} link set {port} master bridge up")
        _run(f"ip -n {name} address add {self.address(host)}/16 dev {INTERFACE}")
        _run(f"ip -n {name} link set lo up")
        _run(f"ip -n {name} link set {INTERFACE} up")
        shape = f"root tbf rate {self.rate} burst {self.burst_bytes}b latency {QUEUE}"
        _run(f"tc -n {name} qdisc add dev {INTERFACE} {shape}")
        _run(f"tc -n {switch} qdisc add dev {port} {shape}")


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{command}` failed: {done.stderr.strip()}; pass --link none to do without a link")
