"""One cache server and one verify node as processes of this program; runs of vericache-node on the draft node's side."""
import json
import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Programs:
    def __init__(self, build):
        self.server = str(build / "cache-server" / "vericache-server")
        self.ctl = str(build / "cache-server" / "vericachectl")
        self.node = str(build / "inference-node" / "vericache-node")
        self.relay = str(build / "bench" / "vericache-relay")


class Service:
    """A long-running process that writes its addresses to a file once it is ready."""

    def __init__(self, name, command, workdir, timeout_s=60):
        self.name = name
        self.port_file = pathlib.Path(workdir) / f"{name}.port"
        self.log = pathlib.Path(workdir) / f"{name}.log"
        self.port_file.unlink(missing_ok=True)
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(command + ["--port-file", str(self.port_file)], stdout=out,
                                            stderr=subprocess.STDOUT)
        try:
            self._wait_ready(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, deadline):
        while not self.port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.port = int(re.search(r"^listen=\S*:(\d+)$", self.port_file.read_text(), re.MULTILINE).group(1))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Cluster:
    def __init__(self, programs, model, workdir, threads, listen_host="127.0.0.1", server_flags=(), verify_flags=()):
        self.programs, self.model, self.workdir = programs, model, pathlib.Path(workdir)
        self.threads = threads
        self.services = []
        insecure = [] if listen_host.startswith("127.") else ["--insecure"]
        try:
            self.server = self._start("server", [programs.server, "--listen", f"{listen_host}:0", "--data-dir",
                                                 str(self.workdir / "data"), *insecure, *server_flags])
            self.verify = self._start("verify", [programs.node, "serve", "--role", "verify", "--model", str(model),
                                                 "--listen", f"{listen_host}:0", "--server",
                                                 f"{listen_host}:{self.server.port}", "--threads", str(threads),
                                                 *insecure, *verify_flags])
        except RuntimeError:
            self.close()
            raise
        self.server_address = f"{listen_host}:{self.server.port}"

    def _start(self, name, command):
        service = Service(name, command, self.workdir)
        self.services.append(service)
        return service

    def register(self, document, compressor, limit_tokens=0, flags=()):
        command = [self.programs.node, "register", "--model", str(self.model), "--server", self.server_address,
                   "--threads", str(os.cpu_count() or 1), "--compressor", compressor, "--limit-tokens",
                   str(limit_tokens), *flags, str(document)]
        return subprocess.run(command, check=True)

    def stats(self):
        out = subprocess.run([self.programs.ctl, "stats", "--json", "--server", self.server_address], check=True,
                             capture_output=True, text=True).stdout
        return json.loads(out)

    def close(self):
        for service in reversed(self.services):
            service.stop()
        self.services = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def calibration_flags(programs, model, workdir, compressor, texts):
    """Flags that name the blobs of a calibrated compressor, which are made first of the texts; none for any other."""
    listed = json.loads(subprocess.run([programs.ctl, "compressors", "--json"], check=True, capture_output=True,
                                       text=True).stdout)["compressors"]
    method = re.split("[:+]", compressor)[0]
    kinds = {c["name"]: c["calibrated"] for c in listed}
    if kinds.get(method) != "yes" and not (kinds.get(method) == "optional" and "offline" in compressor):
        return []
    folder = pathlib.Path(workdir) / "calibration"
    folder.mkdir(exist_ok=True)
    print(f"calibrating {method} ...", flush=True)
    subprocess.run([programs.node, "calibrate", "--model", str(model), "--method", method, "--calibration", str(folder),
                    "--threads", str(os.cpu_count() or 1), *texts], check=True)
    return ["--calibration", str(folder)]


def model_path():
    if "VERICACHE_MODEL" in os.environ:
        return pathlib.Path(os.environ["VERICACHE_MODEL"])
    cache = pathlib.Path(os.environ.get("VERICACHE_CACHE", pathlib.Path.home() / ".cache" / "vericache"))
    return cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
