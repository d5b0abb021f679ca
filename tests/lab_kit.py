"""JupyterLab on a folder, and a page of a real browser on it that can reach nothing else."""

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
]
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
                raise RuntimeError(f"JupyterLab ended: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not answer: {log.read_text()[-2000:]}")


@dataclass
class Visit:
    """A page, and what it complained about or tried to reach."""

    page: Any
    errors: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def open(self, address: str, notebook: str) -> None:
        """Open *notebook* and wait for its kernel."""
        self.page.goto(f"{address}/doc/tree/{notebook}?reset", wait_until="domcontentloaded")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=40_000)
        self.page.wait_for_function(IDLE, timeout=40_000)

    def run_all(self, seconds: float) -> None:
        """Run all cells, and wait until the last one has run."""
        done = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
        self.page.set_default_timeout(seconds * 1000)
        self.page.evaluate(
            f"() => {{ window.einnetDone = false; {done}.then(() => {{ window.einnetDone = true; }}); }}"
        )
        self.page.wait_for_function("() => window.einnetDone")


@contextmanager
def visit(width: int = 1280, height: int = 1000, scale: float = 1) -> Generator[Visit]:
    """A page whose requests to other hosts are refused and counted."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, tempfile.TemporaryDirectory() as profile:
        context = play.chromium.launch_persistent_context(
            profile,
            executable_path=browser(),
            headless=True,
            args=FLAGS,
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
        )
        visiting = Visit(context.pages[0] if context.pages else context.new_page())

        def decide(route: Any) -> None:
            if route.request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "file:")):
                route.continue_()
            else:
                visiting.strangers.append(route.request.url)
                route.abort()

        context.route("**/*", decide)
        page = visiting.page
        page.on("console", lambda m: visiting.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: visiting.errors.append(str(error)))
        try:
            yield visiting
        finally:
            context.close()
