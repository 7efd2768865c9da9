"""A page in headless Chromium: opened from a file, at any width, asked, clicked, photographed.

Speaks the DevTools protocol over two pipes (`--remote-debugging-pipe`: JSON, each message ended by a zero byte), so
that nothing beside Chromium itself is needed: https://chromedevtools.github.io/devtools-protocol/. Chromium's own
`--window-size` cannot go below 500 pixels; the emulated screen can.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIME_LIMIT_S = 60.0
TALLEST = 6000
"""Pixels of a photograph; what lies further down is not in it."""
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


def found() -> str | None:
    """The path of a Chromium here; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """`with Chromium() as browser: browser.open(page, width=400); browser.ask("document.title")`."""

    def __init__(self) -> None:
        path = found()
        if path is None:
            raise RuntimeError("there is no Chromium here: apt-get install --no-install-recommends chromium")
        self._profile = tempfile.TemporaryDirectory(prefix="npucompose-chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads from 3 and writes to 4; bash puts the pipes there, whatever their numbers are here.
        command = [
            path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe",
            "about:blank",
        ]  # fmt: skip
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *command],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    _session: str | None = None

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, script: bool = True, dark: bool = False
    ) -> None:
        """Load a file, as on a screen of this width; without `script` as where scripts are switched off."""
        self._events.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self._call("Emulation.setScriptExecutionDisabled", value=not script)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=page.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key goes down and up again: `ArrowDown`, `Tab`, `a`."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """The pointer moves there, in pixels of the screen, and clicks."""
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self._call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if click else "none", clickCount=1
            )

    def complaints(self) -> list[str]:
        """What the page has put on the console since it was opened: refused loads, exceptions, messages."""
        self.ask("0")  # whatever was on its way is here then
        return [json.dumps(e["params"]) for e in self._events if e["method"] in COMPLAINTS]

    def scrolls_sideways(self) -> bool:
        """Whether something is wider than the screen."""
        return self.ask("document.documentElement.scrollWidth > document.documentElement.clientWidth")

    def photograph(self, path: Path, *, tallest: int = TALLEST, scale: float = 1.0) -> None:
        """The whole page as PNG, cut off below `tallest` pixels, then made smaller or larger."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], tallest), "scale": scale}
        taken = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        order: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        limit = time.monotonic() + TIME_LIMIT_S
        while True:
            message = self._next(limit)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._events.append(message)

    def _wait_for(self, method: str) -> None:
        limit = time.monotonic() + TIME_LIMIT_S
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._next(limit))

    def _next(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(limit - time.monotonic(), 0))[0]:
                raise TimeoutError(f"Chromium did not answer for {TIME_LIMIT_S:.0f} s")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError(f"Chromium ended with exit status {self._process.wait()}")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
