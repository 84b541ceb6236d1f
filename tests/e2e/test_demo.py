# SPDX-License-Identifier: Apache-2.0
"""scripts/demo: what its last line says, and that nothing of it stays behind."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import harness
import isolation


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.scratch = self.enterContext(tempfile.TemporaryDirectory(prefix="mapgate-demo-"))

    def start(self, *arguments):
        return subprocess.Popen([harness.PYTHON, harness.SOURCE / "tests" / "e2e" / "demo.py", *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "TMPDIR": self.scratch})

    def assert_nothing_left_of(self, demo):
        mounts = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        self.assertEqual([], [line for line in mounts if self.scratch in line])
        self.assertEqual([], list(pathlib.Path(self.scratch).iterdir()))
        hierarchies = [pathlib.Path(line.split()[1]) for line in mounts if line.split()[2] == "cgroup2"]
        self.assertEqual([], [path for top in hierarchies
                              for path in top.glob(f"{isolation.CgroupTree.PREFIX}-{demo.pid}-*")])
        self.assertEqual([], self.processes_that_mention(self.scratch))

    @staticmethod
    def processes_that_mention(text):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if text.encode() in path.read_bytes():
                    found.append(path.parent.name)
        return found

    def test_the_demo_ends_well_and_its_times_are_in_order(self):
        demo = self.start("--json")
        output, errors = demo.communicate(timeout=120)
        self.assertEqual(0, demo.returncode, output + errors)
        result = json.loads(output.splitlines()[-1])
        self.assertEqual({"revision", "commit_us", "map_us", "release_us", "allowed", "denied", "revoked"}, set(result))
        self.assertGreater(result["revision"], 0)
        self.assertLess(result["commit_us"], result["map_us"])
        self.assertLess(result["map_us"], result["release_us"])
        self.assertEqual((True, "EPERM", True), (result["allowed"], result["denied"], result["revoked"]))
        self.assert_nothing_left_of(demo)

    def test_a_demo_that_is_ended_early_leaves_nothing(self):
        for seconds in (0.1, 0.4, 0.8, 1.2, 1.6):
            demo = self.start()
            time.sleep(seconds)
            demo.send_signal(signal.SIGTERM)
            _, errors = demo.communicate(timeout=30)
            self.assertEqual("", errors)
            self.assert_nothing_left_of(demo)


if __name__ == "__main__":
    harness.main()
