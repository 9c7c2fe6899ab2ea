"""Machine facts, read from texts as WSL, Docker, NFS, macOS and Windows give them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_dataloader.diagnose import machine
from pytest_dataloader.diagnose.machine import (
    HOST,
    LOCAL,
    MEMORY,
    NETWORK,
    OBJECTS,
    ROTATING,
    WINDOWS_DRIVE,
    Mount,
)
from pytest_dataloader.observe.facts import MachineFacts, StorageFacts

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of itself")

WSL2_MOUNTS = r"""
none /mnt/wsl tmpfs rw,relatime 0 0
none /usr/lib/wsl/drivers 9p ro,nosuid,nodev,noatime,aname=drivers;fmask=222;dmask=222,trans=fd 0 0
/dev/sdc / ext4 rw,relatime,discard,errors=remount-ro,data=ordered 0 0
none /dev/shm tmpfs rw,nosuid,nodev,noatime 0 0
C:\134 /mnt/c 9p rw,noatime,dirsync,aname=drvfs;path=C:\;uid=1000;gid=1000 0 0
drvfs /mnt/d 9p rw,noatime,dirsync,aname=drvfs;path=D:;uid=0;gid=0 0 0
"""
WSL1_MOUNTS = r"""
rootfs / lxfs rw,noatime 0 0
C:\134 /mnt/c drvfs rw,noatime,uid=1000,gid=1000,case=off 0 0
"""
DOCKER_MOUNTS = r"""
overlay / overlay rw,relatime,lowerdir=/var/lib/docker/l/A,upperdir=/var/lib/docker/b 0 0
shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0
/dev/vda1 /etc/hosts ext4 rw,relatime 0 0
grpcfuse /project fuse.grpcfuse rw,nosuid,nodev,relatime,user_id=0,group_id=0,allow_other 0 0
/run/host_mark/Users /src fakeowner rw,nosuid,nodev,relatime,fakeowner 0 0
"""
CLUSTER_MOUNTS = r"""
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
filer01:/export/data /data nfs4 rw,relatime,vers=4.2,rsize=1048576,hard,proto=tcp 0 0
//nas/images /mnt/my\040images cifs rw,relatime,vers=3.1.1,cache=strict,username=me 0 0
10.0.0.2@tcp:/scratch /scratch lustre rw,flock,lazystatfs 0 0
s3fs /buckets/one fuse.s3fs rw,nosuid,nodev,relatime,user_id=0,group_id=0 0 0
mountpoint-s3 /buckets/two fuse rw,nosuid,nodev,noatime,user_id=1000 0 0
my-bucket /buckets/three fuse.gcsfuse rw,nosuid,nodev,relatime,user_id=1000 0 0
me@host:/home /home/me/far fuse.sshfs rw,nosuid,nodev,relatime,user_id=1000 0 0
/dev/sdb1 /media/usb fuseblk rw,relatime,user_id=0,group_id=0,allow_other,blksize=4096 0 0
fuse-overlayfs /containers fuse.fuse-overlayfs rw,nodev,noatime,user_id=0,group_id=0 0 0
tmpfs /data/hot tmpfs rw,size=1024k 0 0
"""
MACOS_MOUNTS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse, protect, root data)
//me@nas._smb._tcp.local/images on /Volumes/images (smbfs, nodev, nosuid, mounted by me)
filer:/export on /private/nfs (nfs, asynchronous)
"""


def place(table: str, path: str, wsl: int | None = None) -> str:
    mount = machine.mount_of(path, machine.parse_mounts(table))
    assert mount is not None
    return machine.category(mount, wsl)


# Where data lies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "path", "wsl", "told"),
    [
        (WSL2_MOUNTS, "/mnt/c/Users/me/data", 2, WINDOWS_DRIVE),
        (WSL2_MOUNTS, "/mnt/d", 2, WINDOWS_DRIVE),
        (WSL2_MOUNTS, "/mnt/cache/data", 2, LOCAL),
        (WSL2_MOUNTS, "/home/me/data", 2, LOCAL),
        (WSL2_MOUNTS, "/dev/shm/data", 2, MEMORY),
        (WSL1_MOUNTS, "/mnt/c/data", 1, WINDOWS_DRIVE),
        (WSL1_MOUNTS, "/home/me", 1, LOCAL),
        (DOCKER_MOUNTS, "/opt/data", None, LOCAL),
        (DOCKER_MOUNTS, "/project/data", None, HOST),
        (DOCKER_MOUNTS, "/src", None, HOST),
        (CLUSTER_MOUNTS, "/data/images", None, NETWORK),
        (CLUSTER_MOUNTS, "/data/hot/images", None, MEMORY),
        (CLUSTER_MOUNTS, "/mnt/my images/a.png", None, NETWORK),
        (CLUSTER_MOUNTS, "/scratch/me", None, NETWORK),
        (CLUSTER_MOUNTS, "/home/me/far/data", None, NETWORK),
        (CLUSTER_MOUNTS, "/buckets/one/a", None, OBJECTS),
        (CLUSTER_MOUNTS, "/buckets/two/a", None, OBJECTS),
        (CLUSTER_MOUNTS, "/buckets/three/a", None, OBJECTS),
        (CLUSTER_MOUNTS, "/media/usb/a", None, LOCAL),
        (CLUSTER_MOUNTS, "/containers/a", None, LOCAL),
        (CLUSTER_MOUNTS, "/home/me", None, LOCAL),
        ("rootfs / 9p rw,trans=fd 0 0", "/data", None, LOCAL),
    ],
)
def test_the_place_of_a_path_in_a_mount_table(table, path, wsl, told) -> None:
    assert place(table, path, wsl) == told


