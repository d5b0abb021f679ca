"""JupyterLab or marimo on a folder, and a page of a real browser on it that can reach nothing else."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
NEAR = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "file:", "about:")
IDLE = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
SETTINGS: dict[str, dict[str, dict[str, object]]] = {
    "@jupyterlab/apputils-extension": {"notification": {"fetchNews": "false", "checkForUpdates": False}},
    # All cells are on the page, also those that are not in view.
    "@jupyterlab/notebook-extension": {"tracker": {"windowingMode": "none"}},
}


def browser() -> str | None:
    """The path of a Chromium that is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def kernel_environment() -> dict[str, str]:
    """The environment of a kernel that imports this checkout, and keeps its warnings about itself to itself."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "widgets"), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


@contextmanager
def jupyterlab(folder: Path) -> Generator[str]:
    """The address of a JupyterLab that serves *folder*; its settings and its state live and die with it."""
    with tempfile.TemporaryDirectory(prefix="einnet-lab-") as home, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        for package, files in SETTINGS.items():
            (Path(home) / "settings" / package).mkdir(parents=True)
            for name, held in files.items():
                (Path(home) / "settings" / package / f"{name}.jupyterlab-settings").write_text(json.dumps(held))
        own = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "run",
            "IPYTHONDIR": "ipython",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        }
        environment = kernel_environment() | {name: str(Path(home) / place) for name, place in own.items()}
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
            *("--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password="),
            *("--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={folder}"),
            *("--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"),
        ]
        with (Path(home) / "log").open("w+") as log:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait_for(f"http://127.0.0.1:{port}/api/status", server, Path(home) / "log")
                yield f"http://127.0.0.1:{port}"
            finally:
                _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
    raise RuntimeError(f"the server does not answer: {log.read_text()[-2000:]}")


@dataclass
class Visit:
    """A page, and what it complained about or tried to reach."""

    page: Any
    notebook: str = ""
    errors: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Note errors and requests from now on."""
        page = self.page
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", lambda socket: self._asked(socket.url))

    def _asked(self, url: str) -> None:
        if not url.startswith(NEAR):
            self.strangers.append(url)

    def open(self, address: str, notebook: str) -> None:
        """Open *notebook* and wait for its kernel."""
        self.notebook = notebook
        self.page.goto(f"{address}/doc/tree/{notebook}?reset", wait_until="domcontentloaded")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.wait_for_function(IDLE, timeout=60_000)

    def run_all(self, seconds: float) -> None:
        """Run all cells, and wait until the last one has run."""
        done = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
        self.page.set_default_timeout(seconds * 1000)
        self.page.evaluate(
            f"() => {{ window.einnetDone = false; {done}.then(() => {{ window.einnetDone = true; }}); }}"
        )
        self.page.wait_for_function("() => window.einnetDone")


@contextmanager
def chromium() -> Generator[Any]:
    """A browser whose names of hosts lead nowhere, so that it reaches this machine only; its pages share a cache."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser(), headless=True, args=FLAGS)
        try:
            yield opened.new_context()
        finally:
            opened.close()


@contextmanager
def page_of(context: Any, width: int = 1280, height: int = 1000) -> Generator[Visit]:
    """A new page of the browser *context*."""
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": height})
    visiting = Visit(page)
    visiting.listen()
    try:
        yield visiting
    finally:
        page.close()


@contextmanager
def visit(width: int = 1280, height: int = 1000) -> Generator[Visit]:
    """A page of a browser of its own."""
    with chromium() as context, page_of(context, width, height) as visiting:
        yield visiting


@dataclass(frozen=True)
class Lab:
    """A JupyterLab on *folder* and a browser, which the tests of a module share."""

    address: str
    folder: Path
    context: Any

    @contextmanager
    def page(self, name: str, width: int, height: int) -> Generator[Visit]:
        """The notebook *name* in a page of its own; its kernel ends with the page."""
        with page_of(self.context, width, height) as visiting:
            visiting.open(self.address, name)
            try:
                yield visiting
            finally:
                self.end_kernels()

    def end_kernels(self) -> None:
        """End every kernel."""
        with urllib.request.urlopen(f"{self.address}/api/kernels") as said:
            kernels = json.load(said)
        for kernel in kernels:
            asked = urllib.request.Request(f"{self.address}/api/kernels/{kernel['id']}", method="DELETE")
            urllib.request.urlopen(asked).close()


@contextmanager
def marimo(script: Path) -> Generator[str]:
    """The address of marimo that runs the notebook *script* as an application."""
    with tempfile.TemporaryDirectory(prefix="einnet-marimo-") as home, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, "-m", "marimo", "run", str(script), "--headless", "--no-token", f"--port={port}"]
        homes = {f"XDG_{name}_HOME": home for name in ("CONFIG", "CACHE", "DATA", "STATE")} | {"HOME": home}
        with (Path(home) / "log").open("w+") as log:
            server = subprocess.Popen(command, env=kernel_environment() | homes, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait_for(f"http://127.0.0.1:{port}/health", server, Path(home) / "log")
                yield f"http://127.0.0.1:{port}"
            finally:
                _end(server)


@contextmanager
def laboratory(folder: Path) -> Generator[Lab]:
    """A JupyterLab on *folder* and a browser."""
    with jupyterlab(folder) as address, chromium() as context:
        yield Lab(address, folder, context)
