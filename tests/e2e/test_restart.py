# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed and started again while a workload works."""

import harness

NAMES = 200


class RestartTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        for index in range(NAMES):
            self.world.resolver.add(f"n{index}.many.test", f"A {harness.many_address(index)}", ttl=600)
        self.world.resolver.add("fresh.many.test", "A 192.0.2.20")
        self.world.resolver.publish()
        self.world.start_servers()
        self.daemon = self.world.daemon
        self.daemon.start(spec=harness.workload_spec(
            [harness.allow_names("*.many.test", ports=((80, "TCP"), (7, "TCP")))]))
        self.agent = self.world.agent()
        names = [f"n{index}.many.test" for index in range(NAMES)]
        self.assertEqual({0}, set(self.agent.ask_each(names, harness.RESOLVER)["rcodes"].values()))
        self.agent.connect("n0.many.test", harness.ECHO, keep="open")

    def assert_enforced(self):
        self.assertEqual("ping", self.agent.talk("open")["echo"])
        self.assertEqual("ok", self.agent.connect(harness.many_address(1), 80)["outcome"])
        self.assertEqual("EPERM", self.agent.connect(harness.NEVER_RESOLVED, 80)["outcome"])
        self.assertEqual("EPERM", self.agent.connect(harness.many_address(1), 443)["outcome"])

    def test_enforcement_outlives_a_killed_daemon(self):
        self.daemon.kill()
        self.assert_enforced()

    def links(self):
        return sorted(str(path) for path in (self.daemon.bpffs / "links").rglob("*"))

    def test_a_new_daemon_adopts_what_the_kernel_has_and_rewrites_nothing(self):
        addresses, links = self.daemon.kernel_addresses(), self.links()
        self.assertEqual(NAMES, len(addresses))
        # What was learned is on disk at most a second later.
        harness.wait_until(lambda: self.daemon.status()["store"]["queued"] == 0, "the learned addresses are saved")
        self.daemon.kill()
        self.assert_enforced()
        self.daemon.start()
        self.assertEqual(addresses, self.daemon.kernel_addresses())
        self.assertEqual(links, self.links())
        rows = self.daemon.status()["rows"]["done"]
        reconciler = self.daemon.status()["reconciler"]
        self.assertEqual({"writes": 0, "deletes": 0, "adopted": rows, "repaired": 0, "removed": 0},
                         {key: reconciler[key] for key in ("writes", "deletes", "adopted", "repaired", "removed")})
        self.assert_enforced()
        self.assertEqual("ok", self.agent.connect("fresh.many.test", 80)["outcome"])

    def test_connections_never_fail_through_ten_kills(self):
        other = self.world.agent()
        seconds = 8
        self.agent.begin("connect_repeatedly", harness.many_address(3), 80, seconds)
        other.begin("connect_repeatedly", harness.NEVER_RESOLVED, 80, seconds)
        for _ in range(10):
            self.daemon.kill()
            self.daemon.start()
        self.assertEqual(["ok"], list(self.agent.result()["outcomes"]))
        self.assertEqual(["EPERM"], list(other.result()["outcomes"]))
        self.assert_enforced()

    def test_a_daemon_told_to_stop_leaves_enforcement_in_place(self):
        self.assertEqual(0, self.daemon.stop())
        self.assert_enforced()


if __name__ == "__main__":
    harness.main()
