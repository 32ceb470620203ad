"""Hosts on a switch, made of network namespaces: each host one veth pair, both ends kept to the link's rate.

    host 0 eth0 ---- port0 +--------+ port1 ---- eth0 host 1
                           | bridge |                          a token bucket at both ends of every pair
                           +--------+

The namespaces, and every process in them, live as long as the keeper (inside/keeper.py), and that lives as long as the
process that made the lab.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from terngrad.errors import ConfigurationError
from terngrad.lab import inside
from terngrad.lab.keeper import Keeper
from terngrad.lab.link import parse_link
from terngrad.lab.obstacles import LabError, find_programs

MAX_HOSTS = 1000  # a bridge has 1023 ports
_INTERFACE = "eth0"
_PREFIX_BITS = 16
_MASTER_PORT = 29500


_HEADER_BYTES = 14 + 20 + 20 + 12  # of a packet: Ethernet, IPv4, TCP and its timestamps


@dataclass(frozen=True)
class LinkBytes:
    """What a host sent over its link and received: bytes with headers, and packets as the interface saw them."""

    host: int
    sent: int
    received: int
    packets_sent: int = 0
    packets_received: int = 0

    @property
    def payload_sent(self) -> int:
        """Bytes of TCP payload: what programs handed to their sockets, however it was cut into packets."""
        return self.sent - _HEADER_BYTES * self.packets_sent

    @property
    def payload_received(self) -> int:
        return self.received - _HEADER_BYTES * self.packets_received


class Lab:
    """A network that exists between enter and exit; LabError where the machine does not allow it."""

    def __init__(self, num_hosts: int, link: str = "none") -> None:
        if not 1 <= num_hosts <= MAX_HOSTS:
            raise ConfigurationError(f"Lab(num_hosts={num_hosts}): a lab has 1 to {MAX_HOSTS} hosts")
        self.num_hosts = num_hosts
        self.link = link
        self._link = parse_link(link)
        self._keeper: Keeper | None = None
        # Of init, then of every host's holder: open folders in /proc, which unlike numbers never pass to others.
        self._processes: list[int] = []
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        if self._keeper is not None:
            raise LabError("this lab was entered before: make a new one")
        self._keeper = Keeper(self._order())
        try:
            made = self._keeper.made
            self._processes.extend(_open_process(pid) for pid in (made["init"], *made["holders"]))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process in the lab, and the lab. What `start` returned has ended then, and is reaped."""
        for process in self._started:
            process.send_signal(signal.SIGCONT)  # one that was stopped could not notice that its command has ended
        if self._keeper is not None:
            self._keeper.end()
        for process in self._started:
            process.wait()
        while self._processes:
            os.close(self._processes.pop())

    def address(self, host: int) -> str:
        """The host's address, which means nothing outside the lab."""
        self._check(host)
        return f"10.97.{host // 250}.{host % 250 + 1}"

    def environment(self, host: int) -> dict[str, str]:
        """What torch.distributed reads from the environment, with one rank on every host."""
        self._check(host)
        return {
            "RANK": str(host),
            "WORLD_SIZE": str(self.num_hosts),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(host),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(_MASTER_PORT),
            "GLOO_SOCKET_IFNAME": _INTERFACE,
            "NCCL_SOCKET_IFNAME": _INTERFACE,
        }

    def start(self, host: int, command: Sequence[str], **popen_options: Any) -> subprocess.Popen[Any]:
        """Starts a command on a host; the options are those of `subprocess.Popen`.

        The process ends as the command ends. Signals to it reach the command's whole process group.
        """
        self._check(host)
        if isinstance(command, str) or not command:
            raise ConfigurationError(f"start({host}, {command!r}): pass a list of the program and its arguments")
        namespaces = "user,mnt,pid" if self._opened().made["in_user_namespace"] else "mnt,pid"
        processes = (self._processes[0], self._processes[1 + host])
        options: dict[str, Any] = {"env": {**os.environ, **self.environment(host)}, "start_new_session": True}
        options.update(popen_options)
        options["pass_fds"] = (*options.get("pass_fds", ()), *processes)
        entering = inside.command("enter", *map(str, processes), namespaces, *command)
        self._started.append(_start(entering, options))
        return self._started[-1]

    def link_bytes(self) -> list[LinkBytes]:
        """What crossed every host's link since the lab was made, by the kernel's counters of its interface."""
        self._opened()
        return [LinkBytes(host, *_interface_counters(holder)) for host, holder in enumerate(self._processes[1:])]

    def goodput(self, sender: int, receiver: int, seconds: float = 1.0) -> float:
        """Bits per second of payload that one plain TCP stream carries between two hosts."""
        listen = inside.command("stream", "receive", self.address(receiver), str(seconds))
        with self._ended(receiver, listen, stdout=subprocess.PIPE, text=True) as arriving:
            port = cast(IO[str], arriving.stdout).readline().strip()
            with self._ended(sender, inside.command("stream", "send", self.address(receiver), port)):
                carried = arriving.communicate()[0]
        if not carried:
            raise LabError(f"no stream gets from host {sender} to host {receiver}: is one of them cut off?")
        return 8 * float(carried)

    def cut(self, host: int) -> None:
        """Pulls the host's cable: what it sends, and what is sent to it, is lost without an error from here on."""
        self._check(host)
        self._opened().cut(host)

    def describe(self, measure: bool = True) -> dict[str, Any]:
        """What the link is and, if measured, what one stream gets through it both ways between the first two hosts."""
        found = {**self._link.describe(), "congestion_control": self._opened().made["congestion_control"]}
        if measure:
            pairs = [(0, 1), (1, 0)] if self.num_hosts > 1 else []
            found["goodput_bits_per_s"] = [self.goodput(*pair) for pair in pairs]
        return found

    def _order(self) -> dict[str, Any]:
        return {
            "interface": _INTERFACE,
            "addresses": [f"{self.address(host)}/{_PREFIX_BITS}" for host in range(self.num_hosts)],
            "discipline": self._link.discipline(),
            "segment_bytes": self._link.segment_bytes,
            **find_programs(),
        }

    def _opened(self) -> Keeper:
        if self._keeper is None or not self._processes:
            raise LabError("this lab is not open: use it inside `with Lab(...) as lab:`")
        if not self._keeper.alive:
            raise LabError("the keeper of this lab was killed, and the lab with it: make a new one")
        return self._keeper

    def _check(self, host: int) -> None:
        if not 0 <= host < self.num_hosts:
            raise ConfigurationError(f"host {host}: this lab has the hosts 0 to {self.num_hosts - 1}")

    @contextlib.contextmanager
    def _ended(self, host: int, command: list[str], **popen_options: Any) -> Iterator[subprocess.Popen[Any]]:
        """A process of the lab's own, which has ended when the context has."""
        with self.start(host, command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **popen_options) as process:
            try:
                yield process
            finally:
                process.terminate()


class _HostProcess(subprocess.Popen[Any]):
    """Stands for a command on a host, which it can pass any signal but SIGKILL on to."""

    def send_signal(self, sig: int) -> None:
        super().send_signal(inside.KILL if sig == signal.SIGKILL else sig)


def _start(command: list[str], options: dict[str, Any]) -> _HostProcess:
    """Signals that come before the process is ready for them wait for it: it inherits that they are held back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*inside.PASSED_ON, inside.KILL})
    try:
        return _HostProcess(command, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_process(pid: int) -> int:
    return os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)


def _interface_counters(process: int) -> tuple[int, int, int, int]:
    """Bytes sent and received, then packets, by the interface of the process's network namespace."""
    with open("net/dev", opener=lambda path, flags: os.open(path, flags, dir_fd=process)) as table:
        rows = dict(line.split(":", 1) for line in table if ":" in line)
    columns = next(row.split() for name, row in rows.items() if name.strip() == _INTERFACE)
    return int(columns[8]), int(columns[0]), int(columns[9]), int(columns[1])
