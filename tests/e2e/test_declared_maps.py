# SPDX-License-Identifier: Apache-2.0
"""Maps of other programs, kept at what the spec declares."""

import json
import os
import shutil
import subprocess

import harness

MILLION = 1_000_000

FLOWS = [{"key": {"saddr": "192.0.2.1", "port": 443, "protocol": 6},
          "value": {"action": "ACTION_DROP", "comment": "scanner"}},
         {"key": {"saddr": "192.0.2.2", "port": 53, "protocol": 17},
          "value": {"action": "ACTION_PASS", "comment": "exactly 12!!"}}]
PREFIXES = [{"key": {"prefixlen": 24, "addr": "198.51.100.0"}, "value": {"action": "ACTION_DROP", "comment": ""}},
            {"key": {"prefixlen": 32, "addr": "203.0.113.7"}, "value": {"action": "ACTION_PASS", "comment": "us"}}]
LIMITS = [{"key": 0, "value": 7}, {"key": 3, "value": 18446744073709551615}]


def in_order(entries):
    return sorted(entries, key=json.dumps)


class DeclaredMapsTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.world.daemon
        self.folder = self.world.bpffs.parent / "other"
        self.folder.mkdir()
        self.world.run("bpftool", "prog", "loadall", self.object(), self.folder / "programs", "pinmaps", self.folder)

    @staticmethod
    def object():
        return harness.build_folder() / "tests" / "e2e" / "declared_types.bpf.o"

    def pin(self, name):
        return self.folder / name

    def declare(self, name, entries=None, **more):
        declared = {"name": name, "pin": str(self.pin(name)), **more}
        return declared if entries is None else {**declared, "entries": entries}

    def start(self, *maps):
        self.daemon.start(spec={"formatVersion": 1, "maps": list(maps)}, cgroups=())

    def reload(self, *maps, check=True):
        """The new spec, in force when this returns."""
        self.daemon.write_spec({"formatVersion": 1, "maps": list(maps)})
        return self.daemon.ctl("reload", "--timeout", "180", check=check, timeout=600)

    def entries(self, name):
        return self.daemon.json("get", "--map", name)["entries"]

    def status(self, name, daemon=None):
        return next(m for m in (daemon or self.daemon).status()["declared_maps"] if m["name"] == name)

    def dump(self, name):
        return harness.dump_map(self.pin(name))

    def update(self, name, key, value):
        subprocess.run(["bpftool", "map", "update", "pinned", self.pin(name), "key", "hex", *key.split(), "value",
                        "hex", *value.split()], check=True, capture_output=True)

    def delete(self, name, key):
        subprocess.run(["bpftool", "map", "delete", "pinned", self.pin(name), "key", "hex", *key.split()], check=True,
                       capture_output=True)

    def write_lines(self, lines):
        path = self.world.folder / "entries.jsonl"
        path.write_text("\n".join(lines) + "\n")
        return str(path)


