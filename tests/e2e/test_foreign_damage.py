# SPDX-License-Identifier: Apache-2.0
"""Others break entries of declared maps, again and again, while the daemon repairs them.
MAPGATE_DAMAGE_SECONDS says for how long; 5 by default, 60 to be sure."""

import json
import os
import random
import subprocess
import threading
import time

import harness

SECONDS = int(os.environ.get("MAPGATE_DAMAGE_SECONDS", "5"))
ENTRIES = 400
KINDS = ("hash", "percpu_hash", "lpm_trie", "array", "percpu_array")


def little_endian(number):
    return number.to_bytes(4, "little")


def bpftool(*arguments, check=True):
    done = subprocess.run(["bpftool", "-j", "map", *map(str, arguments)], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(f"bpftool map {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}")
    return done


def in_hex(octets):
    return ["hex", *(f"{octet:02x}" for octet in octets)]


def octets_of(shown):
    return bytes(int(octet, 0) for octet in shown)


def value_of(element):
    """What an element of bpftool's output holds; what each CPU does, one after the other, where they differ."""
    if "value" in element:
        return octets_of(element["value"])
    per_cpu = {octets_of(cpu["value"]) for cpu in element["values"]}
    return per_cpu.pop() if len(per_cpu) == 1 else per_cpu


class DamagedMap:
    """One that is declared, and somebody who breaks its entries. An entry is broken again only after it was seen to be
    right again: so each damage is one repair."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.pin = folder / kind
        self.changed = self.deleted = 0
        self._random = random.Random(kind)
        self.thread = threading.Thread(target=self._break_entries)
        self._end = None
        self.error = None

    def start(self):
        self._end = time.monotonic() + SECONDS
        self.thread.start()

    @property
    def damage(self):
        return self.changed + self.deleted

    def value(self, index):
        return 0x01010101 + index

    def key(self, index):
        if self.kind == "lpm_trie":
            return little_endian(24) + bytes([10, index >> 8, index & 0xff, 0])
        return little_endian(index)

    def declaration(self):
        trie = self.kind == "lpm_trie"
        return {"name": self.kind, "pin": str(self.pin), "create": {"type": self.kind, "maxEntries": ENTRIES},
                "layout": {"key": {"prefixlen": "u32", "addr": "ipv4"} if trie else "u32", "value": "u32"},
                "entries": [{"key": {"prefixlen": 24, "addr": f"10.{index >> 8}.{index & 0xff}.0"} if trie else index,
                             "value": self.value(index)} for index in range(ENTRIES)]}

    def declared(self):
        return {self.key(index): little_endian(self.value(index)) for index in range(ENTRIES)}

    def content(self):
        shown = json.loads(bpftool("dump", "pinned", self.pin).stdout)
        return {octets_of(element["key"]): value_of(element) for element in shown}

    def _is_right(self, index):
        found = bpftool("lookup", "pinned", self.pin, "key", *in_hex(self.key(index)), check=False)
        return found.returncode == 0 and value_of(json.loads(found.stdout)) == little_endian(self.value(index))

    def _break_entries(self):
        try:
            while time.monotonic() < self._end:
                index = self._random.randrange(ENTRIES)
                if self._is_right(index):
                    self._break(index)
        except Exception as error:  # for the test's thread
            self.error = error

    def _break(self, index):
        key = in_hex(self.key(index))
        if "array" not in self.kind and self._random.random() < 0.5:
            bpftool("delete", "pinned", self.pin, "key", *key)
            self.deleted += 1
        else:
            wrong = little_endian(self.value(index) ^ self._random.randrange(1, 1 << 32))
            bpftool("update", "pinned", self.pin, "key", *key, "value", *in_hex(wrong))
            self.changed += 1


class ForeignDamageTest(harness.WorldTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.world.daemon
        folder = self.world.bpffs.parent / "other"
        folder.mkdir()
        self.maps = [DamagedMap(kind, folder) for kind in KINDS]
        self.spec = {"formatVersion": 1, "maps": [each.declaration() for each in self.maps]}

    def compare(self):
        """All maps are compared once, and what is wrong is put right."""
        self.daemon.ctl("reload", "--timeout", "60", timeout=90)

    def test_every_damage_is_one_repair_and_the_maps_end_right(self):
        self.daemon.start(spec=self.spec, cgroups=())
        for each in self.maps:
            each.start()
            self.addCleanup(each.thread.join)
        comparisons = 0
        while any(each.thread.is_alive() for each in self.maps):
            self.compare()
            comparisons += 1
        self.assertEqual([], [each.error for each in self.maps if each.error])
        self.compare()
        status = {entry["name"]: entry for entry in self.daemon.status()["declared_maps"]}
        for each in self.maps:
            with self.subTest(each.kind):
                found = status[each.kind]
                print(f"{each.kind}: {each.deleted} deleted, {each.changed} changed, {found['resync']['repaired']} "
                      f"repaired in {comparisons} comparisons")
                self.assertEqual(each.declared(), each.content())
                self.assertEqual(each.damage, found["resync"]["repaired"])
                self.assertEqual(ENTRIES + each.damage, found["written"])
                self.assertEqual(("in sync", ENTRIES, ENTRIES, 0),
                                 (found["state"], found["entries"], found["rows"]["done"], found["resync"]["foreign"]))
                self.assertGreater(each.changed, 0)
                self.assertEqual("array" in each.kind, each.deleted == 0)


if __name__ == "__main__":
    harness.main()
