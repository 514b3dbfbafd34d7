"""The first process of a node: makes the node's file system, starts its three programs, and is the node's life.

`Node` starts it in namespaces of its own (network, mounts, processes). When it ends, the kernel kills every process
of the node and takes its mounts away; and it ends when its standard input does, that is with whoever started it.

It is told what to do by a JSON file, and says on standard output what has happened: one line each.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# What the kubelet would write into these, for the whole machine: it finds it there already, and writes nothing.
_KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_AGAIN = 0.2  # seconds
_PRIVATE = ("/run", "/var/log", "/var/lib")
"""Folders that the programs write into by fixed names: each gets empty ones that nobody else sees."""


def main() -> None:
    """Become a node and stay one until told to end."""
    node = json.loads(Path(sys.argv[1]).read_text())
    _make_file_system(Path(node["folder"]))
    print("made", flush=True)
    sys.stdin.buffer.readline()  # the network is there
    threading.Thread(target=_end_with_input, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _look_after(node)


def _make_file_system(folder: Path) -> None:
    for path in _PRIVATE:
        _mount("-t", "tmpfs", "tmpfs", path)
    for name in ("containerd", "kubelet"):
        target = Path("/var/lib") / name
        for made in (target, folder / name):
            made.mkdir(exist_ok=True)
        _mount("--bind", str(folder / name), str(target))
    for name, value in _KERNEL.items():
        stand_in = folder / name.replace("/", "-")
        stand_in.write_text(f"{value}\n")
        _mount("--bind", str(stand_in), f"/proc/sys/{name}")


def _look_after(node: Mapping[str, Any]) -> None:
    """Start the programs, again when one gives up, and collect whatever ends.

    The kubelet gives up when containerd is not ready yet. One that was killed stays dead: a test wants it so.
    """
    running: dict[int, _Running] = {}

    def start(program: Mapping[str, Any]) -> None:
        with Path(node["folder"], f"{program['name']}.log").open("ab") as log:
            process = subprocess.Popen(
                program["command"], env=node["environment"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        running[process.pid] = _Running(program, process)

    for program in node["programs"]:
        start(program)
    while True:
        pid, status = _wait()
        ended = running.pop(pid, None)  # or what a process left to us that ended before its children
        if ended is not None and os.WIFEXITED(status):
            time.sleep(_AGAIN)
            start(ended.program)


class _Running(NamedTuple):
    program: Mapping[str, Any]
    process: "subprocess.Popen[bytes]"
    """kept: one that is forgotten is waited for by the next one's start"""


def _wait() -> tuple[int, int]:
    while True:
        with contextlib.suppress(ChildProcessError):
            return os.wait()
        time.sleep(_AGAIN)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _mount(*arguments: str) -> None:
    command: Sequence[str] = ("mount", *arguments)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
