"""The control groups of a cluster's nodes: made before a kubelet starts, removed when its processes have ended.

`Node` calls it. Both of the kernel's layouts are known: one tree, or a tree for each controller.
"""

import contextlib
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_LIMIT = 20.0  # seconds in which the kernel has taken leave of killed processes
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io")


def make(name: str) -> None:
    """Make the group `name` (a path) in every tree."""
    for tree in _trees():
        group = tree
        for part in Path(name).parts:
            if _is_unified(tree):
                _share_controllers(group)
            (group / part).mkdir(exist_ok=True)
            if (group / "cpuset.cpus").exists() and not _is_unified(tree):
                _inherit_cpuset(group / part)
            group /= part


def remove(name: str) -> None:
    """Remove the group `name` and all below it, once no process is left in them."""
    give_up = time.monotonic() + _LIMIT
    for tree in _trees():
        while (tree / name).exists():
            for group in sorted((tree / name).rglob("*/"), key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):
                    group.rmdir()
            try:
                (tree / name).rmdir()
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)


def tree_of(controller: str) -> Path:
    """Return the tree of a controller."""
    return _ROOT if _is_unified(_ROOT) else _ROOT / controller


def _trees() -> list[Path]:
    if _is_unified(_ROOT):
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]


def _is_unified(tree: Path) -> bool:
    return (tree / "cgroup.controllers").exists()


def _share_controllers(group: Path) -> None:
    there = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(
        " ".join(f"+{name}" for name in _CONTROLLERS if name in there)
    )


def _inherit_cpuset(group: Path) -> None:
    """Copy what a new group of the older layout does not have: without it no process may enter."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())