class EveryTypeTest(DeclaredMapsTest):
    def test_holds_what_is_declared_and_reads_back_as_it_was_written(self):
        self.start(self.declare("flows", FLOWS), self.declare("prefixes", PREFIXES), self.declare("limits", LIMITS))
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        self.assertEqual(in_order(PREFIXES), in_order(self.entries("prefixes")))
        self.assertEqual([7, 0, 0, 18446744073709551615], [entry["value"] for entry in self.entries("limits")])
        for name in ("flows", "prefixes", "limits"):
            self.assertEqual("in sync", self.status(name)["state"], name)
        self.assertFalse(self.status("limits")["nearly_full"], "an array is never full")
        shown = self.daemon.ctl("get", "--map", "prefixes", "-o", "json").stdout
        self.assertEqual(in_order(PREFIXES), in_order(json.loads(shown)["entries"]))
        table = self.daemon.ctl("get", "--map", "prefixes").stdout.splitlines()
        self.assertEqual(["KEY", "VALUE"], table[0].split())
        self.assertEqual(1 + len(PREFIXES), len(table))
        # As bpftool shows it: network order as it lies in memory, addresses as bytes.
        flow = next(entry for entry in self.dump("flows") if entry["key"]["protocol"] == 6)
        self.assertEqual(int.from_bytes(bytes([192, 0, 2, 1]), "little"), flow["key"]["saddr"])
        self.assertEqual(int.from_bytes((443).to_bytes(2, "big"), "little"), flow["key"]["port"])
        self.assertEqual("ACTION_DROP", flow["value"]["action"])
        self.assertEqual("scanner", flow["value"]["comment"])
        self.assertEqual([7, 0, 0, 18446744073709551615], [entry["value"] for entry in self.dump("limits")])

    def test_a_reload_changes_entries_one_by_one(self):
        self.start(self.declare("flows", FLOWS))
        changed = [{**FLOWS[0], "value": {"action": "ACTION_PASS", "comment": "forgiven"}},
                   {**FLOWS[1], "key": {**FLOWS[1]["key"], "port": 5353}}]
        self.reload(self.declare("flows", changed))
        self.assertEqual(in_order(changed), in_order(self.entries("flows")))
        self.assertEqual(0, self.status("flows")["resync"]["foreign"])

    def test_a_list_that_cannot_be_written_is_no_success(self):
        self.start(self.declare("flows", FLOWS))
        for command in (("get", "--map", "flows"), ("-o", "json", "get", "--map", "flows"), ("status",)):
            with self.subTest(command), open("/dev/full", "w") as full:
                done = subprocess.run([harness.binary("mapgatectl"), "--socket", self.daemon.socket, *command],
                                      stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual((1, "mapgatectl: cannot write the output\n"), (done.returncode, done.stderr))

    def test_a_long_list_is_read_page_by_page(self):
        count = 25_000
        lines = [json.dumps({"key": i, "value": i}) for i in range(count)]
        self.start(self.declare("long", layout={"key": "u32", "value": "u32"}, entriesFrom=self.write_lines(lines),
                                create={"type": "hash", "maxEntries": count}), self.declare("limits", LIMITS))
        self.assertEqual(list(range(count)), sorted(entry["key"] for entry in self.entries("long")))
        table = self.daemon.ctl("get", "--map", "long").stdout.splitlines()
        self.assertEqual(["KEY", "VALUE"], table[0].split())
        self.assertEqual(list(range(count)), sorted(int(line.split()[0]) for line in table[1:]))
        empty = self.daemon.ctl("get", "--map", "long", "--state", "error")
        self.assertEqual([], self.daemon.json("get", "--map", "long", "--state", "error")["entries"])
        self.assertEqual(["KEY", "VALUE"], empty.stdout.split())

    def test_a_declaration_that_goes_leaves_the_map_as_it_is(self):
        self.start(self.declare("flows", FLOWS, prune=True))
        self.reload(self.declare("limits", LIMITS))
        self.assertEqual(len(FLOWS), len(self.dump("flows")))
        self.assertEqual(["limits"], [m["name"] for m in self.daemon.status()["declared_maps"]])

    def test_a_map_without_btf_takes_hex_or_a_layout(self):
        subprocess.run(["bpftool", "map", "create", self.pin("plain"), "type", "hash", "key", "8", "value", "4",
                        "entries", "8", "name", "plain"], check=True)
        entry = {"key": "0x0100000000000a0b", "value": "0x01020304"}
        self.start(self.declare("plain", [entry]))
        self.assertEqual([entry], self.entries("plain"))
        layout = {"key": {"id": "u32", "zone": "u8", "port": "be16"}, "value": "ipv4"}
        entry = {"key": {"id": 1, "zone": 0, "port": 0x0a0b}, "value": "1.2.3.4"}
        self.reload(self.declare("plain", [entry], layout=layout))
        self.assertEqual([entry], self.entries("plain"))


class PerCpuTest(DeclaredMapsTest):
    SHARES = [{"key": 0, "value": 4294967295}, {"key": 1, "value": 20}]

    def cpu_values(self, name):
        """By key, as JSON: what each CPU has."""
        return {json.dumps(entry["key"]): [value["value"] for value in entry["values"]] for entry in self.dump(name)}

    def test_every_cpu_holds_what_is_declared(self):
        self.start(self.declare("cpu_flows", FLOWS), self.declare("shares", self.SHARES))
        self.assertEqual(in_order(FLOWS), in_order(self.entries("cpu_flows")))
        self.assertEqual([4294967295, 20, 0, 0], [entry["value"] for entry in self.entries("shares")])
        for name in ("cpu_flows", "shares"):
            self.assertEqual("in sync", self.status(name)["state"], name)
        shares = self.cpu_values("shares")
        cpus = len(shares["0"])
        self.assertGreater(cpus, 0)
        self.assertEqual({"0": [4294967295] * cpus, "1": [20] * cpus, "2": [0] * cpus, "3": [0] * cpus}, shares)
        flows = self.cpu_values("cpu_flows")
        self.assertEqual([[{"action": "ACTION_DROP", "comment": "scanner"}] * cpus,
                          [{"action": "ACTION_PASS", "comment": list(b"exactly 12!!")}] * cpus],
                         sorted(flows.values(), key=json.dumps))
        self.reload(self.declare("cpu_flows", FLOWS[:1]), self.declare("shares", self.SHARES))
        self.assertEqual(FLOWS[:1], self.entries("cpu_flows"))

    def test_an_element_whose_cpus_differ_is_shown_so_and_repaired(self):
        self.start(self.declare("shares", self.SHARES))
        packet = self.world.folder / "packet"
        packet.write_bytes(bytes(64))
        self.world.run("bpftool", "prog", "run", "pinned", self.folder / "programs" / "add_share", "data_in", packet)
        kernel = self.cpu_values("shares")["1"]
        if len(kernel) == 1:
            self.skipTest("there is one CPU: it cannot differ")
        self.assertEqual([20, 21], sorted(set(kernel)))
        self.assertEqual({"key": 1, "cpu_values": kernel}, self.entries("shares")[1])
        self.assertIn("differs: " + " ".join(f"cpu{cpu}={value}" for cpu, value in enumerate(kernel)),
                      self.daemon.ctl("get", "--map", "shares").stdout)
        self.reload(self.declare("shares", self.SHARES))
        self.assertEqual({"key": 1, "value": 20}, self.entries("shares")[1])
        self.assertEqual(1, self.status("shares")["resync"]["repaired"])

    def test_a_per_cpu_map_can_be_made(self):
        for kind in ("percpu_hash", "percpu_array"):
            with self.subTest(kind):
                made = self.declare(kind, [{"key": 3, "value": {"count": 7}}], create={"type": kind, "maxEntries": 4},
                                    layout={"key": "u32", "value": {"count": "u32"}})
                if kind == "percpu_hash":
                    self.start(made)
                else:
                    self.reload(made)
                self.assertEqual({"key": 3, "value": {"count": 7}}, self.entries(kind)[-1])
                shown = json.loads(self.world.run("bpftool", "-j", "map", "show", "pinned", self.pin(kind)).stdout)
                self.assertEqual((kind, 4), (shown["type"], shown["bytes_value"]))

    def test_an_index_past_the_end_is_refused(self):
        self.start(self.declare("shares", self.SHARES))
        refused = self.reload(self.declare("shares", [{"key": 4, "value": 1}]), check=False)
        self.assertEqual(4, refused.returncode)
        self.assertIn("/maps/0/entries/0/key: the array ends at index 3", refused.stderr)


class MapsOfMapsTest(DeclaredMapsTest):
    INNER = {"type": "hash", "maxEntries": 4, "layout": {"key": "ipv4", "value": {"limit": "u32"}}}
    TENANTS = [{"key": 1, "value": [{"key": "10.0.0.1", "value": {"limit": 5}},
                                    {"key": "10.0.0.2", "value": {"limit": 6}}]},
               {"key": 2, "value": []}]

    def tenants(self, entries=None, **more):
        return self.declare("tenants", entries if entries is not None else self.TENANTS,
                            **{"layout": {"key": "u32"}, "inner": self.INNER, **more})

    def created(self, entries=None, kind="hash_of_maps", **more):
        return self.tenants(entries, create={"type": kind, "maxEntries": 8}, **more)

    def bpftool(self, *arguments):
        return json.loads(self.world.run("bpftool", "-j", "map", *arguments).stdout)

    def held(self):
        """What the kernel has, by the outer key: the inner map's elements, as bpftool shows them."""
        result = {}
        for element in self.bpftool("dump", "pinned", self.pin("tenants")):
            key = int.from_bytes(bytes(int(octet, 0) for octet in element["key"]), "little")
            inner = self.bpftool("dump", "id", str(self.inner_id(key)))
            result[key] = {bytes(int(octet, 0) for octet in e["key"]): e["value"] for e in inner}
        return result

    def inner_id(self, key):
        octets = key.to_bytes(4, "little").hex(" ").split()
        value = self.bpftool("lookup", "pinned", self.pin("tenants"), "key", "hex", *octets)["value"]
        return int.from_bytes(bytes(int(octet, 0) for octet in value), "little")

    def foreign_inner(self, name, entries=4):
        self.world.run("bpftool", "map", "create", self.pin(name), *f"type hash key 4 value 4 entries {entries} "
                       f"name {name}".split())

    def test_are_made_and_filled_and_read_back_as_they_were_written(self):
        for kind in ("hash_of_maps", "array_of_maps"):
            with self.subTest(kind):
                if kind == "hash_of_maps":
                    self.start(self.created())
                else:
                    self.pin("tenants").unlink()
                    self.reload(self.created(kind=kind))
                self.assertEqual("in sync", self.status("tenants")["state"])
                self.assertEqual(in_order(self.TENANTS), in_order(self.entries("tenants")))
                held = self.held()
                self.assertEqual({bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])}, set(held[1]))
                self.assertEqual({}, held[2])

    def test_a_reload_replaces_only_the_inner_maps_that_change(self):
        self.start(self.created())
        first, second = self.inner_id(1), self.inner_id(2)
        changed = [self.TENANTS[0], {"key": 2, "value": [{"key": "10.0.0.9", "value": {"limit": 9}}]}]
        self.reload(self.created(changed))
        self.assertEqual(in_order(changed), in_order(self.entries("tenants")))
        self.assertEqual(first, self.inner_id(1))
        self.assertNotEqual(second, self.inner_id(2))
        self.reload(self.created(changed[:1]))
        self.assertEqual(changed[:1], self.entries("tenants"))

    def test_what_others_delete_or_put_in_the_place_of_an_inner_map_is_put_right(self):
        self.start(self.created(prune=True))
        self.foreign_inner("foreign")
        for key, change in (("01 00 00 00", "delete"), ("02 00 00 00", "update"), ("07 00 00 00", "update")):
            self.world.run("bpftool", "map", change, "pinned", self.pin("tenants"), "key", "hex", *key.split(),
                           *(["value", "pinned", self.pin("foreign")] if change == "update" else []))
        self.world.run("bpftool", "map", "update", "pinned", self.pin("foreign"),
                       *"key hex 0a 00 00 09 value hex 01 00 00 00".split())
        self.reload(self.created(prune=True))
        self.assertEqual(in_order(self.TENANTS), in_order(self.entries("tenants")))
        resync = self.status("tenants")["resync"]
        self.assertEqual((2, 1), (resync["repaired"], resync["removed"]))

    def test_an_outer_map_that_holds_one_needs_no_words_about_its_inner_maps(self):
        self.foreign_inner("pattern")
        self.world.run("bpftool", "map", "create", self.pin("tenants"), *"type hash_of_maps key 4 value 4 entries 4 "
                       "name tenants inner_map pinned".split(), self.pin("pattern"))
        entry = {"key": "0x09000000", "value": [{"key": "0x0a000001", "value": "0x01000000"}]}
        self.start(self.declare("limits", LIMITS))
        refused = self.reload(self.declare("tenants", [entry]), check=False)
        self.assertEqual(4, refused.returncode)
        self.assertIn("/maps/0/inner: ", refused.stderr)
        self.assertIn("say here how its inner maps are made", refused.stderr)
        self.world.run("bpftool", "map", "update", "pinned", self.pin("tenants"),
                       *"key hex 01 00 00 00 value pinned".split(), self.pin("pattern"))
        self.reload(self.declare("tenants", [entry]))
        self.assertIn(entry, self.entries("tenants"))
        self.assertIn({"key": "0x01000000", "value": []}, self.entries("tenants"))

    def test_inner_maps_that_are_made_otherwise_are_refused(self):
        self.foreign_inner("pattern", entries=99)
        self.world.run("bpftool", "map", "create", self.pin("tenants"), *"type array_of_maps key 4 value 4 entries 4 "
                       "name tenants inner_map pinned".split(), self.pin("pattern"))
        self.world.run("bpftool", "map", "update", "pinned", self.pin("tenants"),
                       *"key hex 01 00 00 00 value pinned".split(), self.pin("pattern"))
        self.start(self.declare("limits", LIMITS))
        refused = self.reload(self.tenants(), check=False)
        self.assertEqual(4, refused.returncode)
        self.assertIn("/maps/0/inner: the inner maps at", refused.stderr)
        self.assertIn("are another kind: hash, keys of 4 and values of 4 bytes, 99 entries", refused.stderr)

    def test_a_fault_in_an_inner_entry_has_its_place(self):
        self.start(self.declare("limits", LIMITS))
        bad = [{"key": 1, "value": [{"key": "10.0.0.1", "value": {"limit": "many"}}]}]
        refused = self.reload(self.created(bad), check=False)
        self.assertIn("/maps/0/entries/0/value/0/value/limit: ", refused.stderr)
        self.assertFalse(self.pin("tenants").exists())


