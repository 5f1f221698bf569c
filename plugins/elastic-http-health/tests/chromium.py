"""Debian's Chromium without a window, driven by selenium; installed first where that can be done."""

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
    """There is none, and why."""


def installed() -> tuple[str, str]:
    """Where the browser and its driver are. Raises NoBrowser."""
    with _alone():
        if not _found():
            _install()
    if not _found():
        raise NoBrowser("apt-get has installed chromium, and yet it is not there")
    return str(shutil.which("chromium")), str(shutil.which("chromedriver"))


def _found() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


def _install() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoBrowser("no chromium and chromedriver; to install them takes root and apt-get")
    _install_now()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Of several that run tests here, one looks and installs, and the others wait for it: the programs are there before
    all that they need is."""
    folder = os.open("/usr", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _install_now() -> None:
    install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("apt-get", "update", "-qq"), install):
        try:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_LONGEST)
        except subprocess.TimeoutExpired as error:
            raise NoBrowser(f"{' '.join(command)} took longer than {_LONGEST} s") from error
        if done.returncode and command is install:
            raise NoBrowser(f"{' '.join(command)} failed: {done.stderr[-500:]}")


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
        options.accept_insecure_certs = True  # those of tests are of an authority that it does not know
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        opened = webdriver.Chrome(options=options, service=Service(driver))
        try:
            opened.set_page_load_timeout(60)
            yield opened
        finally:
            opened.quit()


def resize(opened: Any, width: int, height: int, phone: bool = False) -> None:
    """As if on a screen of this size, in CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(opened: Any, scheme: str) -> None:
    """`light` or `dark`, as the user's system would say."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


class Page:
    """What a browser shows."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def open(self, url: str) -> None:
        self.opened.get("about:blank")  # a link to the same page is no reason for a browser to load it anew
        self.opened.get(url)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.opened.find_elements("css selector", selector)
        return found

    def shows(self, selector: str, *words: str, timeout: float = 60) -> str:
        """The visible text of the first that matches, once one of the words is in it."""
        text = "nothing"
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # what was found may be another by now
                text = self.all(selector)[0].text
                if any(word in text for word in words):
                    return text
            time.sleep(0.02)
        raise AssertionError(f"expected {' or '.join(words)} in {selector} within {timeout} s, found {text!r}")

    def faults(self) -> list[str]:
        """What the browser has complained of, but for a server that is gone."""
        told = [entry["message"] for entry in self.opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        return [message for message in told if "net::ERR_" not in message and "status of 401" not in message]


@contextlib.contextmanager
def a_browser() -> Iterator[Page]:
    """Without a browser, or without selenium, the test is skipped; where CI is set, it fails."""
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(browser())
        except (NoBrowser, ImportError) as error:
            if os.environ.get("CI", "").lower() in ("1", "true"):
                raise
            pytest.skip(f"no browser: {error}")
        yield Page(opened)
