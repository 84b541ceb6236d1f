# SPDX-License-Identifier: Apache-2.0
"""A workload that goes on for a while. MAPGATE_SOAK_SECONDS says for how long; 20 by default, 600 to be sure."""

import os

import harness

SECONDS = int(os.environ.get("MAPGATE_SOAK_SECONDS", "20"))
STORE = "203.0.113.54"
NAME = "bucket.store.test"
TTL, PER_ANSWER, ADDRESSES = 5, 8, 1000
QUERIES_PER_SECOND = 50


class SoakTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.start_servers()
        self.world.spawn([harness.PYTHON, harness.SOURCE / "tests" / "e2e" / "rotating_resolver.py", STORE, str(TTL),
                          str(PER_ANSWER), harness.many_address(0), str(ADDRESSES)], cgroup="servers",
                         log=self.world.folder / "store.log")
        harness.wait_until(lambda: harness.answers(STORE), "the store's resolver answers")
        self.world.set_resolvers(STORE)

    def test_names_with_many_addresses_of_short_life_connect_every_time(self):
        spec = harness.workload_spec([harness.allow_names("*.store.test")])
        # As short as the answers: all the time addresses come, expire, and come again.
        self.world.daemon.start(spec={**spec, "node": {"dns": {"minTTL": f"{TTL}s", "grace": "1s"}}})
        before = self.world.counters("TCPSynRetrans")
        result = self.world.agent().resolve_and_connect_at(NAME, harness.HTTP, QUERIES_PER_SECOND, SECONDS)
        self.assertEqual({"ok": QUERIES_PER_SECOND * SECONDS}, result["outcomes"])
        self.assertEqual(before, self.world.counters("TCPSynRetrans"))
        names = self.world.daemon.status()["names"]
        self.assertGreater(names["expired"], 0)
        self.assertLessEqual(names["addresses"], ADDRESSES)
        harness.wait_until(lambda: self.world.daemon.kernel_addresses() == [], "all of them expire", timeout=30)


if __name__ == "__main__":
    harness.main()
