# SPDX-License-Identifier: Apache-2.0
"""Namespaces and cgroups of the calling process, so that nothing it does is seen from outside or stays behind."""

import contextlib
import ctypes
import errno
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source, target, kind=None, flags=0):
    encoded = [None if text is None else str(text).encode() for text in (source, target, kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), None), f"mount {target}")


def new_network_namespace():
    """Moves this process to a network namespace of its own, which dies with its last process."""
    _check(_libc.unshare(CLONE_NEWNET), "unshare(CLONE_NEWNET)")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def new_mount_namespace():
    """Mounts from here on are private to this process and its children, and vanish with them."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def die_with_parent():
    """To run in a child before exec: the kernel ends it when the process that started it ends, however that is."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def cgroup2_mount(fallback):
    """Where cgroup v2 is mounted; mounts it at `fallback` (private to this mount namespace) when nowhere."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, target, kind, *_ = line.split()
            if kind == "cgroup2":
                return pathlib.Path(target)
    fallback.mkdir(parents=True, exist_ok=True)
    mount("cgroup2", fallback, "cgroup2")
    return fallback


def contained(main):
    """Runs main() in a child process and returns its exit code. Whatever way it ends, a signal to this process
    included, its processes, cgroups, mounts and temporary files are gone then."""
    new_mount_namespace()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mapgate-"))
    awaited = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    # Blocked rather than handled: nothing interrupts the cleanup.
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        mount_point = cgroup2_mount(folder / "cgroup2")
        child = os.fork()
        if child == 0:
            _be_contained(main, folder, awaited)
        ended_by = signal.sigwait(awaited)
        if ended_by != signal.SIGCHLD:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        CgroupTree.remove_those_of_children(mount_point)
    finally:
        _remove_tree(folder)
    return 128 + ended_by if ended_by != signal.SIGCHLD else os.waitstatus_to_exitcode(status)


def _be_contained(main, folder, awaited):
    """The child's part; does not return."""
    die_with_parent()
    os.setpgid(0, 0)  # Ctrl-C is for the parent.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
    tempfile.tempdir = str(folder)
    code = 1
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _remove_tree(folder):
    """With what is mounted in it."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        inside = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{folder}/")]
    for target in reversed(inside):
        subprocess.run(["umount", "--lazy", target], check=True)
    shutil.rmtree(folder)


class CgroupTree:
    """A cgroup with children. Ending it ends every process in it, and only those."""

    PREFIX = "mapgate-world"

    def __init__(self, mount_point):
        # Named after the parent, which removes it if this process does not come to it: see contained().
        self.path = mount_point / f"{self.PREFIX}-{os.getppid()}-{secrets.token_hex(3)}"
        self.path.mkdir()

    def child(self, name):
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def remove_child(self, name):
        self._remove(self.path / name)

    def close(self):
        self._remove(self.path)

    @classmethod
    def _remove(cls, top):
        deadline = time.monotonic() + 10
        while top.exists():
            cls._end_processes(top)
            try:
                cls._remove_folders(top)
            except OSError as error:
                # A process that has left cgroup.procs, but has not ended yet, still keeps its cgroup.
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @staticmethod
    def _end_processes(top):
        for procs in top.rglob("cgroup.procs"):
            for pid in procs.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    @classmethod
    def remove_those_of_children(cls, mount_point):
        for path in mount_point.glob(f"{cls.PREFIX}-{os.getpid()}-*"):
            cls._remove(path)

    @staticmethod
    def _remove_folders(top):
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)
