# SPDX-License-Identifier: Apache-2.0
"""What the runner makes of guests; shells stand in for them."""

import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "vmtest"))
from virtual_machine import Guest, judge, read_report, run_guest  # noqa: E402

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


def shell(script):
    return ["/bin/sh", "-c", script]


class RunGuestTest(unittest.TestCase):
    def test_keeps_report_and_console_apart(self):
        guest = run_guest(shell("echo report; echo console >&2"), timeout=60)
        self.assertEqual(guest, Guest(b"report\n", b"console\n"))

    def test_ends_a_guest_that_takes_too_long(self):
        guest = run_guest(shell("while :; do echo busy >&2; sleep 0.1; done"), timeout=0.5)
        self.assertIn("ended after", guest.ended)
        self.assertIn(b"busy", guest.console)

    def test_ends_a_guest_that_is_silent(self):
        guest = run_guest(shell("echo last words >&2; sleep 60"), timeout=60, silence=0.5)
        self.assertIn("silence", guest.ended)
        self.assertEqual(guest.console, b"last words\n")

    def test_ends_what_the_guest_started(self):
        started = time.monotonic()
        guest = run_guest(shell("sleep 61 & echo $! ; wait"), timeout=0.5)
        # The pipes close only when the last holder of them is gone.
        self.assertLess(time.monotonic() - started, 30)
        status = pathlib.Path(f"/proc/{int(guest.report)}/status")
        self.assertTrue(not status.exists() or "Z (zombie)" in status.read_text())


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
