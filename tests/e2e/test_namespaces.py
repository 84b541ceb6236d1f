# SPDX-License-Identifier: Apache-2.0
"""Workloads in network namespaces of their own, as containers have them."""

import os

import harness
from dns_message import NOERROR, REFUSED

NAMES = 100


def network_of(pid):
    return os.stat(f"/proc/{pid}/ns/net").st_ino


class Container:
    """A process of a workload in a network namespace of its own, joined to the world's by a veth pair. Nothing but the
    process keeps the namespace."""

    def __init__(self, world, number=1, cgroup="web", loopback=True):
        self._world = world
        self.outside = f"veth{number}"
        self.agent = world.agent(cgroup, prefix=("unshare", "--net"))
        self._wait_for_namespace()
        self.inode = network_of(self.agent.pid)
        world.run("ip", "link", "add", self.outside, "type", "veth", "peer", "name", "eth0", "netns", self.agent.pid)
        world.run("ip", "addr", "add", f"10.77.{number}.1/24", "dev", self.outside)
        world.run("ip", "link", "set", self.outside, "up")
        self.run("ip", "addr", "add", f"10.77.{number}.2/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", f"10.77.{number}.1")
        if loopback:
            self.run("ip", "link", "set", "lo", "up")

    def _wait_for_namespace(self):
        harness.wait_until(lambda: network_of(self.agent.pid) != network_of("self"), "the process has left our network")

    def run(self, *command, **options):
        """Runs a command in the namespace, as no process of the workload."""
        return self._world.run("nsenter", "--net", "--target", self.agent.pid, *command, **options)

    def is_gone(self):
        """Its end of the pair, and so ours, ends with the namespace."""
        return self._world.run("ip", "link", "show", self.outside, check=False).returncode != 0


class NamespaceTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.names = [f"n{index}.many.test" for index in range(NAMES)]
        for index, name in enumerate(self.names):
            self.world.resolver.add(name, f"A {harness.many_address(index)}")
        self.world.resolver.add("other.test", "A 192.0.2.20")
        self.world.resolver.add("denied.test", "A 192.0.2.30")
        self.world.resolver.publish()
        self.world.start_servers()
        self.daemon = self.world.daemon
        spec = harness.workload_spec([harness.allow_names("*.many.test")])
        spec["policy"]["workloads"].append({"name": "other", "selector": {"cgroup": "/other"},
                                            "egress": [harness.allow_names("other.test")]})
        self.daemon.start(spec=spec, cgroups=("web", "other"))

    def networks(self, workload="web"):
        return self.daemon.workload(workload)["networks"]

    def container(self, number=1, cgroup="web", **named):
        """One that the daemon has found. Before, glibc's resolver, which asks for every error (IP_RECVERR), hears that
        its query was lost, and says EAI_AGAIN."""
        container = Container(self.world, number, cgroup, **named)
        harness.wait_until(lambda: container.inode in [network["inode"] for network in self.networks(cgroup)],
                           "the namespace is served")
        return container

    def assert_resolves_and_connects(self, agent, name):
        found = agent.resolve(name)
        self.assertEqual("ok", found["outcome"], found)
        for address in found["addresses"]:
            self.assertEqual("ok", agent.connect(address, harness.HTTP)["outcome"], name)
        return found["seconds"]

    def test_a_client_in_another_namespace_resolves_and_connects(self):
        agent = self.container().agent
        for name in self.names:
            self.assert_resolves_and_connects(agent, name)
        self.assertEqual("EPERM", agent.connect(harness.NEVER_RESOLVED, harness.HTTP)["outcome"])
        self.assertEqual(REFUSED, agent.ask("denied.test", harness.RESOLVER)["rcode"])
        tcp = agent.ask(self.names[0], harness.RESOLVER, tcp=True)
        self.assertEqual((NOERROR, harness.RESOLVER), (tcp["rcode"], tcp["source"]))
        self.assertEqual([network_of(agent.pid)], [network["inode"] for network in self.networks()])
        self.assertEqual(0, self.daemon.status()["dns"]["unknown_flows"])

    def test_the_first_query_from_a_new_namespace_is_not_lost(self):
        # Ahead of the daemon, which looks once a second: each namespace is new to it when it asks.
        for number in range(1, 6):
            container = Container(self.world, number)
            with self.subTest(number):
                self.assertEqual(NOERROR, container.agent.ask(self.names[number], harness.RESOLVER)["rcode"])

    def test_a_namespace_goes_away_with_the_last_process_in_it(self):
        container = self.container()
        self.assert_resolves_and_connects(container.agent, self.names[0])
        self.assertFalse(container.is_gone())
        container.agent.end()
        harness.wait_until(container.is_gone, "the namespace is gone")
        self.assertEqual([], self.networks())
        self.assertEqual((1, 1), tuple(self.daemon.status()["networks"][key] for key in ("opened", "closed")))

    def test_clients_at_one_address_and_port_of_two_namespaces_are_told_apart(self):
        # Both ask from 127.0.0.1 at the same port, each for what only its own workload may resolve.
        web, other = (Container(self.world, number, cgroup) for number, cgroup in ((1, "web"), (2, "other")))
        for _ in range(20):
            for container, name in ((web, self.names[0]), (other, "other.test")):
                container.agent.begin("ask", name, harness.RESOLVER, source_port=40000)
            self.assertEqual([NOERROR, NOERROR], [container.agent.result()["rcode"] for container in (web, other)])
            for container, name in ((web, "other.test"), (other, self.names[0])):
                container.agent.begin("ask", name, harness.RESOLVER, source_port=40000)
            self.assertEqual([REFUSED, REFUSED], [container.agent.result()["rcode"] for container in (web, other)])

    def test_a_connection_that_a_reload_forbids_ends_and_one_outside_at_the_same_addresses_too(self):
        stays, goes = self.names[:2]

        def spec(*names):
            return harness.workload_spec([harness.allow_names(*names, ports=((harness.ECHO, "TCP"),))], onRevoke="destroy")

        self.daemon.write_spec(spec(stays, goes))
        self.daemon.ctl("reload")
        agents = (self.container().agent, self.world.agent("web"))
        for agent in agents:
            for name in (stays, goes):
                self.assertEqual("ok", agent.connect(name, harness.ECHO, keep=name)["outcome"])
        self.daemon.write_spec(spec(stays))
        self.daemon.ctl("reload")
        for agent in agents:
            self.assertEqual(["ok", "ECONNABORTED"], [agent.talk(name)["outcome"] for name in (stays, goes)])
        ended = self.daemon.status()["connections"]
        self.assertEqual((2, 0), (ended["ended"], ended["failed"]))

    def test_a_namespace_is_served_again_by_a_new_daemon_at_the_same_ports(self):
        container = self.container()
        self.assert_resolves_and_connects(container.agent, self.names[0])
        before = self.networks()
        self.daemon.kill()
        self.daemon.start(cgroups=("web", "other"))
        harness.wait_until(self.networks, "the namespace is served")
        self.assertEqual(before, self.networks())
        self.assert_resolves_and_connects(container.agent, self.names[1])

    def test_a_namespace_whose_loopback_comes_up_late_is_served_from_then_on(self):
        container = Container(self.world, loopback=False)
        harness.wait_until(self.networks, "the namespace is known")
        self.assertNotEqual("ok", container.agent.resolve(self.names[0])["outcome"])
        container.run("ip", "link", "set", "lo", "up")
        self.assert_resolves_and_connects(container.agent, self.names[0])

    def test_one_workload_in_two_namespaces_and_two_workloads_in_one(self):
        first, second = self.container(1), self.container(2)
        other = self.world.agent("other", prefix=("nsenter", "--net", "--target", str(first.agent.pid)))
        self.assert_resolves_and_connects(other, "other.test")
        for container in (first, second):
            self.assert_resolves_and_connects(container.agent, self.names[0])
        self.assertEqual({"EPERM"}, {agent.connect("192.0.2.20", harness.HTTP)["outcome"]
                                     for agent in (first.agent, second.agent)})
        expected = {"web": {first.inode, second.inode}, "other": {first.inode}}
        harness.wait_until(lambda: expected == {
            name: {network["inode"] for network in self.networks(name)} for name in expected}, "status lists them")


if __name__ == "__main__":
    harness.main()
