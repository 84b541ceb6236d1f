# SPDX-License-Identifier: Apache-2.0
"""No answer is released before the kernel's map has its addresses."""

import json

import harness
from dns_message import NOERROR, SERVFAIL

NAMES = 2000


class HoldTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.names = [f"n{index}.many.test" for index in range(NAMES)]
        for index, name in enumerate(self.names):
            self.world.resolver.add(name, f"A {harness.many_address(index)}",
                                    f"AAAA 2001:db8:2::{index:x}")
        self.world.resolver.publish()
        self.world.start_servers()
        self.daemon = self.world.daemon

    def start(self, *flags):
        self.daemon.start(*flags, spec=harness.workload_spec([harness.allow_names("*.many.test")]))

    def resolve_and_connect(self, names):
        """A glibc client that resolves each name and connects at once, looking into the kernel's map in between."""
        targets = self.world.folder / "targets"
        targets.write_text("".join(f"{name}:{harness.HTTP}\n" for name in names))
        done = self.world.run(harness.binary("gai_connect"), "--map-pin", self.daemon.pinned_map("mg_addresses"),
                              "--workload", self.daemon.workload()["id"], targets, cgroup="web", timeout=300)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def assert_every_first_syn_got_through(self, attempts, expected):
        self.assertEqual(expected, len(attempts))
        bad = [attempt for attempt in attempts
               if attempt["gai"] != 0 or not attempt["in_map"] or attempt["errno"] != 0 or attempt["retransmits"] != 0]
        self.assertEqual([], bad[:5], f"{len(bad)} of {expected}")

    def test_2000_names_connect_at_the_first_syn(self):
        self.start()
        before = self.world.counters("TCPSynRetrans")
        self.assert_every_first_syn_got_through(self.resolve_and_connect(self.names), NAMES)
        self.assertEqual(before, self.world.counters("TCPSynRetrans"))
        self.assertEqual(2 * NAMES, len(self.daemon.kernel_addresses()))

    def test_2000_names_wait_for_a_map_that_is_slow_to_write(self):
        delay_us = 20_000
        self.start("--fault-inject", f"write-delay={delay_us // 1000}ms")
        before = self.world.counters("TCPSynRetrans")
        attempts = self.resolve_and_connect(self.names)
        self.assert_every_first_syn_got_through(attempts, NAMES)
        self.assertEqual(before, self.world.counters("TCPSynRetrans"))
        # The delay was really there, so the answers did wait.
        self.assertGreater(min(attempt["resolve_us"] for attempt in attempts), delay_us)

    def test_the_times_of_a_held_answer_are_in_order(self):
        self.start("--fault-inject", "write-delay=20ms")
        self.world.agent().ask(self.names[0], harness.RESOLVER)
        (answer,) = self.daemon.json("answers")["answers"]
        times = [answer[key] for key in ("query_arrived_ns", "upstream_answered_ns", "committed_ns", "realised_ns",
                                         "sent_ns")]
        self.assertEqual(sorted(times), times)
        self.assertGreater(answer["realised_ns"] - answer["committed_ns"], 20_000_000)
        self.assertEqual(("opened", True), (answer["outcome"], answer["released"]))

    def test_a_second_query_waits_for_the_row_that_the_first_one_has_pending(self):
        # Its answer changes nothing, but must not leave earlier.
        self.start("--fault-inject", "write-delay=100ms")
        first, second = self.world.agent(), self.world.agent()
        first.begin("ask", self.names[0], harness.RESOLVER)
        second.begin("ask", self.names[0], harness.RESOLVER)
        arrived = sorted(agent.result()["arrived_ns"] for agent in (first, second))
        answers = self.daemon.json("answers")["answers"]
        self.assertEqual(2, len(answers))
        self.assertGreaterEqual(arrived[0], min(answer["realised_ns"] for answer in answers))

    def test_a_hold_beyond_its_deadline_ends_as_the_spec_says(self):
        # Each its own name: an address that failed is tried again by the next daemon, as it was learned.
        cases = (("servfail", {"outcome": "ok", "rcode": SERVFAIL}), ("release", {"outcome": "ok", "rcode": NOERROR}),
                 ("drop", {"outcome": "timeout"}))
        for index, (action, expected) in enumerate(cases):
            with self.subTest(action):
                spec = harness.workload_spec([harness.allow_names("*.many.test")], onGateTimeout=action)
                spec["node"] = {"dns": {"gateDeadline": "50ms"}}
                self.daemon.start("--fault-inject", f"fail-address={harness.many_address(index)}", spec=spec)
                answer = self.world.agent().ask(self.names[index], harness.RESOLVER)
                self.assertEqual(expected, {key: answer[key] for key in expected})
                self.daemon.stop()


if __name__ == "__main__":
    harness.main()
