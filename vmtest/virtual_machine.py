# SPDX-License-Identifier: Apache-2.0
"""Boots kernels under virtme-ng, one per processor at a time, runs a command in each, and reports the tests that it ran.

The guest's stdout is ctest's report, its stderr and its console are one stream. A guest that dies, hangs or takes too
long is ended, and its console shown."""

import argparse
import asyncio
import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

# Longer than ctest's own limit for a single test (tests/CMakeLists.txt), which prints when it strikes.
SILENCE = 400.0
SKIP_REASON = re.compile(r"^\S+:\d+: Skipped\n(.*?)\n\n", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass
class Guest:
    report: bytes
    console: bytes
    ended: str = ""  # why it was ended; empty if it ended by itself


@dataclasses.dataclass
class Outcomes:
    passed: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # and why

    def counts(self):
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def virtme_command(image, command):
    # Emulated whatever the machine has: /dev/kvm may be there and fail. Two processors: there is no "per CPU" with one.
    return [sys.executable, "-m", "virtme.commands.run", "--kimg", image, "--mods", "auto", "--disable-kvm",
            "--force-9p", "--cpus", "2", "--memory", "2G", "--show-boot-console", "--script-sh", shlex.join(command)]


@contextlib.contextmanager
def process_group(command, scratch):
    """A process that is gone, with all that it started, when the block ends. Not asyncio's own: a task that is cancelled
    while it starts one leaves the grandchildren."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True, env=os.environ | {"TMPDIR": scratch})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def run_guest(command, timeout, silence=SILENCE):
    report, console = bytearray(), bytearray()
    ended = ""
    loop = asyncio.get_running_loop()

    async def collect(pipe, into):
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        with contextlib.closing(transport):
            while data := await reader.read(65536):
                into.extend(data)
                quiet.reschedule(loop.time() + silence)

    with tempfile.TemporaryDirectory() as scratch, process_group(command, scratch) as process:
        try:
            async with asyncio.timeout(timeout), asyncio.timeout(silence) as quiet:
                await asyncio.gather(collect(process.stdout, report), collect(process.stderr, console))
        except TimeoutError:
            ended = f"ended after a silence of {silence:g} s" if quiet.expired() else f"ended after {timeout:g} s"
    return Guest(bytes(report), bytes(console), ended)


def skip_reason(case):
    found = SKIP_REASON.search(case.findtext("system-out", ""))
    return found.group(1) if found else "no reason given"


def read_report(report):
    """The Outcomes that ctest's report tells; None if it is not whole."""
    try:
        root = xml.etree.ElementTree.fromstring(report)
    except xml.etree.ElementTree.ParseError:
        return None
    outcomes = Outcomes()
    for case in root.iter("testcase"):
        # ctest also calls "skipped" what it could not start.
        skipped = case.find("skipped")
        if case.get("status") == "run":
            outcomes.passed.append(case.get("name"))
        elif skipped is not None and skipped.get("message", "").startswith("SKIP_"):
            outcomes.skipped[case.get("name")] = skip_reason(case)
        else:
            outcomes.failed.append(case.get("name"))
    return outcomes


def judge(name, guest, show):
    """(a line of counts, whether all is well); what explains them goes to `show`, line by line."""
    outcomes = read_report(guest.report)
    if outcomes is None or outcomes.failed or guest.ended:
        show(guest.console.decode(errors="replace"))
    if outcomes is None or guest.ended:
        show(f"{name}: the guest {'was ' + guest.ended if guest.ended else 'died'}; its console is above")
        outcomes = outcomes or Outcomes()
        outcomes.failed.append("the guest")
    for test in outcomes.failed:
        show(f"{name}: FAILED {test}")
    for test, reason in outcomes.skipped.items():
        show(f"{name}: skipped {test}: {reason}")
    return f"{name}: {outcomes.counts()}", bool(outcomes.passed) and not outcomes.failed


def show(line):
    print(line, file=sys.stderr, flush=True)


async def run_kernels(kernels, command, timeout):
    """Whether all is well in each."""
    processors = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def run_kernel(name, image):
        async with processors:
            show(f"booting {name}")
            started = time.monotonic()
            guest = await run_guest(virtme_command(image, command), timeout)
            line, good = judge(name, guest, show)
            show(f"{name}: {time.monotonic() - started:.0f} s")
            print(line, flush=True)
            return good

    # A cancelled task unwinds, so that no guest outlives this process.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    return all(await asyncio.gather(*(run_kernel(name, image) for name, image in kernels)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", nargs=2, action="append", required=True, metavar=("NAME", "VMLINUZ"),
                        help="its modules are in lib/modules of a folder above it")
    parser.add_argument("--timeout", required=True, type=float, help="seconds for a guest in all")
    parser.add_argument("command", nargs="+", help="what runs in the guest")
    arguments = parser.parse_args()
    try:
        well = asyncio.run(run_kernels(arguments.kernel, arguments.command, arguments.timeout))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit("interrupted")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
