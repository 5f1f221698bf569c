"""Debian's headless Chromium, driven by selenium, and installed first if possible."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

_PACKAGES = ("chromium", "chromium-driver")
_LONGEST = 240  # seconds for apt


class NoBrowser(Exception):
    """No browser is available; the message gives the reason."""


def installed() -> tuple[str, str]:
    """The paths of the browser and its driver, installed first if possible. Raises NoBrowser."""
    folder = os.open("/usr", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the programs exist before a parallel installation is complete
        if not (shutil.which("chromium") and shutil.which("chromedriver")):
            _install()
    finally:
        os.close(folder)
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        raise NoBrowser("apt-get installed chromium, but it is not on the PATH")
    return program, driver


def _install() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoBrowser("no chromium and chromedriver; installing them requires root and apt-get")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -qq", f"apt-get install -y -qq --no-install-recommends {' '.join(_PACKAGES)}"):
        try:
            done = subprocess.run(command.split(), env=environ, capture_output=True, text=True, timeout=_LONGEST)
        except subprocess.TimeoutExpired as error:
            raise NoBrowser(f"{command} took longer than {_LONGEST} s") from error
    if done.returncode:
        raise NoBrowser(f"{command} failed: {done.stderr[-500:]}")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A selenium driver. Raises NoBrowser."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = installed()
    with tempfile.TemporaryDirectory(prefix="elastic-chromium-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "no-proxy-server"):
            options.add_argument(f"--{flag}")
        options.add_argument(f"--user-data-dir={profile}")
        options.accept_insecure_certs = True  # the browser does not know the tests' authority
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        opened = webdriver.Chrome(options=options, service=Service(driver))
        try:
            opened.set_page_load_timeout(60)
            yield opened
        finally:
            opened.quit()


def resize(opened: Any, width: int, height: int, phone: bool = False) -> None:
    """Emulate a screen of this size, in CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(opened: Any, scheme: str) -> None:
    """Emulate the user's color scheme, `light` or `dark`."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


class Page:
    """A page in the browser."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def open(self, url: str) -> None:
        self.opened.get("about:blank")  # browsers do not reload a page for a new fragment
        self.opened.get(url)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.opened.find_elements("css selector", selector)
        return found

    def shows(self, selector: str, *words: str, timeout: float = 60) -> str:
        """The visible text of the first match, once it contains one of the words."""
        text = "nothing"
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # the page may have replaced the element
                text = self.all(selector)[0].text
                if any(word in text for word in words):
                    return text
            time.sleep(0.02)
        raise AssertionError(f"expected {' or '.join(words)} in {selector} within {timeout} s, found {text!r}")

    def faults(self) -> list[str]:
        """The browser's complaints, except about a server that has stopped or requires a token."""
        logged = [
            entry["message"] for entry in self.opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]
        return [message for message in logged if "net::ERR_" not in message and "status of 401" not in message]


@contextlib.contextmanager
def a_browser() -> Iterator[Page]:
    """Without a browser or selenium, the test is skipped; if CI is set, it fails."""
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(browser())
        except (NoBrowser, ImportError) as error:
            if os.environ.get("CI", "").lower() in ("1", "true"):
                raise
            pytest.skip(f"no browser: {error}")
        yield Page(opened)
