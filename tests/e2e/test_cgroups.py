# SPDX-License-Identifier: Apache-2.0
"""Workloads whose cgroup comes, goes and comes again."""

import harness

ALLOWED = "192.0.2.10"
FORBIDDEN = "203.0.113.9"


class CgroupTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.start_servers()
        self.world.daemon.start(cgroups=(), spec=harness.workload_spec(
            [harness.allow_networks("192.0.2.0/24")], cgroup="/late/web"))

    def assert_covered(self):
        self.wait_for_state("enforced")
        agent = self.world.agent("late/web")
        self.assertEqual("ok", agent.connect(ALLOWED, 80)["outcome"])
        self.assertEqual("EPERM", agent.connect(FORBIDDEN, 80)["outcome"])

    def wait_for_state(self, expected):
        harness.wait_until(lambda: self.world.daemon.workload()["state"] == expected, f"status says {expected}")

    def test_a_workload_waits_for_its_cgroup_and_is_covered_when_it_appears(self):
        self.assertEqual("waiting", self.world.daemon.workload()["state"])
        self.world.cgroups.child("late/web")
        self.assert_covered()

    def test_a_cgroup_that_goes_and_comes_back_is_covered_again(self):
        for _ in range(3):
            self.world.cgroups.child("late/web")
            self.assert_covered()
            self.world.cgroups.remove_child("late")
            self.wait_for_state("waiting")

    def test_another_cgroup_is_left_alone(self):
        self.world.cgroups.child("late/web")
        self.wait_for_state("enforced")
        self.assertEqual("ok", self.world.agent("late/other").connect(FORBIDDEN, 80)["outcome"])


if __name__ == "__main__":
    harness.main()
