# SPDX-License-Identifier: Apache-2.0
"""A spec that changes while a workload works."""

import time

import harness
from dns_message import REFUSED

SERVER = "192.0.2.10"
NEVER = "203.0.113.9"


class ReloadTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.start_servers()

    def test_what_old_and_new_spec_allow_never_fails_and_what_neither_allows_never_passes(self):
        # The second spec gives the same address another prefix, another port set and another neighbour, so the
        # reload has to add rows, narrow values and remove rows.
        first = harness.workload_spec([harness.allow_networks("192.0.2.0/24", "198.51.100.0/24")])
        second = harness.workload_spec([
            harness.allow_networks("192.0.2.8/29"),
            {"toCIDRSet": [{"cidr": "192.0.0.0/16", "except": ["192.0.2.0/24"]}],
             "toPorts": [{"port": 443, "protocol": "TCP"}]},
        ])
        daemon = self.world.daemon
        daemon.start(spec=first)
        allowed, forbidden = self.world.agent(), self.world.agent()
        seconds, reloads = 6, 30
        allowed.begin("connect_repeatedly", SERVER, 80, seconds)
        forbidden.begin("connect_repeatedly", NEVER, 80, seconds)
        before = self.world.counters("TCPSynRetrans")
        for turn in range(reloads):
            daemon.reload(second if turn % 2 == 0 else first)
            time.sleep(seconds / (reloads + 2))
        self.assertEqual(["ok"], list(allowed.result()["outcomes"]))
        self.assertEqual(["EPERM"], list(forbidden.result()["outcomes"]))
        self.assertEqual(before, self.world.counters("TCPSynRetrans"))

    def test_a_reload_ends_with_exactly_the_new_spec(self):
        daemon = self.world.daemon
        daemon.start(spec=harness.workload_spec([harness.allow_networks("192.0.2.0/24")]))
        agent = self.world.agent()
        self.assertEqual("ok", agent.connect(SERVER, 80)["outcome"])
        daemon.reload(harness.workload_spec([harness.allow_networks("203.0.113.0/24")]))
        harness.wait_until(lambda: agent.connect(NEVER, 80)["outcome"] == "ok", "the new network is open")
        harness.wait_until(lambda: agent.connect(SERVER, 80)["outcome"] == "EPERM", "the old network is closed")

    def test_a_name_that_leaves_the_spec_takes_its_addresses_along(self):
        self.world.resolver.add("stays.test", "A 192.0.2.10")
        self.world.resolver.add("goes.test", "A 192.0.2.11")
        self.world.resolver.publish()
        daemon = self.world.daemon
        daemon.start(spec=harness.workload_spec([harness.allow_names("stays.test", "goes.test")]))
        agent = self.world.agent()
        for name in ("stays.test", "goes.test"):
            self.assertEqual("ok", agent.connect(name, 80)["outcome"])
        daemon.reload(harness.workload_spec([harness.allow_names("stays.test")]))
        harness.wait_until(lambda: daemon.kernel_addresses() == ["192.0.2.10"], "the row is gone from the map")
        self.assertEqual("EPERM", agent.connect("192.0.2.11", 80)["outcome"])
        self.assertEqual("ok", agent.connect("192.0.2.10", 80)["outcome"])
        self.assertEqual(REFUSED, agent.ask("goes.test", harness.RESOLVER)["rcode"])

    def test_a_bad_spec_changes_nothing_and_says_why(self):
        daemon = self.world.daemon
        daemon.start(spec=harness.workload_spec([harness.allow_networks("192.0.2.0/24")]))
        agent = self.world.agent()
        revision = daemon.status()["revision"]
        daemon.reload('{"formatVersion": 1, "policy": {"workloads": [{"name": "web", "colour": "red"}]}}')
        harness.wait_until(lambda: daemon.status()["spec"]["state"] == "rejected", "status says that it was refused")
        faults = daemon.status()["spec"]["errors"]
        self.assertEqual(str(daemon.spec), faults[0]["file"])
        self.assertIn("/policy/workloads/0/colour", [fault["pointer"] for fault in faults])
        self.assertEqual(revision, daemon.status()["revision"])
        self.assertEqual("ok", agent.connect(SERVER, 80)["outcome"])
        self.assertEqual("EPERM", agent.connect(NEVER, 80)["outcome"])


if __name__ == "__main__":
    harness.main()
