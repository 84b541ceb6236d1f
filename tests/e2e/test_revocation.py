# SPDX-License-Identifier: Apache-2.0
"""Connections that a change of the spec forbids."""

import harness

STAYS, GOES = "stays.test", "goes.test"


class RevocationTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.start_servers()
        self.world.resolver.add(STAYS, "A 192.0.2.10", ttl=1)
        self.world.resolver.add(GOES, "A 192.0.2.11", ttl=1)
        self.world.resolver.publish()
        self.daemon = self.world.daemon

    def spec(self, *names, min_ttl="60s", **more):
        spec = harness.workload_spec([harness.allow_names(*names, ports=((harness.ECHO, "TCP"),))], **more)
        return {**spec, "node": {"dns": {"minTTL": min_ttl, "grace": "0s"}}}

    def reload(self, spec):
        self.daemon.write_spec(spec)
        self.daemon.ctl("reload")

    def connected_agent(self, cgroup="web"):
        agent = self.world.agent(cgroup)
        for name in (STAYS, GOES):
            self.assertEqual("ok", agent.connect(name, harness.ECHO, keep=name)["outcome"])
        return agent

    def talks(self, agent, name):
        return agent.talk(name)["outcome"]

    def test_destroy_ends_exactly_those_that_the_new_spec_forbids_and_says_which(self):
        self.daemon.start(spec=self.spec(STAYS, GOES, onRevoke="destroy"))
        agent, child = self.connected_agent(), self.connected_agent("web/child")
        outsider = self.connected_agent("servers")
        self.reload(self.spec(STAYS, onRevoke="destroy"))
        for each in (agent, child):
            self.assertEqual("ECONNABORTED", self.talks(each, GOES))
            self.assertEqual("ok", self.talks(each, STAYS))
        self.assertEqual("ok", self.talks(outsider, GOES))
        ended = self.daemon.status()["connections"]
        self.assertEqual((2, 0), (ended["ended"], ended["failed"]))
        for line in ended["recent"]:
            self.assertIn(f"to 192.0.2.11:{harness.ECHO}: ended, the policy forbids it", line)
            self.assertIn(line, self.daemon.log_text())

    def test_keep_lets_them_be(self):
        self.daemon.start(spec=self.spec(STAYS, GOES, onRevoke="keep"))
        agent = self.connected_agent()
        self.reload(self.spec(STAYS, onRevoke="keep"))
        self.assertEqual("ok", self.talks(agent, GOES))
        self.assertEqual("EPERM", agent.connect("192.0.2.11", harness.ECHO)["outcome"])

    def test_one_whose_address_has_expired_ends_with_its_name_and_not_before(self):
        self.daemon.start(spec=self.spec(STAYS, GOES, min_ttl="1s", onRevoke="destroy"))
        agent = self.connected_agent()
        harness.wait_until(lambda: self.daemon.kernel_addresses() == [], "the addresses expire")
        self.reload(self.spec(GOES, STAYS, "new.test", min_ttl="1s", onRevoke="destroy"))
        self.assertEqual(["ok", "ok"], [self.talks(agent, name) for name in (STAYS, GOES)])
        self.reload(self.spec(STAYS, "new.test", min_ttl="1s", onRevoke="destroy"))
        self.assertEqual(["ok", "ECONNABORTED"], [self.talks(agent, name) for name in (STAYS, GOES)])

    def test_a_connection_that_others_began_is_not_ended(self):
        anywhere = [{"toCIDR": ["127.0.0.0/8"]}]
        self.daemon.start(spec=harness.workload_spec(anywhere, name="server", cgroup="/servers", allowLoopback=False,
                                                     onRevoke="destroy"), cgroups=("servers",))
        client = self.world.agent("elsewhere")
        client.connect("127.0.0.1", harness.ECHO, keep="open")
        self.reload(harness.workload_spec([harness.allow_networks("203.0.113.0/24")], name="server",
                                          cgroup="/servers", allowLoopback=False, onRevoke="destroy"))
        self.assertEqual("ok", self.talks(client, "open"))
        self.assertEqual(0, self.daemon.status()["connections"]["ended"])


if __name__ == "__main__":
    harness.main()
