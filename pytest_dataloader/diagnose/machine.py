"""What a pipeline runs on: operating system, CPUs, memory, and where its data lies.

A fact a function: ``parse_...`` and the like read texts that were given to them, the functions
under "Reading" fetch these texts from the machine. What cannot be read is None, never a guess.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_dataloader.observe.facts import MachineFacts, StorageFacts

LOCAL, MEMORY, NETWORK, OBJECTS = "local disk", "memory", "network", "object store"
WINDOWS_DRIVE, HOST, ROTATING = "Windows drive", "folder of the host", "rotating disk"
_NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "davfs", "afs", "ncpfs"}
    | {"lustre", "ceph", "beegfs", "gpfs", "glusterfs", "fuse.glusterfs", "fuse.ceph-fuse"}
    | {"fuse.sshfs", "fuse.davfs", "macfuse", "osxfuse"}
)
_OBJECT_WORDS = ("s3", "gcs", "goofys", "rclone", "blobfuse", "juicefs", "alluxio", "jindo", "oss")
_HOST_KINDS = frozenset({"fuse.grpcfuse", "fakeowner", "osxfs", "virtiofs", "vboxsf", "vmhgfs"})
_MEMORY_KINDS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_VIRTUAL_DISKS = ("msft", "qemu", "vmware", "vbox", "virtual", "google", "amazon", "xen")
_REMOTE_DRIVE, _RAM_DRIVE = 4, 6
_NO_LIMIT = 1 << 60
_SHARED = "/dev/shm"  # noqa: S108 - looked at, not written to
_MOST_FIELDS, _MOST_PLACES, _MOST_OF_A_LIST = 2_000, 16, 3
_MOST_DEPTH = 6


@dataclass(frozen=True)
class Mount:
    """One line of a mount table."""

    device: str
    point: str
    kind: str
    options: str = ""


# Parsing: the system -------------------------------------------------------------------------


def wsl_version(osrelease: str) -> int | None:
    """1 or 2 from the text of ``/proc/sys/kernel/osrelease``; None outside of WSL."""
    text = osrelease.lower()
    if "microsoft" not in text:
        return None
    return 2 if "wsl2" in text or "microsoft-standard" in text else 1


def parse_meminfo(text: str) -> int | None:
    """Bytes of memory from ``/proc/meminfo``."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def gpu_model(text: str) -> str | None:
    """The model from ``/proc/driver/nvidia/gpus/*/information``."""
    found = re.search(r"^Model:\s*(\S.*?)\s*$", text, re.MULTILINE)
    return found[1] if found else None


# Parsing: control groups ---------------------------------------------------------------------


def parse_cgroup(text: str) -> dict[str, str]:
    """The paths of a process's control groups by controller; version 2 has the name ``""``."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def parse_cpu_max(text: str) -> float | None:
    """CPUs from ``cpu.max`` of version 2: a quota and a period, or ``max``."""
    quota, _, period = text.strip().partition(" ")
    return cpu_quota(quota, period or "100000")


def cpu_quota(quota: str, period: str) -> float | None:
    """CPUs from microseconds in a period; None where there is no limit."""
    if not quota.strip().isdigit() or not period.strip().isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period) or None


def parse_memory_limit(text: str) -> int | None:
    """Bytes from ``memory.max`` or ``memory.limit_in_bytes``; None where there is no limit."""
    text = text.strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def cgroup_folders(groups: dict[str, str], controller: str) -> list[str]:
    """Where a controller's files may lie, innermost first; a container sees its own as the root."""
    path = groups.get(controller)
    if path is not None:
        roots = [f"/sys/fs/cgroup/{controller}", f"/sys/fs/cgroup/{controller},{controller}acct"]
    else:
        path, roots = groups.get("", "/"), ["/sys/fs/cgroup"]
    parts = [part for part in path.split("/") if part not in ("", "..")]
    above = ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
    return [f"{root}/{inner}".rstrip("/") for root in roots for inner in above]


# Parsing: where data lies --------------------------------------------------------------------


