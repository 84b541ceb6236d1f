# SPDX-License-Identifier: Apache-2.0
"""The kernel's maps, pins and links while the daemon runs: resized by a reload, and meddled with by others."""

import shutil
import subprocess
import time

import harness

RESIZES = 50
ALLOWED = harness.many_address(0)
MANY = 200


def bpftool(*arguments):
    done = subprocess.run(["bpftool", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"bpftool {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


class MapsTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        for index in range(MANY):
            self.world.resolver.add(f"n{index}.many.test", f"A {harness.many_address(index)}", ttl=600)
        self.world.resolver.publish()
        self.world.start_servers()
        self.daemon = self.world.daemon
        self.daemon.start(spec=self.spec(1024))
        self.agent = self.world.agent()
        self.agent.ask("n0.many.test", harness.RESOLVER)

    def spec(self, addresses, **maps):
        spec = harness.workload_spec([harness.allow_names("*.many.test")])
        spec["node"] = {"maps": {"addresses": addresses, **maps}, "dns": {"gateDeadline": "1s"}}
        return spec

    def size(self, name="mg_addresses"):
        return next(entry["max_entries"] for entry in self.daemon.status()["maps"] if entry["name"] == name)

    def resize(self, addresses):
        self.daemon.write_spec(self.spec(addresses))
        self.daemon.ctl("reload")

    def assert_enforced(self):
        self.assertEqual("ok", self.agent.connect(ALLOWED, 80)["outcome"])
        self.assertEqual("EPERM", self.agent.connect(harness.NEVER_RESOLVED, 80)["outcome"])

    def wait_repaired(self, count, text):
        harness.wait_until(lambda: self.daemon.status()["datapath"]["repaired"] >= count, f"{count} repairs")
        self.assertEqual([], self.daemon.status()["datapath"]["problems"])
        self.assertEqual(1, self.daemon.log_text().count(text), self.daemon.log_text())


class ResizeTest(MapsTest):
    def test_clients_that_connect_all_the_time_do_not_notice_fifty_resizes(self):
        clients = [(self.world.agent(), ALLOWED, "ok"), (self.world.agent(), harness.NEVER_RESOLVED, "EPERM")]
        for client, address, _ in clients:
            client.begin("connect_until", address, 80, str(self.world.folder / "stop"))
        for index in range(RESIZES):
            size = 512 + index
            self.resize(size)
            self.assertEqual(size, self.size())
            # What is learned in between is there at once, and stays.
            name = f"n{index % MANY}.many.test"
            self.assertEqual(0, self.agent.ask(name, harness.RESOLVER)["rcode"])
            self.assertEqual("ok", self.agent.connect(harness.many_address(index % MANY), 80)["outcome"])
        (self.world.folder / "stop").touch()
        for client, _, expected in clients:
            outcomes = client.result()["outcomes"]
            self.assertEqual([expected], list(outcomes))
            self.assertGreater(outcomes[expected], 100)
        self.assertEqual(min(RESIZES, MANY), len(self.daemon.kernel_addresses()))

    def test_rows_that_did_not_fit_get_in_when_the_map_grows(self):
        self.resize(8)
        names = [f"n{index}.many.test" for index in range(16)]
        self.agent.ask_each(names, harness.RESOLVER)
        harness.wait_until(self.daemon.failing_rows, "rows fail: the map is full")
        status = next(entry for entry in self.daemon.status()["maps"] if entry["name"] == "mg_addresses")
        self.assertTrue(status["nearly_full"])
        harness.wait_until(lambda: "map mg_addresses is nearly full: 8 of 8 entries" in self.daemon.log_text(),
                           "the log says so")
        self.resize(32)
        harness.wait_until(lambda: not self.daemon.failing_rows(), "no row fails")
        self.assertEqual(16, len(self.daemon.kernel_addresses()))

    def test_a_size_below_what_is_held_is_refused_and_nothing_changes(self):
        names = [f"n{index}.many.test" for index in range(20)]
        self.agent.ask_each(names, harness.RESOLVER)
        self.daemon.write_spec(self.spec(10))
        done = self.daemon.ctl("reload", check=False)
        self.assertEqual(4, done.returncode)
        self.assertIn("mg_addresses: it holds 20 entries, which do not fit into 10 (node.maps.addresses)", done.stderr)
        self.assertEqual(1024, self.size())
        self.assertEqual("rejected", self.daemon.status()["spec"]["state"])
        self.assert_enforced()

    def test_a_restart_with_another_size_takes_the_rows_along(self):
        harness.wait_until(lambda: self.daemon.status()["store"]["queued"] == 0, "the learned addresses are saved")
        self.daemon.kill()
        self.daemon.start(spec=self.spec(2048, prefixes=64))
        self.assertEqual(2048, self.size())
        self.assertEqual(64, self.size("mg_prefixes"))
        self.assertEqual([ALLOWED], self.daemon.kernel_addresses())
        self.assert_enforced()

    def test_kills_in_the_middle_of_resizes_leave_what_the_next_daemon_takes_over(self):
        client, other = self.world.agent(), self.world.agent()
        client.begin("connect_until", ALLOWED, 80, str(self.world.folder / "stop"))
        other.begin("connect_until", harness.NEVER_RESOLVED, 80, str(self.world.folder / "stop"))
        for index in range(8):
            self.daemon.reload(self.spec(600 + index))
            time.sleep(0.02 * index)
            self.daemon.kill()
            self.daemon.start()
            self.assertEqual(600 + index, self.size())
            self.assertEqual([ALLOWED], self.daemon.kernel_addresses())
        (self.world.folder / "stop").touch()
        self.assertEqual(["ok"], list(client.result()["outcomes"]))
        self.assertEqual(["EPERM"], list(other.result()["outcomes"]))


class IdentityTest(MapsTest):
    def link(self, program):
        return next((self.daemon.bpffs / "links").glob(f"*/{program}"))

    def test_pins_that_are_removed_come_back_and_enforcement_never_ends(self):
        shutil.rmtree(self.daemon.bpffs)
        self.assert_enforced()
        harness.wait_until(lambda: self.daemon.pinned_map("mg_counters").exists(), "the maps are pinned again")
        harness.wait_until(lambda: list((self.daemon.bpffs / "links").glob("*/mg_egress")), "the links are, too")
        self.assertEqual([ALLOWED], self.daemon.kernel_addresses())
        self.assertIn("datapath", self.daemon.ctl("status").stdout)
        # They are whole: a new daemon takes them over.
        harness.wait_until(lambda: self.daemon.status()["store"]["queued"] == 0, "the learned addresses are saved")
        self.daemon.kill()
        self.assert_enforced()
        self.daemon.start()
        self.assert_enforced()

    def test_a_program_that_is_detached_is_attached_again(self):
        bpftool("link", "detach", "pinned", self.link("mg_connect4"))
        self.wait_repaired(1, "mg_connect4: the program was detached from the cgroup: attached again")
        self.assert_enforced()

    def test_a_map_that_is_frozen_is_replaced(self):
        bpftool("map", "freeze", "pinned", self.daemon.pinned_map("mg_addresses"))
        self.wait_repaired(1, "map mg_addresses was frozen: replaced by a copy")
        self.assertEqual(0, self.agent.ask("n1.many.test", harness.RESOLVER)["rcode"])
        self.assertEqual("ok", self.agent.connect(harness.many_address(1), 80)["outcome"])
        self.assert_enforced()

    def test_a_foreign_map_in_the_place_of_a_pin_is_replaced_by_ours(self):
        pin = self.daemon.pinned_map("mg_addresses")
        pin.unlink()
        bpftool("map", "create", pin, "type", "hash", "key", 20, "value", 8, "entries", 64, "name", "foreign")
        self.wait_repaired(1, "mg_addresses: another object was pinned there: replaced")
        self.assertEqual([ALLOWED], self.daemon.kernel_addresses())
        self.assert_enforced()

    def test_a_daemon_whose_map_pins_went_while_it_was_away_goes_on_with_its_maps(self):
        harness.wait_until(lambda: self.daemon.status()["store"]["queued"] == 0, "the learned addresses are saved")
        self.daemon.kill()
        shutil.rmtree(self.daemon.bpffs / "maps")
        self.assert_enforced()
        self.daemon.start()
        self.assertEqual([ALLOWED], self.daemon.kernel_addresses())
        self.assert_enforced()


if __name__ == "__main__":
    harness.main()