class ForeignChangesTest(DeclaredMapsTest):
    FOREIGN = "c0 00 02 63 00 35 11 00"  # 192.0.2.99, 53, 17

    def test_what_others_break_is_repaired_by_the_next_comparison(self):
        self.start(self.declare("flows", FLOWS))
        self.delete("flows", "c0 00 02 01 01 bb 06 00")
        self.update("flows", "c0 00 02 02 00 35 11 00", "01 00 00 00" + " 00" * 12)
        self.reload(self.declare("flows", FLOWS))
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        self.assertEqual(2, self.status("flows")["resync"]["repaired"])
        self.assertIn("in sync, 2 repaired", self.daemon.ctl("status").stdout)

    def test_what_others_add_stays_without_prune_and_goes_with_it(self):
        self.update("flows", self.FOREIGN, " ".join(["00"] * 16))
        self.start(self.declare("flows", FLOWS))
        self.assertEqual(3, len(self.entries("flows")))
        self.assertEqual(1, self.status("flows")["resync"]["foreign"])
        self.reload(self.declare("flows", FLOWS, prune=True))
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        self.assertEqual(1, self.status("flows")["resync"]["removed"])

    def test_a_new_daemon_adopts_what_is_right(self):
        self.start(self.declare("flows", FLOWS))
        self.daemon.stop()
        self.start(self.declare("flows", FLOWS))
        status = self.status("flows")
        self.assertEqual((0, len(FLOWS)), (status["written"], status["resync"]["adopted"]))