def parse_mounts(text: str) -> list[Mount]:
    """The table of ``/proc/self/mounts``, whose blanks in names are octal escapes."""
    rows = (line.split(" ") for line in text.splitlines())
    return [Mount(*(_unescaped(cell) for cell in row[:4])) for row in rows if len(row) >= 4]


def _unescaped(cell: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), cell)


def parse_macos_mounts(text: str) -> list[Mount]:
    """What ``mount`` prints on macOS: ``device on point (kind, options)``."""
    found = re.findall(r"^(.+?) on (.+) \(([^,)]+)(?:, )?([^)]*)\)$", text, re.MULTILINE)
    return [Mount(device, point, kind, options) for device, point, kind, options in found]


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that a path lies on: the longest that leads to it, of several the last."""
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def category(mount: Mount, wsl: int | None) -> str:
    """What kind of place a mount is, as far as its speed goes."""
    kind, words = mount.kind.lower(), f"{mount.device} {mount.kind}".lower()
    if wsl is not None and (kind == "drvfs" or (kind == "9p" and _is_drive(mount))):
        return WINDOWS_DRIVE
    if kind in _NETWORK_KINDS:
        return NETWORK
    if kind.startswith("fuse") and any(word in words for word in _OBJECT_WORDS):
        return OBJECTS
    if kind in _MEMORY_KINDS:
        return MEMORY
    # a container whose root is one has nothing faster
    if (kind in _HOST_KINDS or kind == "9p") and mount.point != "/":
        return HOST
    return LOCAL


def _is_drive(mount: Mount) -> bool:
    drive = re.match(r"([A-Za-z]:|drvfs)", mount.device) is not None
    return drive or "aname=drvfs" in mount.options


def windows_place(path: str, drive_type: int | None) -> tuple[str, str]:
    """Kind and category of a path on Windows, by its beginning and its drive's type."""
    lower = path.lower().replace("/", "\\").removeprefix("\\\\?\\")
    if lower.startswith(("\\\\wsl$\\", "\\\\wsl.localhost\\")):
        return "9p", HOST
    if lower.startswith(("\\\\", "unc\\")) or drive_type == _REMOTE_DRIVE:
        return "smb", NETWORK
    return ("ramdisk", MEMORY) if drive_type == _RAM_DRIVE else ("ntfs", LOCAL)


def rotates(flag: str, name: str, description: str) -> bool:
    """Whether a block device is a rotating disk: virtual ones say so whatever lies under them."""
    virtual = any(word in description.lower() for word in _VIRTUAL_DISKS)
    virtual = virtual or re.match(r"(vd|xvd|dm-|loop|md|zram|nbd|ram)", name) is not None
    return flag.strip() == "1" and not virtual


# Reading: the system -------------------------------------------------------------------------


def facts() -> MachineFacts:
    """What this machine is, as far as a data pipeline goes."""
    soft, hard = descriptor_limits()
    quota = limit_of_cpus()
    return MachineFacts(
        os=platform.system(),
        wsl=wsl(),
        cpus=os.cpu_count(),
        cpus_allowed=cpus_allowed(quota),
        cpu_quota=quota,
        memory_bytes=memory(),
        memory_limit_bytes=limit_of_memory(),
        shm_bytes=shared_memory(),
        descriptors=soft,
        descriptors_hard=hard,
        sharing_strategy=sharing_strategy(),
        gpus=tuple(gpus()),
    )


def wsl() -> int | None:
    """The version of WSL that this is, or None."""
    return wsl_version(_text("/proc/sys/kernel/osrelease") or "")


def cpus_allowed(quota: float | None = None) -> int | None:
    """CPUs that this process may use, by affinity and by its container's limit."""
    if hasattr(os, "sched_getaffinity"):
        count: int | None = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    if quota is None or count is None:
        return count
    return max(1, min(count, math.ceil(quota)))


