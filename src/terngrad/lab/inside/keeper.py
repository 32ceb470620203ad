"""The process that makes a lab's network and keeps it alive: `keeper`, with its orders on standard input.

    Lab ──stdin──> keeper ──bound──> init          of a namespace of processes; everything in the lab lives in that one
                     │   └──bound──> holder 0, 1   one for each host: it sleeps in the host's network namespace
                     └ its own network namespace is the switch

The end of standard input, or of the process that started this one, ends the keeper; its end, whatever the cause, makes
the kernel kill init; and the end of init makes the kernel kill all that lives in the lab, and free the namespaces.
Nothing of it has a name outside: no file, no entry in /run/netns. So nothing can be left behind, not even by SIGKILL.

The first line of JSON on standard input says what to make, every other one which host to cut off; each is answered by
one on standard output. There are no threads: a process that has some cannot enter namespaces at will.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .kernel import (
    NEWNET,
    NEWPID,
    NEWUSER,
    become_itself_in_user_namespace,
    fork_bound,
    mount_proc,
    mount_text,
    setns,
    unshare,
    unshare_mounts,
)

_BRIDGE = "bridge"
_PROGRAM_TIMEOUT_S = 30
_WATCH_MS = 1000  # how often to look whether the process that started this one is still there

_children: list[int] = []  # init and the holders


def main() -> None:
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # neither Python's KeyboardInterrupt nor what was inherited
    order = json.loads(sys.stdin.readline())
    switch = Switch(order)
    try:
        _answer(switch.make)
        _serve(switch, order["parent"])
    finally:
        _end_children()


def _answer(work: Callable[[], dict[str, Any]]) -> None:
    """Tells what came of the work, or why it failed."""
    try:
        answer = work()
    except (OSError, subprocess.SubprocessError) as error:
        answer = {"error": _words(error)}
    with contextlib.suppress(BrokenPipeError):  # nobody is there any more; standard input will say so
        print(json.dumps(answer), flush=True)


def _words(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}"
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror  # without its number
    return str(error)


def _serve(switch: Switch, parent: int) -> None:
    """Obeys until the other end of standard input is closed, or its owner gone.

    The owner is watched too, since a child that it forked may hold that end as well, and outlive it.
    """
    requests = select.poll()
    requests.register(sys.stdin, select.POLLIN)
    while os.getppid() == parent:
        if requests.poll(_WATCH_MS):
            request = sys.stdin.readline()  # the whole of what is there, since each one waits for its answer
            if not request:
                return
            _answer(functools.partial(switch.cut, json.loads(request)["cut"]))


def _end_children() -> None:
    """Returns when everything in the lab is dead: init's end takes until then."""
    for child in _children:
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _keep(work: Callable[[], None]) -> int:
    _children.append(fork_bound(work))
    return _children[-1]


class Switch:
    """The network as ordered: a bridge with a veth pair to each host, both ends shaped."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._ip, self._tc = order["ip"], order["tc"]
        self._interface: str = order["interface"]
        self._addresses: list[str] = order["addresses"]
        self._discipline: list[str] = order["discipline"]
        self._segment_bytes: int = order["segment_bytes"]

    def make(self) -> dict[str, Any]:
        """Makes everything, and tells what the Lab needs to enter it."""
        in_user_namespace = _unshare()
        init = _start_init(self._addresses)
        self._switch = os.open("/proc/self/ns/net", os.O_RDONLY)
        # Snooping makes a bridge announce itself on all its ports.
        self._run(self._ip, "link", "add", _BRIDGE, "type", "bridge", "mcast_snooping", "0")
        self._start(_BRIDGE)
        holders = [self._add_host(host, address) for host, address in enumerate(self._addresses)]
        return {
            "init": init,
            "holders": holders,
            "in_user_namespace": in_user_namespace,
            "congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        }

    def cut(self, host: int) -> dict[str, Any]:
        """Pulls the host's cable: both ends are without a carrier, and what is sent is lost without a word."""
        self._run(self._ip, "link", "set", _port(host), "down")
        return {}

    def _add_host(self, host: int, address: str) -> int:
        unshare(NEWNET)
        holder = _keep(_sleep)
        self._run(self._ip, "link", "set", "lo", "up")
        switch = f"/proc/self/fd/{self._switch}"
        pair = (self._interface, "type", "veth", "peer", "name", _port(host), "netns", switch)
        self._run(self._ip, "link", "add", *pair)
        self._run(self._ip, "link", "set", self._interface, "gso_max_size", str(self._segment_bytes))
        self._run(self._ip, "address", "add", address, "dev", self._interface)
        self._connect(self._interface)
        setns(self._switch, NEWNET)
        self._run(self._ip, "link", "set", _port(host), "master", _BRIDGE)
        self._connect(_port(host))
        return holder

    def _connect(self, interface: str) -> None:
        """Starts one end of a link, and keeps it to the rate."""
        self._start(interface)
        if self._discipline:
            self._run(self._tc, "qdisc", "add", "dev", interface, "root", *self._discipline)

    def _start(self, interface: str) -> None:
        # No IPv6 address, hence no chatter: an idle link carries nothing. It has to be said before the link is up.
        self._run(self._ip, "link", "set", interface, "addrgenmode", "none")
        self._run(self._ip, "link", "set", interface, "up")

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_PROGRAM_TIMEOUT_S, pass_fds=(self._switch,)
        )


def _port(host: int) -> str:
    return f"port{host}"


def _unshare() -> bool:
    """New namespaces for network and processes; whether that took a user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(NEWPID | NEWNET)
    except PermissionError:
        unshare(NEWUSER | NEWPID | NEWNET)
        become_itself_in_user_namespace(uid, gid)
        return True
    return False


def _start_init(addresses: list[str]) -> int:
    """The first process of the namespace of processes, whose mounts are those of the whole lab."""
    reader, writer = os.pipe()

    def work() -> None:
        unshare_mounts()
        _furnish(addresses)
        os.write(writer, b"!")
        os.close(writer)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
        _sleep()

    init = _keep(work)
    os.close(writer)
    furnished = os.read(reader, 1)
    os.close(reader)
    if not furnished:
        raise OSError(errno.ECHILD, "the first process of the lab did not start")
    return init


def _furnish(addresses: list[str]) -> None:
    """Names for the hosts, and a /proc of the lab's own; a container may forbid either, and one can do without.

    Without such a /proc, processes of the lab see the one outside: /proc/self is right there, numbers are not. Without
    names, torch warns that it cannot find out those of its peers.
    """
    plain = [address.partition("/")[0] for address in addresses]
    # The second is how the address looks to a socket of both IPv4 and IPv6.
    names = "".join(f"{address} host{host}\n::ffff:{address} host{host}\n" for host, address in enumerate(plain))
    with contextlib.suppress(OSError):
        mount_text("/etc/hosts", Path("/etc/hosts").read_text() + "\n" + names)
    with contextlib.suppress(OSError):
        mount_proc()


def _sleep() -> None:
    """Lets go of the pipes, which belong to the keeper alone, and waits for the end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    while True:
        signal.pause()
