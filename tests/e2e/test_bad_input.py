# SPDX-License-Identifier: Apache-2.0
"""Specs, environments and DNS packets that are wrong."""

import random
import struct

import dns_message
import harness
import isolation
from dns_message import NOERROR

GOOD_WORKLOAD = {"name": "web", "selector": {"cgroup": "/web"}, "egress": []}


def with_workloads(*workloads):
    return {"formatVersion": 1, "policy": {"workloads": list(workloads)}}


def with_rule(rule):
    return with_workloads({**GOOD_WORKLOAD, "egress": [rule]})


class BadSpecTest(harness.WorldTest):
    # What is wrong: the spec, the place that the error names, a word of the reason.
    CASES = {
        "unknown field": (with_workloads({**GOOD_WORKLOAD, "colour": "red"}), "/policy/workloads/0/colour", "unknown"),
        "wrong type": (with_workloads({**GOOD_WORKLOAD, "egress": "all"}), "/policy/workloads/0/egress", "expected"),
        "bad CIDR": (with_rule({"toCIDR": ["10.0.0.0/33"]}), "/policy/workloads/0/egress/0/toCIDR/0", "10.0.0.0/33"),
        "bad pattern": (with_rule({"toFQDNs": [{"matchPattern": "a.**.test"}]}),
                        "/policy/workloads/0/egress/0/toFQDNs/0/matchPattern", "**"),
        "duplicate name": (with_workloads(GOOD_WORKLOAD, {**GOOD_WORKLOAD, "selector": {"cgroup": "/other"}}),
                           "/policy/workloads/1/name", "web"),
        "another version": ({"formatVersion": 99, "policy": {"workloads": []}}, "/formatVersion", "expected"),
    }

    def run_daemon(self):
        return self.world.run(*self.world.daemon.command(), cgroup="node", check=False, timeout=60)

    def test_each_is_refused_with_its_place_and_nothing_is_attached(self):
        self.world.cgroups.child("web")
        for what, (spec, pointer, reason) in self.CASES.items():
            with self.subTest(what):
                self.world.daemon.write_spec(spec)
                done = self.run_daemon()
                self.assertEqual(4, done.returncode, done.stderr)
                self.assertRegex(done.stderr, rf"{self.world.daemon.spec}:\d+:\d+: {pointer}")
                self.assertIn(reason, done.stderr)
                self.assertFalse(self.world.bpffs.exists())

    def test_a_document_that_is_no_json_or_yaml_and_a_file_that_is_not_there(self):
        for text in ('{"formatVersion": 1,', None):
            with self.subTest(text):
                if text is None:
                    self.world.daemon.spec.unlink()
                else:
                    self.world.daemon.write_spec(text)
                done = self.run_daemon()
                self.assertEqual(4, done.returncode, done.stderr)
                self.assertIn(str(self.world.daemon.spec), done.stderr)
                self.assertNotIn("terminate", done.stderr)


class EnvironmentTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.daemon.write_spec(with_workloads(GOOD_WORKLOAD))

    def assert_one_line(self, command, *words):
        done = self.world.run(*command, check=False, timeout=60)
        lines = [line for line in done.stderr.splitlines() if line]
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertEqual(1, len(lines), done.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_without_the_capabilities_it_names_them(self):
        command = " ".join(f"'{part}'" for part in self.world.daemon.command())
        self.assert_one_line(["capsh", "--drop=cap_bpf,cap_sys_admin,cap_net_admin,cap_perfmon", "--", "-c",
                              f"exec {command}"], "CAP_BPF")

    def test_without_cgroup_v2_it_says_so(self):
        command = [str(part) for part in self.world.daemon.command()]
        place = command.index("--cgroup-root")
        del command[place : place + 2]
        self.assert_one_line(["unshare", "--mount", "sh", "-c", 'umount -a -l -t cgroup2 && exec "$@"', "sh", *command],
                             "cgroup v2")

    def test_without_a_bpffs_it_says_so(self):
        folder = self.world.folder / "no-bpffs"
        folder.mkdir()
        command = [folder if part == self.world.bpffs else part for part in self.world.daemon.command()]
        self.assert_one_line(command, "bpffs", str(folder))

    def test_a_second_daemon_with_the_same_folders_is_refused(self):
        self.world.daemon.start()
        self.assert_one_line(self.world.daemon.command())
        self.assertEqual(0, self.world.daemon.ctl("status").returncode)

    def test_a_second_daemon_that_only_shares_the_maps_is_told_who_writes_them(self):
        self.world.daemon.start()
        command = list(self.world.daemon.command())
        for flag, folder in (("--runtime-dir", "other-run"), ("--state-dir", "other-state")):
            command[command.index(flag) + 1] = self.world.folder / folder
        self.assert_one_line(command, str(self.world.bpffs), f"process {self.world.daemon.process.pid}")
        # The same bpffs by another path.
        elsewhere = self.world.folder / "elsewhere"
        elsewhere.mkdir()
        isolation.mount(self.world.bpffs, elsewhere, None, isolation.MS_BIND)
        self.addCleanup(self.world.run, "umount", "--lazy", elsewhere)
        command[command.index("--bpffs") + 1] = elsewhere
        self.assert_one_line(command, str(elsewhere), f"process {self.world.daemon.process.pid}")
        self.assertEqual(0, self.world.daemon.ctl("status").returncode)


class BadPacketTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.world.resolver.add("good.test", "A 192.0.2.10")
        self.world.resolver.publish()
        self.daemon = self.world.daemon
        self.daemon.start(spec=harness.workload_spec([harness.allow_names("good.test")]))
        self.agent = self.world.agent()

    def assert_alive(self):
        self.assertEqual(NOERROR, self.agent.ask("good.test", harness.RESOLVER)["rcode"])
        self.assertEqual(NOERROR, self.agent.ask("good.test", harness.RESOLVER, tcp=True)["rcode"])
        self.assertIsNone(self.daemon.process.poll())

    def test_malformed_and_oversized_queries_are_dropped_and_counted(self):
        chance = random.Random(1)
        good = dns_message.query("good.test")
        garbage = [chance.randbytes(chance.randrange(0, 512)) for _ in range(300)]
        mutated = [bytes(octet if chance.random() > 0.1 else chance.randrange(256) for octet in good)
                   for _ in range(300)]
        cut = [good[:length] for length in range(len(good))]
        oversized = [good + bytes(60000)]
        for messages in (garbage, mutated, cut, oversized):
            self.agent.send_raw_udp(harness.RESOLVER, [message.hex() for message in messages])
        harness.wait_until(lambda: self.daemon.status()["dns"]["malformed"] >= len(cut), "what is malformed is counted")
        harness.wait_until(lambda: self.daemon.status()["dns"]["oversized"] >= 1, "what is oversized is, too")
        self.assert_alive()

    def test_100_000_mutated_packets_disturb_no_real_client(self):
        self.world.start_servers()
        messages = [dns_message.query("good.test").hex(), dns_message.query("refused.test").hex(),
                    dns_message.query("good.test", dns_message.AAAA).hex()]
        bad, good = self.world.agent(), self.world.agent()
        stop = self.world.folder / "stop"
        good.begin("connect_until", "good.test", harness.HTTP, str(stop))
        bad.send_mutated_udp(harness.RESOLVER, messages, 100_000, 1)
        stop.touch()
        outcomes = good.result()["outcomes"]
        self.assertEqual(["ok"], list(outcomes))
        # A query that the full socket buffer drops is asked again after 5 s: how many fit depends on the machine.
        self.assertGreater(outcomes["ok"], 10)
        self.assertGreater(self.daemon.status()["dns"]["malformed"], 1_000)
        self.assert_alive()

    def test_broken_streams_over_tcp_harm_nobody(self):
        good = dns_message.query("good.test")
        for stream in (b"", b"\x00", b"\xff\xff" + bytes(100), struct.pack("!H", 5) + bytes(5),
                       struct.pack("!H", len(good)) + good[:-3], struct.pack("!H", 0) * 50):
            self.agent.send_raw_tcp(harness.RESOLVER, stream.hex())
        self.assert_alive()


if __name__ == "__main__":
    harness.main()
