# SPDX-License-Identifier: Apache-2.0
"""One isolated world for tests, demo and bench: a network and a mount namespace, a cgroup tree, nsd as the resolver,
servers, and mapgated. Everything in it ends with the World, and with this process at the latest."""

import contextlib
import inspect
import ipaddress
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import dns_message
import isolation
import servers
import workload_agent

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"

# Documentation and benchmarking addresses (RFC 5737, 3849, 2544); the namespace's lo answers for all of them.
RESOLVER = "192.0.2.53"
RESOLVER_V6 = "2001:db8::53"
STUB = "127.0.0.53"
WORLD_NETWORKS = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15")
WORLD_NETWORKS_V6 = ("2001:db8::/32",)
NEVER_RESOLVED = "198.51.100.99"

HTTP, HTTPS, ECHO = 80, 443, servers.ECHO_PORT

# Generous: it is waited for only where something is wrong, or where the machine is slow.
DEADLINE = 30.0


def build_folder():
    """The CMake build whose binaries are used: MAPGATE_BUILD, set by ctest and the scripts."""
    return pathlib.Path(os.environ.get("MAPGATE_BUILD", SOURCE / "build" / "debug"))


def binary(name):
    for path in (build_folder() / "agent" / name, build_folder() / "tests" / "e2e" / name,
                 build_folder() / "tests" / "bench" / name, build_folder() / "bin" / name):
        if path.exists():
            return str(path)
    raise FileNotFoundError(f"{name} is not in {build_folder()}; build it first (scripts/build)")


def many_address(index):
    """One of 131,072 distinct addresses of the benchmarking network."""
    return f"198.{18 + (index >> 16)}.{(index >> 8) & 255}.{index & 255}"


def wait_until(condition, what, timeout=DEADLINE, interval=0.01):
    """Waits for condition() to be true and returns its value; fails saying what did not come true."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(interval)


def format_address(octets):
    """An address of the maps, 16 bytes as bpftool shows them, as text."""
    address = ipaddress.IPv6Address(bytes(int(octet, 0) if isinstance(octet, str) else octet for octet in octets))
    return str(address.ipv4_mapped or address)


def dump_map(path):
    """The elements of a pinned map with BTF as bpftool shows them. It has no value for an element that went between
    its listing and its reading: such a one is left out."""
    done = subprocess.run(["bpftool", "-j", "map", "dump", "pinned", path], capture_output=True, text=True, check=True)
    return [element["formatted"] for element in json.loads(done.stdout) if "formatted" in element]


def answers(resolver):
    """Whether somebody answers there at all."""
    try:
        return dns_message.ask("ns.test", resolver, timeout=0.2) is not None
    except OSError:
        return False


class Resolver:
    """nsd with generated zones."""

    CONFIG = """
server:
  username: ""
  chroot: ""
  database: ""
  zonesdir: "{folder}"
  pidfile: "{folder}/nsd.pid"
  xfrdfile: "{folder}/xfrd.state"
  zonelistfile: "{folder}/zone.list"
  xfrdir: "{folder}"
  server-count: {processes}
  tcp-count: 1000
  reuseport: yes
  rrl-ratelimit: 0
  verbosity: 0
  log-only-syslog: no
{addresses}
remote-control:
  control-enable: no
zone:
  name: "."
  zonefile: "zone"
