# SPDX-License-Identifier: Apache-2.0
"""Resolvers that misbehave, and resolvers that may not be asked; see docs/dns.md."""

import time

import harness
from dns_message import NOERROR, NXDOMAIN, REFUSED, SERVFAIL

ODD = "203.0.113.53"
TRUE_ADDRESS = "192.0.2.10"
UPSTREAM_TIMEOUT = 1.0


class OddResolverTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        spec = harness.workload_spec([harness.allow_names("*.odd.test")], resolvers=[ODD])
        spec["node"] = {"dns": {"upstreamTimeout": f"{int(UPSTREAM_TIMEOUT * 1000)}ms"}}
        self.world.daemon.start(spec=spec)
        self.agent = self.world.agent()
        self.resolver = None
        self.start_resolver()

    def start_resolver(self):
        self.resolver = self.world.spawn(
            [harness.PYTHON, harness.SOURCE / "tests" / "e2e" / "odd_resolver.py", ODD], cgroup="servers",
            log=self.world.folder / "odd.log")
        harness.wait_until(lambda: self.ask("ready", timeout=0.5).get("rcode") == NOERROR, "the odd resolver answers")

    def ask(self, what, **options):
        return self.agent.ask(f"{what}.odd.test", ODD, **options)

    def counters(self):
        return self.world.daemon.status()["dns"]

    def assert_counted(self, what, counter, expected, **options):
        """Asks for a name that means this fault; `expected` of the answer, and the one counter that counts it."""
        before = self.counters()[counter]
        answer = self.ask(what, **options)
        self.assertEqual(expected, {key: answer.get(key) for key in expected})
        harness.wait_until(lambda: self.counters()[counter] > before, f"{counter} counts {what}")

    def test_each_false_answer_is_dropped_and_counted_and_the_true_one_taken(self):
        true = {"outcome": "ok", "rcode": NOERROR, "addresses": [TRUE_ADDRESS]}
        for what, counter in (("wrong-id", "answers_unmatched"), ("wrong-question", "answers_wrong_question"),
                              ("query", "answers_wrong_question"), ("garbage", "answers_wrong_question"),
                              ("cut", "answers_malformed"), ("twice", "answers_unmatched")):
            for tcp in (False, True) if what != "twice" else (False,):
                with self.subTest(what, tcp=tcp):
                    self.assert_counted(what, counter, true, tcp=tcp)
        # What the false answers carried was not learned.
        self.assertEqual([TRUE_ADDRESS], self.world.daemon.kernel_addresses())

    def test_a_spoofed_answer_does_not_get_past_the_kernel(self):
        self.assertEqual([TRUE_ADDRESS], self.ask("spoofed")["addresses"])
        self.assertEqual([TRUE_ADDRESS], self.world.daemon.kernel_addresses())

    def test_an_answer_in_pieces_is_put_together(self):
        self.assertEqual([TRUE_ADDRESS], self.ask("pieces", tcp=True)["addresses"])

    def test_a_servfail_is_passed_on(self):
        self.assert_counted("servfail", "answers_servfail", {"outcome": "ok", "rcode": SERVFAIL})

    def test_a_connection_that_is_closed_without_an_answer_is_a_servfail(self):
        self.assert_counted("closes", "upstream_failures", {"outcome": "ok", "rcode": SERVFAIL}, tcp=True)

    def test_a_resolver_that_is_silent_is_given_up_after_the_timeout_of_the_spec(self):
        before = self.counters()["upstream_timeouts"]
        self.agent.begin("ask", "silent.odd.test", ODD, timeout=2 * UPSTREAM_TIMEOUT)
        started = time.monotonic()
        harness.wait_until(lambda: self.counters()["upstream_timeouts"] > before, "the query is given up")
        self.assertGreater(time.monotonic() - started, UPSTREAM_TIMEOUT / 2)
        self.assertEqual("timeout", self.agent.result()["outcome"])

    def test_a_resolver_that_dies_gives_servfail_at_once_and_answers_again_when_it_returns(self):
        self.resolver.kill()
        self.resolver.wait()
        for tcp in (False, True):
            self.assert_counted("a", "upstream_failures", {"outcome": "ok", "rcode": SERVFAIL}, tcp=tcp)
        self.start_resolver()
        for tcp in (False, True):
            self.assertEqual([TRUE_ADDRESS], self.ask("b", tcp=tcp)["addresses"])


class PolicyTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.resolver.add("good.test", f"A {TRUE_ADDRESS}")
        self.world.resolver.add("only.test", "A 192.0.2.20")
        self.world.resolver.publish()
        self.world.start_servers()
        self.daemon = self.world.daemon

    def start(self, egress=None, **more):
        self.daemon.start(spec=harness.workload_spec(egress or [harness.allow_names("good.test")], **more))
        return self.world.agent()

    def test_a_resolver_that_is_not_listed_is_refused_logged_and_opens_nothing(self):
        # The same nsd, at an address that the node does not use.
        self.world.spawn([harness.PYTHON, harness.SOURCE / "tests" / "e2e" / "odd_resolver.py", ODD], cgroup="servers")
        agent = self.start()
        for tcp in (False, True):
            self.assertEqual(REFUSED, agent.ask("good.test", ODD, tcp=tcp)["rcode"])
        self.assertEqual([], self.daemon.kernel_addresses())
        self.assertEqual(2, self.daemon.status()["dns"]["resolvers_refused"])
        self.assertEqual(2, self.daemon.workload()["denied"]["queries"])
        self.assertIn(f"web: denied DNS query for good.test to {ODD}: the resolver is none of the workload's resolvers",
                      self.daemon.log_text())
        for resolver in (harness.RESOLVER, harness.RESOLVER_V6, harness.STUB):
            self.assertEqual(NOERROR, agent.ask("good.test", resolver)["rcode"])

    def test_a_denied_name_is_answered_as_the_spec_says(self):
        agent = self.start(onDeniedName="nxdomain")
        self.assertEqual(NXDOMAIN, agent.ask("evil.test", harness.RESOLVER)["rcode"])
        done = self.world.run("dig", "+tries=1", f"@{harness.RESOLVER}", "evil.test", cgroup="web")
        self.assertIn("status: NXDOMAIN", done.stdout)
        self.assertRegex(done.stdout, r"\.\s+5\s+IN\s+SOA\s+mapgate\.invalid\.")
        self.assertNotIn("malformed", done.stdout)
        self.assertIn("web: denied DNS query for evil.test to 192.0.2.53: no rule has the name", self.daemon.log_text())
        self.daemon.reload(harness.workload_spec([harness.allow_names("good.test")], onDeniedName="drop"))
        harness.wait_until(lambda: agent.ask("evil.test", harness.RESOLVER, timeout=0.3)["outcome"] == "timeout",
                           "denied names are dropped")
        self.assertEqual(NOERROR, agent.ask("good.test", harness.RESOLVER)["rcode"])

    def test_a_dns_entry_resolves_and_opens_nothing(self):
        agent = self.start(dns=[{"matchPattern": "on*y.test"}])
        self.assertEqual(["192.0.2.20"], agent.ask("only.test", harness.RESOLVER)["addresses"])
        self.assertEqual("EPERM", agent.connect("192.0.2.20", harness.HTTP)["outcome"])
        self.assertEqual([], self.daemon.kernel_addresses())

    def test_dns_over_tls_is_closed_unless_a_rule_names_its_port(self):
        everything = {"toCIDR": ["192.0.2.0/24"]}
        agent = self.start([everything])
        self.assertEqual("ok", agent.connect(TRUE_ADDRESS, harness.HTTP)["outcome"])
        self.assertEqual("EPERM", agent.connect(TRUE_ADDRESS, 853)["outcome"])
        self.assertEqual("EPERM", agent.send_udp(TRUE_ADDRESS, 853)["outcome"])
        self.assertEqual("EPERM", agent.connect("127.0.0.1", 853)["outcome"])
        harness.wait_until(lambda: "none names port 853" in self.daemon.log_text(), "the log says why")
        self.daemon.reload(harness.workload_spec(
            [everything, harness.allow_networks("192.0.2.0/24", ports=((853, "TCP"),))]))
        harness.wait_until(lambda: agent.connect(TRUE_ADDRESS, 853)["outcome"] == "ECONNREFUSED",
                           "the port is open, and nobody listens")

    def test_gates_lists_what_is_held_and_for_which_row(self):
        spec = harness.workload_spec([harness.allow_names("good.test")])
        spec["node"] = {"dns": {"gateDeadline": "2s"}}
        self.daemon.start("--fault-inject", f"fail-address={TRUE_ADDRESS}", spec=spec)
        agent = self.world.agent()
        agent.begin("ask", "good.test", harness.RESOLVER, timeout=5)
        gates = harness.wait_until(lambda: [gate for gate in self.daemon.json("gates")["gates"]
                                            if gate["rows"] and gate["rows"][0]["error"]], "the answer is held")
        (gate,) = gates
        self.assertEqual(("web", "good.test"), (gate["workload"], gate["name"]))
        self.assertEqual(["mg_addresses", TRUE_ADDRESS], [gate["rows"][0][key] for key in ("map", "key")])
        self.assertIn("fault injected", gate["rows"][0]["error"]["text"])
        self.assertLessEqual(gate["held_ms"] + gate["deadline_ms"], 2000)
        table = self.daemon.ctl("gates", "--workload", "web").stdout
        self.assertRegex(table, rf"web +good\.test .*{TRUE_ADDRESS}.*fault injected")
        self.assertEqual(SERVFAIL, agent.result()["rcode"])
        self.assertEqual([], self.daemon.json("gates")["gates"])
        times = self.daemon.status()["answer_times"]
        self.assertEqual([1, 1, 0, 0], [times[part]["count"] for part in ("upstream", "table", "kernel", "release")])


if __name__ == "__main__":
    harness.main()