def test_the_mounts_of_macos() -> None:
    mounts = machine.parse_macos_mounts(MACOS_MOUNTS)
    assert len(mounts) == 5
    assert mounts[3] == Mount(
        "//me@nas._smb._tcp.local/images",
        "/Volumes/images",
        "smbfs",
        "nodev, nosuid, mounted by me",
    )
    told = {
        path: machine.category(mount, None)
        for path in ("/Users/me", "/Volumes/images/a", "/private/nfs/a")
        if (mount := machine.mount_of(path, mounts))
    }
    assert list(told.values()) == [LOCAL, NETWORK, NETWORK]


@pytest.mark.parametrize(
    ("path", "drive_type", "told"),
    [
        ("C:\\Users\\me\\data", 3, ("ntfs", LOCAL)),
        ("Z:\\data", 4, ("smb", NETWORK)),
        ("\\\\nas\\images", 1, ("smb", NETWORK)),
        ("\\\\?\\UNC\\nas\\images", 1, ("smb", NETWORK)),
        ("//wsl.localhost/Ubuntu/home/me", 1, ("9p", HOST)),
        ("\\\\wsl$\\Ubuntu\\home", 4, ("9p", HOST)),
        ("R:\\", 6, ("ramdisk", MEMORY)),
        ("D:\\", None, ("ntfs", LOCAL)),
    ],
)
def test_the_place_of_a_path_on_windows(path, drive_type, told) -> None:
    assert machine.windows_place(path, drive_type) == told


def test_no_mount_leads_to_a_path_of_another_root() -> None:
    assert machine.mount_of("/data", [Mount("a", "/dat", "ext4"), Mount("b", "/x", "ext4")]) is None


@pytest.mark.parametrize(
    ("flag", "name", "description", "told"),
    [
        ("1\n", "sda", "ATA      WDC WD80EFAX-68K", True),
        ("0\n", "nvme0n1", "Samsung SSD 980", False),
        ("1\n", "vda", "", False),
        ("1\n", "sda", "Msft     Virtual Disk", False),
        ("1\n", "sda", "QEMU     QEMU HARDDISK", False),
        ("1\n", "dm-0", "", False),
    ],
)
def test_a_disk_rotates_if_it_says_so_and_is_real(flag, name, description, told) -> None:
    assert machine.rotates(flag, name, description) is told


# The system ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5.15.153.1-microsoft-standard-WSL2\n", 2),
        ("4.19.128-microsoft-standard\n", 2),
        ("4.4.0-19041-Microsoft\n", 1),
        ("6.8.0-45-generic\n", None),
        ("", None),
    ],
)
def test_the_version_of_wsl(text, version) -> None:
    assert machine.wsl_version(text) == version


def test_memory() -> None:
    text = "MemTotal:        8037396 kB\nMemFree:         5531640 kB\n"
    assert machine.parse_meminfo(text) == 8037396 * 1024
    assert machine.parse_meminfo("nothing") is None


def test_the_model_of_a_gpu() -> None:
    text = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 245\nBus Type: \t PCIe\n"
    assert machine.gpu_model(text) == "NVIDIA A100-SXM4-40GB"
    assert machine.gpu_model("IRQ: 1\n") is None


# Control groups ------------------------------------------------------------------------------

CGROUP_V1 = """\
12:cpu,cpuacct:/docker/0a1b
11:memory:/docker/0a1b
1:name=systemd:/docker/0a1b
"""


def test_control_groups() -> None:
    assert machine.parse_cgroup("0::/user.slice/a.scope\n") == {"": "/user.slice/a.scope"}
    assert machine.parse_cgroup(CGROUP_V1) == {
        "cpu": "/docker/0a1b",
        "cpuacct": "/docker/0a1b",
        "memory": "/docker/0a1b",
        "name=systemd": "/docker/0a1b",
    }