"""

    def __init__(self, world, processes=1):
        self._world = world
        self.folder = world.folder / "nsd"
        self.folder.mkdir()
        self._records = {}
        self._process = None
        addresses = "\n".join(f"  ip-address: {address}@53" for address in (RESOLVER, RESOLVER_V6, STUB))
        (self.folder / "nsd.conf").write_text(
            self.CONFIG.format(folder=self.folder, addresses=addresses, processes=processes))

    def add(self, name, *records, ttl=60):
        """add("api.example.com", "A 192.0.2.10", "AAAA 2001:db8::10"); replaces what the name had."""
        self._records[name] = [f"{name}. {ttl} IN {record}" for record in records]

    def remove(self, name):
        del self._records[name]

    def publish(self):
        """Makes the records known: starts nsd, or starts it again."""
        lines = [f". 60 IN SOA ns.test. hostmaster.test. {int(time.time())} 60 60 60 5", ". 60 IN NS ns.test."]
        for records in self._records.values():
            lines += records
        (self.folder / "zone").write_text("\n".join(lines) + "\n")
        self.stop()
        self.start()

    def start(self):
        self._process = self._world.spawn(["nsd", "-d", "-c", self.folder / "nsd.conf"], cgroup="servers",
                                          log=self.folder / "log")
        wait_until(self._answers, f"nsd answers (its log: {self.folder / 'log'})")

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=DEADLINE)
            self._process = None

    def _answers(self):
        if self._process.poll() is not None:
            raise AssertionError(f"nsd ended:\n{(self.folder / 'log').read_text()}")
        return answers(RESOLVER)


class Daemon:
    """mapgated with folders of its own; one beside the world's has a name."""

    def __init__(self, world, name=None):
        self._world = world
        self._folder = world.folder / name if name else world.folder
        self._folder.mkdir(exist_ok=True)
        self.spec = self._folder / "spec.json"
        self.bpffs = world.bpffs.with_name(name) if name else world.bpffs
        self.socket = self._folder / "run" / "control.sock"
        self.log = self._folder / "mapgated.log"
        self.process = None

    def write_spec(self, spec):
        self.spec.write_text(spec if isinstance(spec, str) else json.dumps(spec, indent=2))

    def command(self, *flags):
        return [binary("mapgated"), "--spec", self.spec, "--state-dir", self._folder / "state",
                "--runtime-dir", self._folder / "run", "--bpffs", self.bpffs,
                "--cgroup-root", self._world.cgroups.path, *flags]

    def start(self, *flags, spec=None, cgroups=("web",)):
        """Starts it and waits until it enforces the whole spec for the workloads of these cgroups, which are made first:
        what a process asks for before its cgroup is attached is nobody's business."""
        if spec is not None:
            self.write_spec(spec)
        for name in cgroups:
            self._world.cgroups.child(name)
        self.process = self._world.spawn(self.command(*flags), cgroup="node", log=self.log)
        wait_until(self._running, f"mapgated runs (its log: {self.log})", timeout=30)
        self.wait_realised()
        for name in cgroups:
            wait_until(lambda path=f"/{name}": self._enforces(path), f"/{name} is enforced")
        return self

    def _enforces(self, cgroup):
        states = {workload["cgroup"]: workload["state"] for workload in self.status()["workloads"]}
        return states.get(cgroup, "enforced") == "enforced"

    def _running(self):
        if self.process.poll() is not None:
            raise AssertionError(f"mapgated ended with {self.process.returncode}:\n{self.log_text()}")
        return self.socket.exists() and self.ctl("status", check=False).returncode == 0

    def log_text(self):
        return self.log.read_text(errors="replace")

    def ctl(self, *arguments, check=True, timeout=DEADLINE):
        """Runs mapgatectl and returns the finished process."""
        done = subprocess.run([binary("mapgatectl"), "--socket", self.socket, *map(str, arguments)],
                              capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise AssertionError(f"mapgatectl {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr}"
                                 f"\nmapgated's log:\n{self.log_text()[-4000:]}")
        return done

    def json(self, *arguments):
        return json.loads(self.ctl("-o", "json", *arguments).stdout)

    def status(self):
        return self.json("status")

    def wait_realised(self):
        """Waits until the spec is in force and the kernel has every row of now."""
        wait_until(lambda: self.status()["spec"]["state"] == "applied", "the spec is applied", timeout=30)
        self.ctl("wait", self.status()["revision"], timeout=30)

    def workload(self, name="web"):
        """What status says of a workload."""
        return next(workload for workload in self.status()["workloads"] if workload["name"] == name)

    def rows(self, **filters):
        """The rows of the table with their status, as `mapgatectl get` lists them."""
        flags = [part for key, value in filters.items() for part in (f"--{key}", value)]
        return self.json("get", *flags)["entries"]

    def failing_rows(self):
        return self.rows(state="error")

    def pinned_map(self, name):
        return self.bpffs / "maps" / name

    def dump(self, name):
        """The entries of a pinned map as the kernel has them; (key, value) by the map's BTF."""
        return [(element["key"], element["value"]) for element in dump_map(self.pinned_map(name))]

    def kernel_addresses(self):
        """The learned addresses that the kernel's map holds, sorted."""
        return sorted(format_address(key["address"]) for key, _ in self.dump("mg_addresses"))

    def reload(self, spec=None):
        """SIGHUP; the caller waits for what it expects."""
        if spec is not None:
            self.write_spec(spec)
        self.process.send_signal(signal.SIGHUP)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=DEADLINE)
        return self.process.returncode if self.process else None


