# SPDX-License-Identifier: Apache-2.0
"""Boots a kernel under virtme-ng, runs a command in it, and reports the tests that the command ran.

The guest's stdout is ctest's report, its stderr and console are one stream. A guest that dies, hangs or takes too long
is ended, and its console shown."""

import argparse
import contextlib
import os
import pathlib
import re
import selectors
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


def virtme_command(image, command):
    # TCG whatever the machine has: /dev/kvm may exist and fail. One processor is what emulation keeps busy.
    return [sys.executable, "-m", "virtme.commands.run", "--kimg", str(image), "--mods", "auto", "--disable-kvm",
            "--force-9p", "--cpus", "1", "--memory", "2G", "--show-boot-console", "--script-sh", shlex.join(command)]


@contextlib.contextmanager
def process_group(command, scratch):
    """The guest, gone with all that it started when the block ends."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True, env=os.environ | {"TMPDIR": scratch})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_guest(command, scratch, timeout):
    """(report, console, why it was ended or None)."""
    report, console = bytearray(), bytearray()
    with process_group(command, scratch) as process, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, report)
        selector.register(process.stderr, selectors.EVENT_READ, console)
        end = time.monotonic() + timeout
        heard = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(timeout=1.0):
                data = os.read(key.fd, 65536)
                key.data.extend(data)
                heard = time.monotonic()
                if not data:
                    selector.unregister(key.fileobj)
            if time.monotonic() > end:
                return report, console, f"it was ended after {timeout:.0f} s"
            if time.monotonic() > heard + SILENCE:
                return report, console, f"it was ended: it had been silent for {SILENCE:.0f} s"
    return report, console, None


def skip_reason(case):
    found = SKIP_REASON.search(case.findtext("system-out", ""))
    return found.group(1) if found else "no reason given"


def count_tests(report):
    """{outcome: [test]} of ctest's report."""
    outcomes = {"passed": [], "failed": [], "skipped": []}
    for case in xml.etree.ElementTree.fromstring(report).iter("testcase"):
        if case.get("status") == "run":
            outcomes["passed"].append(case)
        elif case.find("skipped") is not None:
            outcomes["skipped"].append(case)
        else:
            outcomes["failed"].append(case)
    return outcomes


def tell(line):
    print(line, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="what to call the kernel in the report")
    parser.add_argument("--image", required=True, type=pathlib.Path, help="vmlinuz, below a folder with lib/modules")
    parser.add_argument("--timeout", required=True, type=float, help="seconds for the guest in all")
    parser.add_argument("command", nargs="+", help="what runs in the guest")
    arguments = parser.parse_args()
    # An exception unwinds, so that the guest does not outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report, console, ended = run_guest(virtme_command(arguments.image, arguments.command), scratch,
                                           arguments.timeout)
    seconds = time.monotonic() - started
    outcomes = None
    with contextlib.suppress(xml.etree.ElementTree.ParseError):
        outcomes = count_tests(bytes(report))
    if outcomes is None or outcomes["failed"] or ended:
        tell(console.decode(errors="replace"))
    if outcomes is None:
        tell(f"{arguments.name}: {ended or 'the guest died'}; its console is above")
        print(f"{arguments.name}: 0 passed, 1 failed, 0 skipped", flush=True)
        return 1
    for case in outcomes["skipped"]:
        tell(f"{arguments.name}: skipped {case.get('name')}: {skip_reason(case)}")
    for case in outcomes["failed"]:
        tell(f"{arguments.name}: FAILED {case.get('name')}")
    tell(f"{arguments.name}: {seconds:.0f} s")
    print(f"{arguments.name}: " + ", ".join(f"{len(cases)} {outcome}" for outcome, cases in outcomes.items()), flush=True)
    return 1 if outcomes["failed"] or not outcomes["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
