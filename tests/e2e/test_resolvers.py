# SPDX-License-Identifier: Apache-2.0
"""Resolvers that people run. All other modules have nsd."""

import harness
from dns_message import AAAA, NXDOMAIN

NAMES = 200
LARGE = 100  # addresses in an answer that needs TCP


def name(index):
    return f"n{index}.resolvers.test"


class ResolversTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.start_servers()
        self.records = [(name(index), "A", harness.many_address(index)) for index in range(NAMES)]
        self.records += [(name(0), "AAAA", "2001:db8:1::10")]
        self.records += [("large.resolvers.test", "A", harness.many_address(1000 + index)) for index in range(LARGE)]

    def start_unbound(self):
        folder = self.world.folder / "unbound"
        folder.mkdir()
        lines = ["server:", '  username: ""', '  chroot: ""', f'  directory: "{folder}"', '  pidfile: ""',
                 "  use-syslog: no", "  do-daemonize: no", "  module-config: iterator", "  access-control: 0.0.0.0/0 allow",
                 "  access-control: ::/0 allow", "  local-zone: resolvers.test. static"]
        lines += [f"  interface: {address}" for address in (harness.RESOLVER, harness.RESOLVER_V6)]
        lines += [f'  local-data: "{owner}. 60 IN {kind} {value}"' for owner, kind, value in self.records]
        lines += ["remote-control:", "  control-enable: no"]
        (folder / "unbound.conf").write_text("\n".join(lines) + "\n")
        self.world.spawn(["unbound", "-d", "-c", folder / "unbound.conf"], cgroup="servers", log=folder / "log")
        harness.wait_until(lambda: harness.answers(harness.RESOLVER), "unbound answers")

    def start_dnsmasq(self):
        flags = [f"--host-record={owner},{value}" for owner, _, value in self.records]
        (self.world.folder / "dnsmasq.conf").write_text("\n".join(flag.removeprefix("--") for flag in flags) + "\n")
        self.world.spawn(["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--pid-file",
                          "--local=/test/", f"--listen-address={harness.RESOLVER},{harness.RESOLVER_V6}",
                          "--bind-interfaces", "--log-facility=-", f"--conf-file={self.world.folder / 'dnsmasq.conf'}"],
                         cgroup="servers", log=self.world.folder / "dnsmasq.log")
        harness.wait_until(lambda: harness.answers(harness.RESOLVER), "dnsmasq answers")

    def check(self):
        self.world.daemon.start(spec=harness.workload_spec([harness.allow_names("*.resolvers.test")]))
        agent = self.world.agent()
        outcomes = {agent.connect(name(index), harness.HTTP)["outcome"] for index in range(NAMES)}
        self.assertEqual({"ok"}, outcomes)
        self.assertEqual(["2001:db8:1::10"], agent.ask(name(0), harness.RESOLVER_V6, kind=AAAA)["addresses"])
        self.assertEqual(NXDOMAIN, agent.ask("none.resolvers.test", harness.RESOLVER)["rcode"])
        done = self.world.run("dig", "+tries=1", "+noall", "+answer", f"@{harness.RESOLVER}", "large.resolvers.test",
                              "A", cgroup="web")
        self.assertEqual(LARGE, len(done.stdout.splitlines()))
        self.assertEqual("ok", agent.connect(harness.many_address(1000 + LARGE - 1), harness.HTTP)["outcome"])

    def test_unbound(self):
        self.start_unbound()
        self.check()

    def test_dnsmasq(self):
        self.start_dnsmasq()
        self.check()


if __name__ == "__main__":
    harness.main()