class PinsTest(DeclaredMapsTest):
    def created(self, **more):
        return {"name": "made", "pin": str(self.folder / "deep" / "made"),
                "layout": {"key": {"prefixlen": "u32", "addr": "ipv4"}, "value": "u32"},
                "create": {"type": "lpm_trie", "maxEntries": 16},
                "entries": [{"key": {"prefixlen": 8, "addr": "10.0.0.0"}, "value": 1}], **more}

    def test_a_map_that_does_not_exist_is_made(self):
        self.start(self.created())
        self.assertEqual(self.created()["entries"], self.entries("made"))
        shown = json.loads(subprocess.run(["bpftool", "-j", "map", "show", "pinned", self.folder / "deep" / "made"],
                                          capture_output=True, check=True).stdout)
        self.assertEqual(("lpm_trie", 8, 4, 16),
                         (shown["type"], shown["bytes_key"], shown["bytes_value"], shown["max_entries"]))

    def test_a_map_with_a_bad_entry_is_not_made(self):
        self.start(self.declare("limits", LIMITS))
        bad = self.created(entries=[{"key": {"prefixlen": 8, "addr": "10.0.0.1"}, "value": 1}])
        refused = self.reload(bad, check=False)
        self.assertEqual(4, refused.returncode)
        self.assertIn("/maps/0/entries/0/key: bits are set behind the prefix length, which is 8", refused.stderr)
        self.assertFalse((self.folder / "deep").exists())

    def test_a_pin_that_is_missing_holds_up_nothing_and_is_picked_up_when_it_appears(self):
        late = {**self.declare("flows", FLOWS), "name": "late", "pin": str(self.folder / "late")}
        self.start(late, self.declare("limits", LIMITS))
        self.assertEqual("waiting", self.status("late")["state"])
        self.assertEqual("in sync", self.status("limits")["state"])
        self.pin("flows").rename(self.folder / "late")
        harness.wait_until(lambda: self.status("late")["state"] == "in sync", "the map is picked up")
        self.assertEqual(in_order(FLOWS), in_order(self.entries("late")))

    def test_entries_that_do_not_fit_a_map_that_appears_are_reported(self):
        late = {**self.declare("flows", [{"key": 1, "value": 2}]), "name": "late", "pin": str(self.folder / "late")}
        self.start(late)
        self.pin("flows").rename(self.folder / "late")
        harness.wait_until(lambda: self.status("late")["state"] == "failed", "the fault is found")
        self.assertIn("/maps/0/entries/0/key: expected a mapping of saddr, port, protocol",
                      self.status("late")["faults"][0])
        self.assertEqual([], self.dump_at(self.folder / "late"))

    def dump_at(self, path):
        return json.loads(subprocess.run(["bpftool", "-j", "map", "dump", "pinned", path], capture_output=True,
                                         check=True).stdout)

    def load_another(self):
        """Maps and programs as in self.folder, new ones: as a program does that is started again."""
        another = self.world.bpffs.parent / "another"
        another.mkdir()
        self.world.run("bpftool", "prog", "loadall", self.object(), another / "programs", "pinmaps", another)
        return another

    def wait_for_state(self, name, state):
        harness.wait_until(lambda: self.status(name)["state"] == state, f"{name} is {state}")

    def test_a_map_that_takes_the_place_of_another_is_filled(self):
        self.start(self.declare("flows", FLOWS))
        before = self.status("flows")["id"]
        (self.load_another() / "flows").rename(self.pin("flows"))
        harness.wait_until(lambda: self.status("flows")["id"] != before, "the new map is noticed")
        self.wait_for_state("flows", "in sync")
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        self.assertEqual(0, self.reload(self.declare("flows", FLOWS[:1])).returncode)
        self.assertEqual(FLOWS[:1], self.entries("flows"))

    def test_a_pin_that_is_removed_is_noticed_and_the_next_map_there_is_filled(self):
        self.start(self.declare("flows", FLOWS), self.declare("limits", LIMITS))
        self.pin("flows").unlink()
        self.wait_for_state("flows", "waiting")
        self.assertEqual("in sync", self.status("limits")["state"])
        (self.load_another() / "flows").rename(self.pin("flows"))
        self.wait_for_state("flows", "in sync")
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))

    def test_the_pin_of_a_map_that_mapgate_makes_is_put_back(self):
        self.start(self.created())
        before = self.status("made")["id"]
        pin = self.folder / "deep" / "made"
        pin.unlink()
        harness.wait_until(pin.exists, "it is pinned again")
        self.wait_for_state("made", "in sync")
        self.assertEqual(before, self.status("made")["id"])
        self.assertEqual(self.created()["entries"], self.entries("made"))

    def test_the_folder_of_a_pin_is_made_again_too(self):
        self.start(self.created(), self.declare("limits", LIMITS))
        pin = self.folder / "deep" / "made"
        shutil.rmtree(pin.parent)
        harness.wait_until(pin.exists, "it is pinned again")
        shutil.rmtree(pin.parent)
        # The reload itself looks, and does not say "in sync" of what is not there.
        self.reload(self.created(), self.declare("limits", LIMITS))
        self.assertTrue(pin.exists())
        self.pin("limits").unlink()
        self.reload(self.created(), self.declare("limits", LIMITS))
        self.assertEqual("waiting", self.status("limits")["state"])

    def test_a_map_of_another_kind_in_the_place_is_reported_and_left_alone_until_a_reload(self):
        self.start(self.declare("flows", FLOWS, prune=True))
        another = self.load_another()
        self.world.run("bpftool", "map", "update", "pinned", another / "limits", *"key hex 01 00 00 00 value hex "
                       "09 00 00 00 00 00 00 00".split())
        (another / "limits").rename(self.pin("flows"))
        self.wait_for_state("flows", "failed")
        self.assertIn("another kind of map is pinned there now", self.status("flows")["error"])
        self.assertEqual([0, 9, 0, 0], [entry["value"] for entry in self.dump("flows")])
        self.assertEqual(0, self.reload(self.declare("flows", LIMITS)).returncode)
        self.assertEqual("in sync", self.status("flows")["state"])

    def test_a_reload_right_after_a_map_was_replaced_goes_to_the_new_one(self):
        self.start(self.declare("flows", FLOWS))
        (self.load_another() / "flows").rename(self.pin("flows"))
        self.assertEqual(0, self.reload(self.declare("flows", FLOWS[:1])).returncode)
        self.assertEqual(FLOWS[:1], self.entries("flows"))

    def test_maps_of_mapgates_own_are_refused(self):
        self.start(self.declare("limits", LIMITS))
        refused = self.reload({"name": "mine", "pin": str(self.daemon.bpffs / "maps" / "mg_addresses"), "entries": []},
                              check=False)
        self.assertEqual(4, refused.returncode)
        self.assertIn("/maps/0/pin", refused.stderr)
        self.assertIn("mapgate's own maps", refused.stderr)

    def test_a_map_that_evicts_is_refused_with_the_reason(self):
        subprocess.run(["bpftool", "map", "create", self.pin("lru"), "type", "lru_hash", "key", "4", "value", "4",
                        "entries", "8", "name", "lru"], check=True)
        self.start(self.declare("lru", [{"key": "0x00000000", "value": "0x00000000"}]), self.declare("limits", LIMITS))
        self.assertEqual("failed", self.status("lru")["state"])
        self.assertIn("evicts", self.status("lru")["error"])
        self.assertEqual("in sync", self.status("limits")["state"])

    def test_a_map_whose_elements_have_no_bytes_is_refused_with_the_reason(self):
        self.world.run("bpftool", "map", "create", self.pin("rb"), "type", "ringbuf", "key", "0", "value", "0",
                       "entries", "4096", "name", "rb")
        ring_buffer, limits = self.declare("rb"), self.declare("limits", LIMITS)
        self.start(ring_buffer, limits)
        self.assertEqual("failed", self.status("rb")["state"])
        self.assertIn("are not supported", self.status("rb")["error"])
        reloaded = self.reload(self.declare("rb", [{"key": "0x", "value": "0x"}]), limits, check=False)
        self.assertEqual(3, reloaded.returncode)
        self.assertIn("map rb: ", reloaded.stdout)
        self.assertEqual("failed", self.status("rb")["state"])
        self.assertIn("are not supported", self.status("rb")["error"])
        self.assertEqual("in sync", self.status("limits")["state"])

    def test_what_does_not_fit_is_named_row_by_row(self):
        entries = [{"key": {"prefixlen": 32, "addr": f"10.0.0.{i}"}, "value": i} for i in range(20)]
        self.start(self.created(entries=entries))
        status = self.status("made")
        self.assertEqual((16, 4), (status["rows"]["done"], status["rows"]["error"]))
        self.assertTrue(status["nearly_full"])
        named = {error["key"]["addr"] for error in status["errors"]}
        self.assertEqual({entry["key"]["addr"] for entry in entries} -
                         {entry["key"]["addr"] for entry in self.entries("made")}, named)
        failing = self.daemon.json("get", "--map", "made", "--state", "error")["entries"]
        self.assertEqual(named, {row["key"]["addr"] for row in failing})

    def test_a_reload_and_the_log_say_that_rows_fail_until_they_do_not(self):
        entries = [{"key": {"prefixlen": 32, "addr": f"10.0.0.{i}"}, "value": i} for i in range(20)]
        self.start(self.declare("limits", LIMITS))
        reloaded = self.reload(self.created(entries=entries), check=False)
        self.assertEqual(3, reloaded.returncode)
        complaint = 'map made: 4 entries are not in the kernel as declared, the first because: map "made" is full'
        self.assertIn(complaint, reloaded.stdout)
        self.assertEqual("failing", self.status("made")["state"])
        harness.wait_until(lambda: complaint in self.daemon.log_text(), "it is logged")
        self.reload(self.created(entries=entries[:16]))
        self.assertEqual("in sync", self.status("made")["state"])
        harness.wait_until(lambda: "map made: all of its entries" in self.daemon.log_text(), "and that it is over")

    def test_a_pin_that_can_be_none_is_refused_with_the_reason(self):
        nowhere = self.world.folder / "deep" / "made"
        folder, file = self.folder / "folder", self.world.folder / "file"
        folder.mkdir()
        file.write_text("")
        reasons = {nowhere: "is not on a BPF filesystem", folder: "is a folder, and no pin",
                   file: "is no pin: it is not on a BPF filesystem"}
        self.start(*(self.created(name=f"made{i}", pin=str(pin)) for i, pin in enumerate(reasons)))
        for i, reason in enumerate(reasons.values()):
            self.assertEqual("failed", self.status(f"made{i}")["state"])
            self.assertIn(reason, self.status(f"made{i}")["error"])
        self.assertFalse(nowhere.parent.exists())

    def test_a_map_that_the_kernel_has_no_memory_for_holds_up_nothing_and_is_tried_less_and_less_often(self):
        huge = {"name": "huge", "pin": str(self.folder / "huge"), "layout": {"key": "u32", "value": "hex[60000]"},
                "create": {"type": "array", "maxEntries": 60_000_000}}
        self.start(huge, self.declare("limits", LIMITS))
        self.assertEqual("failed", self.status("huge")["state"])
        self.assertIn("array, keys of 4 and values of 60000 bytes, 60000000 entries", self.status("huge")["error"])
        self.assertEqual("in sync", self.status("limits")["state"])


