"""A draft node's distance, on one machine: a network namespace of its own behind a veth pair shaped by tbf, and a relay in
it that adds delay (not every kernel has netem). Needs root, or a user namespace (reexec_in_user_namespace); without both the
relay does the pacing as well and there is no namespace (kind "relay").
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

MARK = "VC_DEMO_IN_USER_NAMESPACE"  # not VERICACHE_*: the programs refuse variables that are no option of theirs


def reexec_in_user_namespace():
    """As an ordinary user: starts this program again inside `unshare -rn` where that is allowed."""
    if os.geteuid() == 0 or MARK in os.environ:
        return
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0:
        os.environ[MARK] = "1"
        os.execvp("unshare", ["unshare", "-rn", sys.executable] + sys.argv)


def run(*args):
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


class SlowLink:
    """near: address at which servers on this side are reached from the far side. Use as a context manager."""

    def __init__(self, rate, delay_ms, relay, workdir, namespace=True):
        self.rate, self.delay_ms, self.relay_program = rate, delay_ms, relay
        self.workdir = pathlib.Path(workdir)
        self.holder = None
        self.relays = []
        self.kind = "relay"
        self.near = "127.0.0.1"
        if namespace and os.geteuid() == 0:
            try:
                self._make_namespace()
                self.kind = "namespace"
            except (RuntimeError, FileNotFoundError) as error:
                print(f"no network namespace ({error}); the relay does the pacing", file=sys.stderr)
                self.close()

    def _make_namespace(self):
        here, there = f"vch{os.getpid()}", f"vcd{os.getpid()}"
        self.interface = here
        subnet = f"10.219.{os.getpid() % 250}"
        run("ip", "link", "set", "lo", "up")
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        for _ in range(500):
            if os.readlink(f"/proc/{self.holder.pid}/ns/net") != own:
                break
            time.sleep(0.01)
        else:
            raise RuntimeError("unshare -n did not start")
        run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        run("ip", "link", "set", there, "netns", str(self.holder.pid))
        run("ip", "addr", "add", f"{subnet}.1/30", "dev", here)
        run("ip", "link", "set", here, "up")
        shape = ["root", "tbf", "rate", self.rate, "burst", "128kb", "latency", "100ms"]
        run("tc", "qdisc", "add", "dev", here, *shape)
        for command in (["ip", "link", "set", "lo", "up"], ["ip", "addr", "add", f"{subnet}.2/30", "dev", there],
                        ["ip", "link", "set", there, "up"], ["tc", "qdisc", "add", "dev", there, *shape]):
            run(*self.far(command))
        self.near = f"{subnet}.1"

    def far(self, command):
        """The command as it is started on the draft node's side."""
        if self.holder is None:
            return list(command)
        return ["nsenter", "-t", str(self.holder.pid), "-n"] + list(command)

    def connect(self, port):
        """HOST:PORT on the far side that leads to port on this side, with the delay (and here, without a namespace, the pacing)."""
        log = self.workdir / f"relay{len(self.relays)}.log"
        command = [self.relay_program, "--listen", "127.0.0.1:0", "--target", f"{self.near}:{port}", "--delay-ms",
                   str(self.delay_ms), "--stats-file", str(self.workdir / f"relay{len(self.relays)}.json")]
        if self.kind == "relay":
            command += ["--rate", self.rate]
        with open(log, "w") as out:
            process = subprocess.Popen(self.far(command), stdout=out, stderr=subprocess.STDOUT)
        self.relays.append((process, log))
        for _ in range(500):
            found = re.search(r"listening port=(\d+)", log.read_text())
            if found:
                return f"127.0.0.1:{found.group(1)}"
            if process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"relay did not start: {log.read_text()}")

    def bytes(self):
        """Bytes that crossed the link so far, both directions; None where only the relays count."""
        if self.holder is None:
            return None
        stats = json.loads(run("ip", "-s", "-j", "link", "show", "dev", self.interface))[0]["stats64"]
        return stats["rx"]["bytes"] + stats["tx"]["bytes"]  # /sys shows another namespace's devices in a user namespace

    def close(self):
        for process, _ in self.relays:
            process.terminate()
            process.wait()
        self.relays = []
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()  # the namespace goes with it, and the veth pair with the namespace
            self.holder = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
