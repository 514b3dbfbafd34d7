"""A network of its own for a cluster with real nodes: a namespace with a switch, and a relay to it from loopback.

`NodeCluster` makes one. The control plane runs in it, and each node hangs on the switch by a cable; of all this the
machine's own network sees nothing but ports on 127.0.0.1. When its processes end, the kernel takes it away.
"""

import contextlib
import ctypes
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from docgrid_cli.local.ports import LOOPBACK
from support.cluster.errors import ClusterUnavailable
from support.layers import TESTS

GATEWAY = "10.99.0.1"
"""The switch itself, and so the control plane, as nodes and pods see it."""
_PREFIX = 24
_SWITCH = "switch"
_CLONE_NEWNET = 0x40000000


def node_address(number: int) -> str:
    """Return the address of the node with a number from 1."""
    return f"10.99.0.{10 + number}"


def pod_range(number: int) -> str:
    """Return the addresses of the pods of that node."""
    return f"10.98.{number}.0/24"


class Network:
    """The namespace with the switch; `start` once, `stop` once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take the variables with which `ip` is found; nothing is made yet."""
        self._environment = {**environment, "PYTHONPATH": str(TESTS)}
        self._holder: subprocess.Popen[bytes] | None = None
        self._relay: subprocess.Popen[bytes] | None = None

    @property
    def enter(self) -> Sequence[str]:
        """The command that runs another one in the namespace; the process stays the same."""
        assert self._holder is not None
        return ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--")

    def start(self, ports: Sequence[int], addresses: Sequence[tuple[int, str]] = ()) -> None:
        """Make the namespace; relay `ports` of 127.0.0.1 to its own 127.0.0.1, others to (port, "host:port").

        Raises `ClusterUnavailable` where a process may not make a network.
        """
        self._holder = self._spawn(["unshare", "--net", "--", "cat"])
        self._wait_for_namespace(self._holder)
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "add", _SWITCH, "type", "bridge")
        self.run("ip", "address", "add", f"{GATEWAY}/{_PREFIX}", "dev", _SWITCH)
        self.run("ip", "link", "set", _SWITCH, "up")
        self.run("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
        self._start_relay([*((port, f"{LOOPBACK}:{port}") for port in ports), *addresses])

    def stop(self) -> None:
        """End the relay and the namespace with everything in it."""
        for child in (self._relay, self._holder):
            if child is not None:
                child.kill()
                child.communicate()

    def plug_in(self, number: int, pid: int) -> None:
        """Connect the namespace of a node's process with the switch, and the node's pods with everybody."""
        address, cable = node_address(number), f"node{number}"
        self.unplug(number)
        self.run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.run("ip", "link", "set", cable, "master", _SWITCH, "up")
        inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "--", "ip")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/{_PREFIX}", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", GATEWAY),
        ):
            self._call([*inside, *command])
        self.run("ip", "route", "replace", pod_range(number), "via", address)

    def unplug(self, number: int) -> None:
        """Take the cable of a node away; the kernel may have done so already, or be about to."""
        with contextlib.suppress(ClusterUnavailable):
            self.run("ip", "link", "delete", f"node{number}")

    def listen(self) -> socket.socket:
        """Return a listening socket at the switch: a server of ours that pods can reach."""
        assert self._holder is not None
        with (
            Path("/proc/self/ns/net").open() as outside,
            Path(f"/proc/{self._holder.pid}/ns/net").open() as inside,
        ):
            _enter(inside.fileno())  # this thread only: the socket stays where it was made
            try:
                return socket.create_server((GATEWAY, 0), backlog=256)
            finally:
                _enter(outside.fileno())

    def cut(self, number: int) -> None:
        """Pull the cable of a node out."""
        self.run("ip", "link", "set", f"node{number}", "down")

    def mend(self, number: int) -> None:
        """Put the cable back in."""
        self.run("ip", "link", "set", f"node{number}", "up")
        self.run("ip", "route", "replace", pod_range(number), "via", node_address(number))

    def run(self, *command: str) -> None:
        """Run a command in the namespace; raises `ClusterUnavailable` with what it says."""
        self._call([*self.enter, *command])

    def _wait_for_namespace(self, holder: "subprocess.Popen[bytes]") -> None:
        outside = Path("/proc/self/ns/net").readlink()
        while holder.poll() is None:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{holder.pid}/ns/net").readlink() != outside:
                    return
            time.sleep(0.01)
        _, said = holder.communicate()
        raise ClusterUnavailable(f"no node: a network namespace can not be made: {said.decode().strip()}")

    def _start_relay(self, wanted: Sequence[tuple[int, str]]) -> None:
        with contextlib.ExitStack() as opened:
            # Made here, in the machine's own network; the relay connects from inside.
            listeners = [
                (opened.enter_context(socket.create_server((LOOPBACK, port), backlog=256)).fileno(), target)
                for port, target in wanted
            ]
            pairs = [f"{descriptor}={target}" for descriptor, target in listeners]
            self._relay = self._spawn(
                [*self.enter, sys.executable, "-m", "support.cluster.relay", *pairs],
                descriptors=[descriptor for descriptor, _ in listeners],
            )

    def _spawn(self, command: Sequence[str], *, descriptors: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
        """Start a process that ends when its standard input does, that is with us, however we end."""
        return subprocess.Popen(
            command,
            cwd=TESTS,
            env=self._environment,
            pass_fds=descriptors,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _call(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterUnavailable(f"no node: {' '.join(command)}: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