class Agent:
    """A process inside a workload. Its methods are those of workload_agent.Agent; begin() starts one of them and
    result() waits for it, to do other things meanwhile."""

    def __init__(self, world, cgroup, prefix=()):
        self._process = world.spawn([*prefix, PYTHON, SOURCE / "tests" / "e2e" / "workload_agent.py"], cgroup=cgroup,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    @property
    def pid(self):
        return self._process.pid

    def end(self):
        self._process.kill()
        self._process.wait()

    def begin(self, name, *arguments, **named):
        bound = inspect.signature(getattr(workload_agent.Agent, name)).bind(None, *arguments, **named)
        command = {key: value for key, value in bound.arguments.items() if key != "self"}
        self._process.stdin.write(json.dumps({"do": name, **command}) + "\n")

    def result(self):
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the process in the workload ended")
        return json.loads(line)

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.begin(name, *arguments, **named)
            return self.result()

        return call



class World:
    FOLDER_PREFIX = "mapgate-world-"

    def __init__(self, resolver_processes=1):
        self._stack = contextlib.ExitStack()
        self._resolver_processes = resolver_processes
        self._processes = []

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _build(self):
        isolation.new_mount_namespace()
        isolation.new_network_namespace()
        for network in WORLD_NETWORKS:
            self.run("ip", "route", "add", "local", network, "dev", "lo")
        for network in WORLD_NETWORKS_V6:
            self.run("ip", "-6", "route", "add", "local", network, "dev", "lo")
        # Assigned as well, because an IPv6 server can bind only to what is, and getaddrinfo's AI_ADDRCONFIG leaves out
        # a family that has no address but loopback's.
        self.run("ip", "addr", "add", f"{RESOLVER}/32", "dev", "lo")
        self.run("ip", "addr", "add", f"{RESOLVER_V6}/128", "dev", "lo", "nodad")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=self.FOLDER_PREFIX))
        self._stack.callback(shutil.rmtree, self.folder)
        self.bpffs = self._mount_bpffs()
        self.cgroups = isolation.CgroupTree(isolation.cgroup2_mount(self.folder / "cgroup2"))
        self._stack.callback(self._end_processes)
        self._use_resolvers(RESOLVER, RESOLVER_V6, STUB)
        self.resolver = Resolver(self, self._resolver_processes)
        self.daemon = Daemon(self)

    def _mount_bpffs(self):
        path = self.folder / "bpf"
        path.mkdir()
        isolation.mount("bpf", path, "bpf")
        self._stack.callback(subprocess.run, ["umount", "--lazy", path], check=False)
        return path / "mapgate"

    def _use_resolvers(self, *addresses):
        """The C library of everything started from here asks these resolvers in turn, and nothing but DNS and
        /etc/hosts; workloads may ask them, as they are the node's."""
        self.set_resolvers(*addresses)
        (self.folder / "nsswitch.conf").write_text("hosts: files dns\n")
        for target in ("/etc/resolv.conf", "/etc/nsswitch.conf"):
            source = self.folder / pathlib.Path(target).name
            isolation.mount(source, os.path.realpath(target), None, isolation.MS_BIND)
            self._stack.callback(subprocess.run, ["umount", "--lazy", os.path.realpath(target)], check=False)

    def set_resolvers(self, *addresses, more=()):
        """The resolv.conf of what is started from now on."""
        lines = [*(f"nameserver {address}" for address in addresses), *more]
        (self.folder / "resolv.conf").write_text("\n".join(lines) + "\n")

    def run(self, *command, cgroup=None, check=True, timeout=60, **options):
        """Runs a command in this world to its end, with its output as text; see spawn."""
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout,
                              preexec_fn=self._entry(cgroup), **options)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def spawn(self, command, cgroup, log=None, **options):
        """Starts a process in a cgroup of this world's tree; its output is appended to the file `log`. It ends with
        the World."""
        options.setdefault("stdin", subprocess.DEVNULL)
        with contextlib.ExitStack() as opened:
            if log is not None:
                options["stdout"] = options["stderr"] = opened.enter_context(open(log, "ab"))
            process = subprocess.Popen([str(part) for part in command], preexec_fn=self._entry(cgroup), **options)
        self._processes.append(process)
        return process

    def _end_processes(self):
        self.cgroups.close()
        for process in self._processes:
            process.communicate()

    def _entry(self, cgroup):
        procs = None if cgroup is None else self.cgroups.child(cgroup) / "cgroup.procs"

        def enter():
            isolation.die_with_parent()
            if procs is not None:
                procs.write_text("0")

        return enter

    def start_servers(self):
        process = self.spawn([PYTHON, SOURCE / "tests" / "e2e" / "servers.py"], cgroup="servers",
                             stdout=subprocess.PIPE, text=True)
        if process.stdout.readline() != "ready\n":
            raise AssertionError("the servers did not start")

    def agent(self, cgroup="web", prefix=()):
        """`prefix`: a command that runs the agent, in place of the shell's."""
        return Agent(self, cgroup, prefix)

    def counters(self, *names):
        """TCP counters of the network namespace, such as RetransSegs and TCPSynRetrans."""
        found = {}
        for file in ("/proc/self/net/snmp", "/proc/self/net/netstat"):
            lines = pathlib.Path(file).read_text().splitlines()
            for keys, values in zip(lines[::2], lines[1::2]):
                found.update(zip(keys.split()[1:], map(int, values.split()[1:])))
        return {name: found[name] for name in names}


