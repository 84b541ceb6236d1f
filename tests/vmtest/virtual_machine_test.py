# SPDX-License-Identifier: Apache-2.0
"""What the runner makes of guests; shells stand in for them."""

import asyncio
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

RUNNER_FOLDER = str(pathlib.Path(__file__).resolve().parents[2] / "vmtest")
sys.path.insert(0, RUNNER_FOLDER)
import virtual_machine  # noqa: E402
from virtual_machine import Guest, judge, read_report  # noqa: E402

REPORT = b"""<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux-c++" tests="4" failures="1" disabled="0" skipped="2">
  <testcase name="a.passes" classname="a.passes" time="0.1" status="run"><system-out>fine</system-out></testcase>
  <testcase name="a.fails" classname="a.fails" time="0.1" status="fail"><failure message="Failed"/></testcase>
  <testcase name="a.skips" classname="a.skips" time="0.1" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>[ RUN      ] a.skips
/src/a_test.cc:31: Skipped
this kernel has no batch calls
on tries

[  SKIPPED ] a.skips (1 ms)</system-out>
  </testcase>
  <testcase name="a.is_missing" classname="a.is_missing" time="0" status="notrun">
    <skipped message="Unable to find executable: a"/></testcase>
</testsuite>"""
ALL_PASS = b'<testsuite><testcase name="a" status="run"/></testsuite>'


# Within which a shell has said something, on a slow machine too; what it then does takes longer by far.
LIMIT = 3


def run_guest(script, **limits):
    return asyncio.run(virtual_machine.run_guest(["/bin/sh", "-c", script], **limits))


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def is_gone(pid):
    status = pathlib.Path(f"/proc/{pid}/status")

    def ended():
        try:
            return "(zombie)" in status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    return wait_until(ended)


class RunGuestTest(unittest.TestCase):
    def test_keeps_report_and_console_apart(self):
        guest = run_guest("echo report; echo console >&2", timeout=60)
        self.assertEqual(guest, Guest(b"report\n", b"console\n"))

    def test_ends_a_guest_that_takes_too_long(self):
        guest = run_guest("while :; do echo busy >&2; sleep 0.1; done", timeout=LIMIT)
        self.assertEqual(guest.ended, f"ended after {LIMIT} s")
        self.assertIn(b"busy", guest.console)

    def test_ends_a_guest_that_is_silent(self):
        guest = run_guest("echo last words >&2; sleep 60", timeout=60, silence=LIMIT)
        self.assertIn("silence", guest.ended)
        self.assertEqual(guest.console, b"last words\n")

    def test_ends_what_the_guest_started(self):
        guest = run_guest("sleep 61 & echo $! ; wait", timeout=LIMIT)
        self.assertTrue(is_gone(int(guest.report)))


class RunnerTest(unittest.TestCase):
    def test_takes_its_guests_along_when_it_is_ended(self):
        program = """
import os, sys, virtual_machine
os.sched_getaffinity = lambda pid: {0, 1}  # one guest each
virtual_machine.virtme_command = lambda image, command: ["/bin/sh", "-c", "sleep 61 & echo $! >" + image + "; wait"]
virtual_machine.main()"""
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder) / name for name in ("a", "b")]
            kernels = [word for file in files for word in ("--kernel", file.name, str(file))]
            runner = subprocess.Popen([sys.executable, "-c", program, *kernels, "--timeout", "60", "true"],
                                      env={"PYTHONPATH": RUNNER_FOLDER}, stderr=subprocess.DEVNULL)
            self.addCleanup(runner.terminate)  # nothing, once it has ended
            self.assertTrue(wait_until(lambda: all(file.exists() and file.read_text() for file in files)))
            runner.terminate()
            self.assertEqual(runner.wait(30), 1)
            for file in files:
                self.assertTrue(is_gone(int(file.read_text())))


class ReportTest(unittest.TestCase):
    def test_counts_every_test_once(self):
        outcomes = read_report(REPORT)
        self.assertEqual(outcomes.passed, ["a.passes"])
        self.assertEqual(outcomes.failed, ["a.fails", "a.is_missing"])
        self.assertEqual(outcomes.skipped, {"a.skips": "this kernel has no batch calls\non tries"})

    def test_one_that_is_cut_off_is_none(self):
        self.assertIsNone(read_report(REPORT[:-20]))
        self.assertIsNone(read_report(b""))


class JudgeTest(unittest.TestCase):
    def judge(self, guest):
        self.shown = []
        return judge("5.10", guest, self.shown.append)

    def test_success_shows_no_console(self):
        self.assertEqual(self.judge(Guest(ALL_PASS, b"console")), ("5.10: 1 passed, 0 failed, 0 skipped", True))
        self.assertEqual(self.shown, [])

    def test_failure_shows_console_failures_and_reasons(self):
        self.assertEqual(self.judge(Guest(REPORT, b"console")), ("5.10: 1 passed, 2 failed, 1 skipped", False))
        self.assertEqual(self.shown[0], "console")
        self.assertIn("5.10: FAILED a.fails", self.shown)
        self.assertIn("5.10: skipped a.skips: this kernel has no batch calls\non tries", self.shown)

    def test_death_is_a_failure(self):
        self.assertEqual(self.judge(Guest(b"", b"panic")), ("5.10: 0 passed, 1 failed, 0 skipped", False))
        self.assertEqual(self.shown[0], "panic")

    def test_hang_after_the_report_is_a_failure_too(self):
        guest = Guest(ALL_PASS, b"console", "ended after 5 s")
        self.assertEqual(self.judge(guest), ("5.10: 1 passed, 1 failed, 0 skipped", False))
        self.assertEqual(self.shown[0], "console")

    def test_nothing_but_skips_is_no_success(self):
        self.assertFalse(self.judge(Guest(b"<testsuite/>", b"console"))[1])


if __name__ == "__main__":
    unittest.main()