def limit_of_cpus() -> float | None:
    """The smallest limit of CPUs of this process's control groups."""
    groups = _groups()
    if "cpu" in groups:
        pairs = (
            (_text(f"{folder}/cpu.cfs_quota_us"), _text(f"{folder}/cpu.cfs_period_us"))
            for folder in cgroup_folders(groups, "cpu")
        )
        limits = [cpu_quota(quota, period) for quota, period in pairs if quota and period]
    else:
        texts = (_text(f"{folder}/cpu.max") for folder in cgroup_folders(groups, "cpu"))
        limits = [parse_cpu_max(text) for text in texts if text]
    return min((limit for limit in limits if limit is not None), default=None)


def limit_of_memory() -> int | None:
    """The smallest limit of memory of this process's control groups, in bytes."""
    groups = _groups()
    name = "memory.limit_in_bytes" if "memory" in groups else "memory.max"
    texts = (_text(f"{folder}/{name}") for folder in cgroup_folders(groups, "memory"))
    limits = [parse_memory_limit(text) for text in texts if text]
    return min((limit for limit in limits if limit is not None), default=None)


def _groups() -> dict[str, str]:
    return parse_cgroup(_text("/proc/self/cgroup") or "")


def memory() -> int | None:
    """Bytes of memory; under WSL2 those that the virtual machine was given."""
    text = _text("/proc/meminfo")
    if text is not None:
        return parse_meminfo(text)
    import psutil

    return int(psutil.virtual_memory().total)


def shared_memory() -> int | None:
    """Bytes of ``/dev/shm``, through which batches travel on Linux; None elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            found = os.statvfs(_SHARED)
            return found.f_blocks * found.f_frsize
    return None


def descriptor_limits() -> tuple[int | None, int | None]:
    """How many files a process may hold open, and up to how many it may raise that itself."""
    soft: int | None = None
    hard: int | None = None
    if sys.platform != "win32":
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard


def sharing_strategy() -> str | None:
    """How torch passes tensors on, where it was imported."""
    torch = sys.modules.get("torch.multiprocessing")
    return torch.get_sharing_strategy() if torch is not None else None


def gpus() -> Iterator[str]:
    """GPUs by name. CUDA is not asked: that would initialise it before workers are forked."""
    for text in _texts("/proc/driver/nvidia/gpus", "*/information"):
        yield gpu_model(text) or "NVIDIA GPU"
    if Path("/dev/dxg").exists():
        yield "GPU of the Windows host"
    if Path("/dev/kfd").exists():
        yield "AMD GPU"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        yield "Apple GPU"


# Reading: where data lies --------------------------------------------------------------------


def storage_of(roots: dict[str, Any]) -> tuple[StorageFacts, ...]:
    """The existing files and folders that fields of these roots name, and where they lie."""
    from pytest_dataloader.diagnose.world import fields

    found: dict[str, StorageFacts] = {}
    look = _looker()
    for count, (path, value) in enumerate(_named(roots, fields)):
        if count >= _MOST_FIELDS or len(found) >= _MOST_PLACES:
            break
        with contextlib.suppress(OSError, ValueError):
            if _may_be_path(value) and Path(value).exists():
                found[path] = look(path, os.path.realpath(value))
    return tuple(found.values())


def _named(roots: dict[str, Any], fields: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Fields and the first items of lists of text, by path."""
    for root, value in roots.items():
        for path, field in fields(root, value):
            if isinstance(field, (list, tuple)):
                for index, item in enumerate(field[:_MOST_OF_A_LIST]):
                    yield f"{path}[{index}]", item
            else:
                yield path, field


def _may_be_path(value: Any) -> bool:
    if isinstance(value, os.PathLike):
        return True
    return isinstance(value, str) and 1 < len(value) < 4096 and ("/" in value or "\\" in value)


def place_of(path: str | os.PathLike[str]) -> StorageFacts:
    """Where one path lies."""
    return _looker()("", os.path.realpath(path))


def _looker() -> Callable[[str, str], StorageFacts]:
    """A look at places, with the mount table read once."""
    if os.name == "nt":
        return _look_on_windows
    mounts, version = list(_mounts()), wsl()

    def look(field: str, path: str) -> StorageFacts:
        mount = mount_of(path, mounts)
        if mount is None:
            return StorageFacts(field, path, "unknown", LOCAL)
        place = category(mount, version)
        if place == LOCAL and _on_rotating_disk(path):
            place = ROTATING
        return StorageFacts(field, path, mount.kind, place, mount.point)

    return look