class OneWriterTest(DeclaredMapsTest):
    OTHERS = [{**FLOWS[0], "value": {"action": "ACTION_PASS", "comment": "the second's"}}]

    def pin_again(self, name, other):
        """Another pin of the same map."""
        self.world.run("bpftool", "map", "pin", "pinned", self.pin(name), self.pin(other))
        return self.pin(other)

    def second(self, *maps):
        daemon = harness.Daemon(self.world, "second")
        daemon.start(spec={"formatVersion": 1, "maps": list(maps)}, cgroups=())
        return daemon

    def test_a_second_daemon_names_the_first_and_takes_the_map_over_when_it_ends(self):
        self.start(self.declare("flows", FLOWS))
        again = {**self.declare("flows", self.OTHERS, prune=True), "pin": str(self.pin_again("flows", "again"))}
        second = self.second(again, self.declare("limits", LIMITS))
        self.assertEqual("in sync", self.status("limits", second)["state"])
        refused = self.status("flows", second)
        self.assertEqual("failed", refused["state"])
        self.assertIn(f"process {self.daemon.process.pid} (mapgated) writes this map", refused["error"])
        self.assertIn(refused["error"], second.ctl("status").stdout)
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        self.assertEqual(3, second.ctl("reload", "--timeout", "60", check=False, timeout=90).returncode)
        self.assertEqual(("failed", refused["error"]),
                         (self.status("flows", second)["state"], self.status("flows", second)["error"]))
        self.daemon.kill()
        harness.wait_until(lambda: self.status("flows", second)["state"] == "in sync", "the second takes over")
        self.assertIsNone(self.status("flows", second)["error"])
        self.assertEqual(self.OTHERS, second.json("get", "--map", "flows")["entries"])

    def test_a_declaration_that_goes_leaves_the_map_to_another_daemon(self):
        self.start(self.declare("flows", FLOWS))
        second = self.second(self.declare("flows", self.OTHERS))
        self.assertEqual("failed", self.status("flows", second)["state"])
        self.reload(self.declare("limits", LIMITS))
        harness.wait_until(lambda: self.status("flows", second)["state"] == "in sync", "the second takes over")

    def test_the_second_of_two_declarations_of_one_map_is_refused_until_the_first_goes(self):
        self.pin_again("flows", "again")
        first, again = self.declare("flows", FLOWS, prune=True), self.declare("again", self.OTHERS, prune=True)
        self.start(first, again)
        self.assertEqual("in sync", self.status("flows")["state"])
        self.assertEqual("failed", self.status("again")["state"])
        self.assertIn(f"as that of flows, which is pinned at {self.pin('flows')}", self.status("again")["error"])
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        self.reload(again)
        self.assertEqual("in sync", self.status("again")["state"])
        self.assertEqual(self.OTHERS, self.entries("again"))

    def test_a_declaration_may_change_its_name(self):
        self.start(self.declare("flows", FLOWS))
        self.reload({**self.declare("flows", self.OTHERS, prune=True), "name": "renamed"})
        self.assertEqual("in sync", self.status("renamed")["state"])
        self.assertEqual(self.OTHERS, self.entries("renamed"))


