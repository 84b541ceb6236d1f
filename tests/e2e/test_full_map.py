# SPDX-License-Identifier: Apache-2.0
"""Rows that the kernel does not take: a map that is full, and a row that always fails."""

import harness
from dns_message import NOERROR, SERVFAIL

CAPACITY = 64
DEADLINE = 0.5  # of a held answer; the default of 1 s only makes the test longer
FAILING = "192.0.2.7"


def names(prefix, count, zone):
    return [f"{prefix}{index}.{zone}" for index in range(count)]


class FullMapTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.first, self.second = names("n", 40, "first.test"), names("n", 40, "second.test")
        for index, name in enumerate(self.first + self.second):
            self.world.resolver.add(name, f"A {harness.many_address(index)}", ttl=1)
        self.world.resolver.publish()
        self.world.start_servers()
        self.daemon = self.world.daemon

    def spec(self, patterns, **dns):
        spec = harness.workload_spec([harness.allow_names(*patterns)])
        spec["node"] = {"maps": {"addresses": CAPACITY}, "dns": {"gateDeadline": f"{DEADLINE * 1000:.0f}ms", **dns}}
        return spec

    def start(self, **dns):
        self.daemon.start(spec=self.spec(["*.first.test", "*.second.test"], **dns))
        self.agent = self.world.agent()

    def fill(self):
        """Asks for 80 names, of which 64 fit; returns the names that did not."""
        rcodes = self.agent.ask_each(self.first + self.second, harness.RESOLVER)["rcodes"]
        refused = [name for name, rcode in rcodes.items() if rcode == SERVFAIL]
        self.assertEqual(len(self.first + self.second) - CAPACITY, len(refused))
        self.assertEqual({NOERROR, SERVFAIL}, set(rcodes.values()))
        return refused

    def address(self, name):
        return harness.many_address((self.first + self.second).index(name))

    def test_names_that_fit_work_and_the_others_say_that_the_map_is_full(self):
        self.start()
        refused = self.fill()
        full = {row["address"] for row in self.daemon.failing_rows() if "map full" in row["error"]["text"]}
        self.assertEqual({self.address(name) for name in refused}, full)
        self.assertEqual(len(refused), len(self.daemon.failing_rows()))
        fits = [name for name in self.first + self.second if name not in refused]
        for name in (fits[0], fits[-1]):
            self.assertEqual("ok", self.agent.connect(self.address(name), 80)["outcome"])
        self.assertEqual("EPERM", self.agent.connect(self.address(refused[0]), 80)["outcome"])
        # Answers whose rows are there wait for nobody: at the deadline they would be SERVFAIL.
        again = self.agent.ask_each(fits, harness.RESOLVER)
        self.assertEqual({NOERROR}, set(again["rcodes"].values()))

    def test_parked_rows_get_in_when_names_are_removed(self):
        self.start()
        refused = self.fill()
        self.daemon.reload(self.spec(["*.second.test"]))
        harness.wait_until(lambda: not self.daemon.failing_rows(), "no row fails")
        for name in refused:
            self.assertEqual("ok", self.agent.connect(self.address(name), 80)["outcome"])

    def test_parked_rows_get_in_when_names_expire(self):
        self.start(minTTL="12s", grace="1s")
        refused = self.fill()
        # Asked for once more, the parked names expire later than those that are in their way.
        self.agent.ask_each(refused, harness.RESOLVER)
        harness.wait_until(lambda: not self.daemon.failing_rows(), "no row fails")
        self.assertLessEqual(set(map(self.address, refused)), set(self.daemon.kernel_addresses()))


class FailingRowTest(harness.WorldTest):
    def test_a_row_that_always_fails_holds_up_no_other_name(self):
        good = names("n", 1000, "good.test")
        for index, name in enumerate(good):
            self.world.resolver.add(name, f"A {harness.many_address(index)}")
        self.world.resolver.add("bad.test", f"A {FAILING}")
        self.world.resolver.publish()
        daemon = self.world.daemon
        daemon.start("--fault-inject", f"fail-address={FAILING}",
                     spec=harness.workload_spec([harness.allow_names("*.good.test", "bad.test")]))
        unlucky, agent = self.world.agent(), self.world.agent()
        self.assertEqual(SERVFAIL, unlucky.ask("bad.test", harness.RESOLVER)["rcode"])
        unlucky.begin("ask_each", ["bad.test"] * 3, harness.RESOLVER)
        asked = agent.ask_each(good, harness.RESOLVER)
        self.assertEqual({NOERROR}, set(asked["rcodes"].values()))
        self.assertEqual({SERVFAIL}, set(unlucky.result()["rcodes"].values()))
        failing = daemon.failing_rows()
        self.assertEqual([FAILING], [row["address"] for row in failing])
        self.assertEqual(set(map(harness.many_address, range(len(good)))), set(daemon.kernel_addresses()))


if __name__ == "__main__":
    harness.main()
