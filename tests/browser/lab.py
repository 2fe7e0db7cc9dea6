"""A JupyterLab of its own for the tests: free port, empty settings, no news, no token."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

START_LIMIT_S = 90

#: What a test needs to be undisturbed, and the page to follow the browser's colour scheme.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/apputils-extension:themes": {"adaptive-theme": True},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}

KERNEL_IS_IDLE = (
    "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
)


class Lab:
    """A running JupyterLab that serves ``root``."""

    def __init__(self, folder: Path):
        self.root = folder / "notebooks"
        self.root.mkdir()
        self._log = folder / "lab.log"
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            self._command(),
            env=self._environment(folder),
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        self._wait()

    def _command(self):
        return [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.url.rsplit(':', 1)[1]}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
            "--IdentityProvider.token=",
            "--LabApp.expose_app_in_browser=True",
        ]

    def _environment(self, folder):
        overrides = folder / "config" / "labconfig" / "default_setting_overrides.json"
        overrides.parent.mkdir(parents=True)
        overrides.write_text(json.dumps(SETTINGS))
        own = {"CONFIG_DIR": "user", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
        paths = {f"JUPYTER_{name}": str(folder / place) for name, place in own.items()}
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")},
            **paths,
            "JUPYTER_CONFIG_PATH": str(folder / "config"),
            "IPYTHONDIR": str(folder / "ipython"),
        }

    def _wait(self):
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/api/status", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"JupyterLab did not start:\n{self._log.read_text()[-3000:]}")

    def open(self, page, notebook: str):
        """Open a notebook of `root` in ``page`` and wait until its cells are there."""
        page.goto(f"{self.url}/lab/tree/{notebook}?reset", wait_until="load")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)

    def run_all(self, page):
        """Run all cells of the open notebook and wait for the last."""
        page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
        page.evaluate(
            "jupyterapp.commands.execute('notebook:run-all-cells').then(() => ranAll = 1)"
        )
        page.wait_for_function("window.ranAll", timeout=120_000)

    def run_cell(self, page, index: int):
        """Run one cell of the open notebook."""
        page.evaluate("(i) => jupyterapp.shell.currentWidget.content.activeCellIndex = i", index)
        page.evaluate("void jupyterapp.commands.execute('notebook:run-cell')")

    def stop(self):
        self._process.terminate()
        self._process.wait(timeout=30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