def test_the_folders_of_control_groups() -> None:
    assert machine.cgroup_folders({"": "/a/b"}, "cpu") == [
        "/sys/fs/cgroup/a/b",
        "/sys/fs/cgroup/a",
        "/sys/fs/cgroup",
    ]
    assert machine.cgroup_folders({}, "cpu") == ["/sys/fs/cgroup"]
    assert machine.cgroup_folders({"": "/../../x"}, "cpu")[0] == "/sys/fs/cgroup/x"
    assert machine.cgroup_folders({"cpu": "/docker"}, "cpu") == [
        "/sys/fs/cgroup/cpu/docker",
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/cpu,cpuacct/docker",
        "/sys/fs/cgroup/cpu,cpuacct",
    ]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("200000 100000\n", 2.0), ("150000 100000", 1.5), ("max 100000\n", None), ("50000", 0.5)],
)
def test_the_limit_of_cpus_of_version_2(text, cpus) -> None:
    assert machine.parse_cpu_max(text) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [("400000\n", "100000\n", 4.0), ("-1\n", "100000\n", None), ("100", "0", None)],
)
def test_the_limit_of_cpus_of_version_1(quota, period, cpus) -> None:
    assert machine.cpu_quota(quota, period) == cpus


@pytest.mark.parametrize(
    ("text", "limit"),
    [("4294967296\n", 2**32), ("max\n", None), ("9223372036854771712\n", None)],
)
def test_the_limit_of_memory(text, limit) -> None:
    assert machine.parse_memory_limit(text) == limit


@pytest.mark.parametrize(("quota", "most"), [(None, None), (0.5, 1), (1.5, 2), (1e9, None)])
def test_a_container_may_allow_fewer_cpus(quota, most) -> None:
    allowed = machine.cpus_allowed()
    assert allowed is not None
    assert machine.cpus_allowed(quota) == min(allowed, most or allowed)


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/cpu.max": "150000 100000",
                "/sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "/sys/fs/cgroup/a/b/memory.max": "1073741824",
            },
            1.5,
            2**30,
        ),
        (
            {
                "/proc/self/cgroup": CGROUP_V1,
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
            },
            3.0,
            2**29,
        ),
        ({}, None, None),
    ],
    ids=["version 2", "version 1 in a container", "none"],
)
def test_the_smallest_limit_on_the_way_up_counts(monkeypatch, files, cpus, memory) -> None:
    monkeypatch.setattr(machine, "_text", files.get)
    assert machine.limit_of_cpus() == cpus
    assert machine.limit_of_memory() == memory


# This machine --------------------------------------------------------------------------------


def test_this_machine() -> None:
    found = machine.facts()
    assert found.os
    assert found.cpus_allowed is not None
    assert 1 <= found.cpus_allowed <= (found.cpus or 1)
    assert found.memory_bytes is not None
    assert found.memory_bytes > 2**20
    assert found.sharing_strategy == torch.multiprocessing.get_sharing_strategy()


@on_linux
def test_the_paths_that_fields_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").touch()
    table = f"/dev/sda1 / ext4 rw 0 0\nfiler:/a {tmp_path} nfs4 rw 0 0\n"
    texts = {"/proc/self/mounts": table}
    monkeypatch.setattr(machine, "_text", texts.get)
    dataset = SimpleNamespace(
        root=tmp_path,
        name="a.txt",
        files=[f"{tmp_path}/{name}" for name in ("gone.txt", "a.txt")],
        nested=SimpleNamespace(separator="/ \0 /"),
    )
    where = os.path.realpath(tmp_path)
    assert machine.storage_of({"dataset": dataset}) == (
        StorageFacts("dataset.root", where, "nfs4", NETWORK, where),
        StorageFacts("dataset.files[1]", f"{where}/a.txt", "nfs4", NETWORK, where),
    )


@on_linux
def test_a_place_on_a_rotating_disk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "_text", {"/proc/self/mounts": "/dev/sda1 / ext4 rw 0 0"}.get)
    monkeypatch.setattr(machine, "_on_rotating_disk", lambda path: True)
    assert machine.place_of(tmp_path).category == ROTATING


# Batches and words ---------------------------------------------------------------------------


def test_the_shared_memory_that_a_batch_takes() -> None:
    one = torch.zeros(4, 8)
    batch = {"x": one, "y": [one.double(), (one.byte(), "text")], "z": SimpleNamespace(t=one)}
    assert machine.shared_bytes(batch) == 32 * (4 + 8 + 1 + 4)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (MachineFacts("Windows", cpus=8, cpus_allowed=8), "Windows, 8 CPUs"),
        (
            MachineFacts(
                "Linux",
                wsl=2,
                cpus=8,
                cpus_allowed=1,
                memory_bytes=16 * 2**30,
                memory_limit_bytes=512 * 2**20,
                shm_bytes=64 * 2**20,
                descriptors=1024,
                sharing_strategy="file_descriptor",
                gpus=("NVIDIA A100",),
            ),
            (
                "Linux in WSL2 (sized by .wslconfig), 1 CPU allowed of 8, memory 512 MiB allowed "
                "of 16 GiB, /dev/shm 64 MiB, 1,024 open files, sharing strategy file_descriptor, "
                "NVIDIA A100"
            ),
        ),
    ],
)
def test_the_machine_on_one_line(facts, line) -> None:
    assert machine.told(facts) == line