def _look_on_windows(field: str, path: str) -> StorageFacts:
    import ctypes

    drive = os.path.splitdrive(path)[0]
    kernel: Any = getattr(ctypes, "windll").kernel32  # noqa: B009 - only there on Windows
    number = int(kernel.GetDriveTypeW(f"{drive}\\"))
    kind, place = windows_place(path, number)
    return StorageFacts(field, path, kind, place, drive)


def _mounts() -> Iterator[Mount]:
    text = _text("/proc/self/mounts")
    if text is not None:
        yield from parse_mounts(text)
    elif sys.platform == "darwin":
        import subprocess

        done = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False)
        yield from parse_macos_mounts(done.stdout)


def _on_rotating_disk(path: str) -> bool:
    """By the block device of the file system, or the disk that it is a partition of."""
    found = False
    if sys.platform == "linux":
        number = Path(path).stat().st_dev
        disk = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        disk = disk if (disk / "queue").is_dir() else disk.parent
        words = " ".join(_text(str(disk / "device" / name)) or "" for name in ("vendor", "model"))
        flag = _text(str(disk / "queue" / "rotational")) or "0"
        found = rotates(flag, disk.name, words)
    return found


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _texts(folder: str, pattern: str) -> Iterator[str]:
    for path in sorted(Path(folder).glob(pattern)):
        text = _text(str(path))
        if text is not None:
            yield text


# Batches -------------------------------------------------------------------------------------


def shared_bytes(batch: Any, depth: int = 0) -> int:
    """Bytes of shared memory that a batch takes on its way: those of its tensors."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(batch, torch.Tensor):
        return 0 if batch.is_cuda else int(batch.numel() * batch.element_size())
    if depth >= _MOST_DEPTH:
        return 0
    if isinstance(batch, dict):
        return sum(shared_bytes(item, depth + 1) for item in batch.values())
    if isinstance(batch, (list, tuple)):
        return sum(shared_bytes(item, depth + 1) for item in batch)
    return sum(shared_bytes(item, depth + 1) for item in getattr(batch, "__dict__", {}).values())


# Words ---------------------------------------------------------------------------------------


def told(machine: MachineFacts) -> str:
    """The machine on one line, for the header."""
    system = machine.os if machine.wsl is None else f"{machine.os} in WSL{machine.wsl}"
    system += " (sized by .wslconfig)" if machine.wsl == 2 else ""
    words = [system, _told_cpus(machine), _told_memory(machine)]
    if machine.shm_bytes is not None:
        words.append(f"{_SHARED} {size(machine.shm_bytes)}")
    if machine.descriptors is not None:
        words.append(f"{machine.descriptors:,} open files")
    if machine.sharing_strategy is not None:
        words.append(f"sharing strategy {machine.sharing_strategy}")
    words += machine.gpus
    return ", ".join(word for word in words if word)


def _told_cpus(machine: MachineFacts) -> str:
    if machine.cpus_allowed is None:
        return ""
    text = f"{machine.cpus_allowed} CPU{'s' if machine.cpus_allowed != 1 else ''}"
    fewer = machine.cpus is not None and machine.cpus_allowed < machine.cpus
    return f"{text} allowed of {machine.cpus}" if fewer else text


def _told_memory(machine: MachineFacts) -> str:
    if machine.memory_bytes is None:
        return ""
    limit = machine.memory_limit_bytes
    if limit is not None and limit < machine.memory_bytes:
        return f"memory {size(limit)} allowed of {size(machine.memory_bytes)}"
    return f"memory {size(machine.memory_bytes)}"


def size(count: int) -> str:
    """Bytes as MiB or GiB."""
    unit, name = (2**30, "GiB") if count >= 2**30 else (2**20, "MiB")
    value = count / unit
    return f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