class RefusedTest(DeclaredMapsTest):
    def setUp(self):
        super().setUp()
        self.start(self.declare("flows", FLOWS))

    def assert_refused(self, reason, *maps):
        refused = self.reload(*maps, check=False)
        self.assertEqual(4, refused.returncode, refused.stderr)
        self.assertIn(reason, refused.stderr)
        self.assertEqual(in_order(FLOWS), in_order(self.entries("flows")))
        return refused.stderr

    def test_a_mismatch_names_the_field_and_its_place(self):
        wrong = [FLOWS[0], {**FLOWS[1], "value": {"action": "ACTION_MAYBE", "comment": ""}}]
        self.assert_refused("/maps/0/entries/1/value/action: expected one of ACTION_PASS, ACTION_DROP",
                            self.declare("flows", wrong))

    def test_a_key_given_twice_is_refused_naming_both_places(self):
        text = self.assert_refused("/maps/0/entries/2/key: the key is given twice, first at ",
                                   self.declare("flows", [*FLOWS, FLOWS[0]]))
        self.assertIn("/maps/0/entries/0", text)

    def test_bits_behind_a_prefix_are_refused(self):
        host = [{"key": {"prefixlen": 24, "addr": "198.51.100.1"}, "value": PREFIXES[0]["value"]}]
        self.assert_refused("bits are set behind the prefix length, which is 24", self.declare("prefixes", host))

    def test_a_bad_line_among_a_million_is_refused_with_its_number(self):
        lines = [f'{{"key": {index}, "value": {index}}}' for index in range(MILLION)]
        path = self.write_lines(lines)
        self.reload(self.declare("flows", FLOWS), self.declare("big", entriesFrom=path))
        self.assertEqual(MILLION, self.status("big")["rows"]["done"])
        lines[777_776] = '{"key": 777776, "value": "ten"}'
        self.write_lines(lines)
        self.assert_refused(":777777:", self.declare("flows", FLOWS), self.declare("big", entriesFrom=path))
        lines[777_776] = '{"key": 5, "value": 1}'
        self.write_lines(lines)
        text = self.assert_refused(":777777:", self.declare("flows", FLOWS), self.declare("big", entriesFrom=path))
        self.assertIn("the key is given twice, first at ", text)
        self.assertIn(f"{path}:6", text)
        self.assertEqual((MILLION, "in sync"), (self.status("big")["rows"]["done"], self.status("big")["state"]))

    def test_check_finds_bad_lines_where_the_spec_has_the_layout(self):
        path = self.write_lines(['{"key": 1, "value": 1}', '{"key": 2, "value": 4294967296}'])
        layout = {"key": "u32", "value": "u32"}
        self.daemon.write_spec({"formatVersion": 1, "maps": [self.declare("big", entriesFrom=path, layout=layout)]})
        checked = self.world.run(harness.binary("mapgated"), "--check", "--spec", self.daemon.spec, check=False)
        self.assertEqual((4, f"{path}:2:21: /value: expected an integer in 0..4294967295\n"),
                         (checked.returncode, checked.stderr))

    def test_a_file_that_is_no_regular_file_is_refused_at_once(self):
        fifo = self.world.folder / "fifo"
        os.mkfifo(fifo)
        for path in (fifo, "/dev/null", "/dev/zero", self.world.folder):
            with self.subTest(path=str(path)):
                spec = {"formatVersion": 1,
                        "maps": [self.declare("limits", entriesFrom=str(path), layout={"key": "u32", "value": "u64"})]}
                self.assert_refused(f"/maps/0/entriesFrom: {path}: is not a regular file", *spec["maps"])
                checked = self.world.run(harness.binary("mapgated"), "--check", "--spec", self.daemon.spec,
                                         check=False, timeout=60)
                self.assertEqual(4, checked.returncode)
                self.assertIn(f"/maps/0/entriesFrom: {path}: is not a regular file", checked.stderr)
                checked = self.world.run(harness.binary("mapgated"), "--check", "--spec", path, check=False,
                                         timeout=60)
                self.assertEqual((4, f"{path}: is not a regular file\n"), (checked.returncode, checked.stderr))

    def test_a_file_that_does_not_exist_is_named_with_the_map(self):
        text = self.assert_refused("/maps/0/entriesFrom: /nosuch.jsonl: cannot be opened: No such file or directory",
                                   self.declare("limits", entriesFrom="/nosuch.jsonl"))
        self.assertNotIn(":0:", text)

    def test_to_read_a_map_that_nobody_declared_is_an_error_that_names_those_that_are(self):
        typo = self.daemon.ctl("get", "--map", "flow", check=False)
        self.assertEqual(4, typo.returncode)
        self.assertIn("there is no map flow; the spec declares flows", typo.stderr)
        self.assertEqual(0, self.daemon.ctl("get", "--map", "mg_ports").returncode)

    def test_a_line_that_is_too_long_is_refused(self):
        path = self.write_lines(['{"key": 1, "value": 1}', '{"key": 2, "value": ' + " " * 70_000 + "2}"])
        self.assert_refused(":2:", self.declare("big", entriesFrom=path))


if __name__ == "__main__":
    harness.main()