def workload_spec(egress, name="web", cgroup="/web", **more):
    """A spec with one workload."""
    return {"formatVersion": 1,
            "policy": {"workloads": [{"name": name, "selector": {"cgroup": cgroup}, "egress": egress, **more}]}}


def allow_names(*names, ports=((HTTP, "TCP"),)):
    """An egress rule: names (a `*` makes it a pattern) to ports."""
    return {"toFQDNs": [{"matchPattern" if "*" in name else "matchName": name} for name in names],
            "toPorts": [{"port": port, "protocol": protocol} for port, protocol in ports]}


def allow_networks(*networks, ports=((HTTP, "TCP"),)):
    """An egress rule: CIDRs to ports."""
    return {"toCIDR": list(networks), "toPorts": [{"port": port, "protocol": protocol} for port, protocol in ports]}


class WorldTest(unittest.TestCase):
    """A test with a World of its own; `self.world`."""

    maxDiff = None

    def setUp(self):
        self._bad_before = self._bad_results()
        self.world = self.enterContext(World())

    def tearDown(self):
        if self._bad_results() != self._bad_before:
            self._show_log()

    def _bad_results(self):
        result = self._outcome.result
        return len(result.failures) + len(result.errors)

    def _show_log(self):
        log = self.world.daemon.log
        if log.exists():
            print(f"--- mapgated's log, the last lines:\n{log.read_text(errors='replace')[-6000:]}\n---", file=sys.stderr)


def _missing_requirement():
    if os.geteuid() != 0:
        return "needs root"
    for name in ("mapgated", "mapgatectl"):
        try:
            binary(name)
        except FileNotFoundError as error:
            return str(error)
    return None


def main():
    """Runs the calling module's tests. Without what they need they are skipped (exit 77), or fail where CI=true."""
    reason = _missing_requirement()
    if reason is not None:
        print(f"cannot run: {reason}", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") == "true" else 77)
    sys.exit(isolation.contained(_run_tests))


def _run_tests():
    return 0 if unittest.main(verbosity=2, exit=False).result.wasSuccessful() else 1
