# SPDX-License-Identifier: Apache-2.0
"""Clients that people use, and the resolver addresses that they ask."""

import json

import harness
from dns_message import AAAA, NOERROR, REFUSED

NAME = "api.clients.test"
ADDRESS, ADDRESS_V6 = "192.0.2.10", "2001:db8:1::10"
RESOLVERS = (harness.RESOLVER, harness.RESOLVER_V6, harness.STUB)


class ClientTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        resolver = self.world.resolver
        resolver.add(NAME, f"A {ADDRESS}", f"AAAA {ADDRESS_V6}")
        resolver.add("alias.clients.test", "CNAME middle.elsewhere.test.")
        resolver.add("middle.elsewhere.test", "CNAME end.elsewhere.test.")
        resolver.add("end.elsewhere.test", "A 192.0.2.20")
        resolver.add("many.clients.test", *(f"A {harness.many_address(index)}" for index in range(200)))
        resolver.add("secret.test", "A 192.0.2.30")
        resolver.publish()
        self.world.start_servers()
        self.world.daemon.start(spec=harness.workload_spec([harness.allow_names("*.clients.test")]))

    def in_workload(self, *command, **options):
        return self.world.run(*command, cgroup="web", **options)

    def test_dig_sees_the_resolver_it_asked(self):
        for resolver in RESOLVERS:
            for transport in ("+notcp", "+tcp"):
                with self.subTest(resolver=resolver, transport=transport):
                    done = self.in_workload("dig", "+tries=1", transport, f"@{resolver}", NAME, "A")
                    self.assertIn(ADDRESS, done.stdout)
                    self.assertIn(f"SERVER: {resolver}#53", done.stdout)

    def test_kdig_sees_the_resolver_it_asked(self):
        for resolver in RESOLVERS:
            for transport in ("+notcp", "+tcp"):
                with self.subTest(resolver=resolver, transport=transport):
                    done = self.in_workload("kdig", "+retry=0", transport, f"@{resolver}", NAME, "AAAA")
                    self.assertIn(ADDRESS_V6, done.stdout)
                    self.assertIn(f"From {resolver}@53", done.stdout)

    def test_musl_asks_for_both_families_and_reaches_every_address(self):
        names = [NAME, "alias.clients.test"]
        done = self.in_workload(harness.binary("musl_client"), harness.HTTP, *names)
        self.assertEqual([f"{NAME} ok {ADDRESS} {ADDRESS_V6}", "alias.clients.test ok 192.0.2.20"],
                         [" ".join([*line.split()[:2], *sorted(line.split()[2:])]) for line in
                          done.stdout.splitlines()])
        refused = self.in_workload(harness.binary("musl_client"), harness.HTTP, "secret.test", check=False)
        self.assertEqual(1, refused.returncode)
        self.assertNotIn("ok", refused.stdout)

    def test_nodes_own_resolver_and_that_of_the_c_library(self):
        script = '''
            const dns = require("node:dns").promises, net = require("node:net");
            const reach = (host) => new Promise((done, failed) => {
              const client = net.connect(80, host, () => { client.destroy(); done(host); }).on("error", failed);
            });
            (async () => {
              const name = process.argv[1];
              const addresses = [...await dns.resolve4(name), ...await dns.resolve6(name),
                                 (await dns.lookup(name)).address];
              console.log(JSON.stringify(await Promise.all(addresses.map(reach))));
            })();
        '''
        done = self.in_workload("node", "-e", script, NAME)
        self.assertEqual({ADDRESS, ADDRESS_V6}, set(json.loads(done.stdout)))

    def test_dnsperf_loses_no_query_over_udp_or_tcp(self):
        queries = self.world.folder / "queries"
        queries.write_text(f"{NAME} A\n{NAME} AAAA\nmany.clients.test A\n" * 500)
        for mode in ("udp", "tcp"):
            with self.subTest(mode):
                done = self.in_workload("dnsperf", "-m", mode, "-s", harness.RESOLVER, "-d", queries, "-n", "2", "-c",
                                        "8", "-q", "64", "-t", "5")
                self.assertRegex(done.stdout, r"Queries completed:\s+3000 \(100.00%\)")
                self.assertRegex(done.stdout, r"Response codes:\s+NOERROR 3000 \(100.00%\)")

    def test_a_name_is_completed_from_the_search_list(self):
        # C libraries stop at a name that is REFUSED: the domains that the workload may ask for come first.
        self.world.set_resolvers(harness.RESOLVER, more=["search clients.test elsewhere.test"])
        agent = self.world.agent()
        self.assertEqual(sorted([ADDRESS, ADDRESS_V6]), sorted(agent.resolve("api")["addresses"]))
        self.assertEqual("ok", agent.connect("api", harness.HTTP)["outcome"])

    def test_dig_without_a_connected_socket_and_with_odd_spelling(self):
        done = self.in_workload("dig", "+tries=1", "+noedns", "+qid=4711", f"@{harness.RESOLVER}", "ApI.cLiEnTs.TeSt", "A")
        self.assertIn("ApI.cLiEnTs.TeSt", done.stdout)
        self.assertIn("id: 4711", done.stdout)
        self.assertIn(ADDRESS, done.stdout)

    def test_the_proxy_is_not_seen_by_an_unconnected_socket(self):
        agent = self.world.agent()
        for resolver in RESOLVERS:
            answer = agent.ask(NAME, resolver)
            self.assertEqual(resolver, answer["source"])
            answer = agent.ask(NAME, resolver, tcp=True)
            self.assertEqual(resolver, answer["source"])

    def test_curl_connects_over_both_families(self):
        for family in ("-4", "-6"):
            done = self.in_workload("curl", family, "--silent", "--show-error", "--max-time", "5", f"http://{NAME}/")
            self.assertEqual("hello from the world\n", done.stdout)

    def test_curl_to_a_forbidden_port_or_address_is_refused_at_once(self):
        for url in (f"http://{NAME}:443/", f"http://{harness.NEVER_RESOLVED}/"):
            done = self.in_workload("curl", "--silent", "--show-error", "--max-time", "5", url, check=False)
            self.assertEqual(7, done.returncode, done.stderr)

    def test_a_name_that_no_rule_matches_is_refused(self):
        agent = self.world.agent()
        for name in ("secret.test", "clients.test", "a.b.clients.test"):
            for tcp in (False, True):
                self.assertEqual(REFUSED, agent.ask(name, harness.RESOLVER, tcp=tcp)["rcode"])
        self.assertEqual("EPERM", agent.connect("192.0.2.30", 80)["outcome"])

    def test_an_alias_opens_the_address_at_its_end_only_for_the_name_asked(self):
        agent = self.world.agent()
        self.assertEqual("ok", agent.connect("alias.clients.test", 80)["outcome"])
        self.assertEqual(["192.0.2.20"], self.world.daemon.kernel_addresses())
        self.assertEqual(REFUSED, agent.ask("end.elsewhere.test", harness.RESOLVER)["rcode"])

    def test_a_large_answer_comes_by_tcp_and_opens_every_address(self):
        agent = self.world.agent()
        self.assertTrue(agent.ask("many.clients.test", harness.RESOLVER)["truncated"])
        answer = agent.ask("many.clients.test", harness.RESOLVER, tcp=True)
        self.assertEqual(200, len(answer["addresses"]))
        self.assertLessEqual(set(answer["addresses"]), set(self.world.daemon.kernel_addresses()))
        self.assertEqual("ok", agent.connect(answer["addresses"][-1], 80)["outcome"])

    def test_ipv6_is_learned_like_ipv4(self):
        agent = self.world.agent()
        self.assertEqual("EPERM", agent.connect(ADDRESS_V6, 80)["outcome"])
        self.assertEqual(NOERROR, agent.ask(NAME, harness.RESOLVER, kind=AAAA)["rcode"])
        self.assertEqual("ok", agent.connect(ADDRESS_V6, 80)["outcome"])
        self.assertEqual("EPERM", agent.connect(ADDRESS_V6, 443)["outcome"])

    def test_udp_is_judged_like_tcp(self):
        spec = harness.workload_spec([harness.allow_names(NAME, ports=((harness.ECHO, "UDP"),))])
        self.world.daemon.reload(spec)
        harness.wait_until(lambda: self.world.daemon.status()["spec"]["state"] == "applied", "the spec is applied")
        agent = self.world.agent()
        self.assertEqual("EPERM", agent.send_udp(ADDRESS, harness.ECHO)["outcome"])
        harness.wait_until(lambda: agent.ask(NAME, harness.RESOLVER)["rcode"] == NOERROR, "the name resolves")
        self.assertEqual("ping", agent.send_udp(ADDRESS, harness.ECHO)["echo"])
        self.assertEqual("EPERM", agent.connect(ADDRESS, harness.ECHO)["outcome"])

    def test_an_audited_workload_is_denied_nothing(self):
        self.world.daemon.reload(harness.workload_spec([harness.allow_names(NAME)], mode="audit"))
        harness.wait_until(lambda: self.world.daemon.workload()["mode"] == "audit", "the mode is audit")
        agent = self.world.agent()
        harness.wait_until(lambda: agent.connect(harness.NEVER_RESOLVED, 80)["outcome"] == "ok", "nothing is denied")
        self.assertEqual(NOERROR, agent.ask("secret.test", harness.RESOLVER)["rcode"])


if __name__ == "__main__":
    harness.main()
