"""The little of the WebDriver protocol that the checks need, on chromedriver."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"left": "\ue012", "up": "\ue013", "right": "\ue014", "down": "\ue015", "enter": "\ue007", "home": "\ue011", "end": "\ue010"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def commands():
    """Where browser and driver are; None where one is missing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """A headless browser with one window."""

    def __init__(self, width=1280, height=1000):
        browser, driver = commands()
        port = free_port()
        self.driver = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        self.session = None
        self.wait_for_driver()
        options = {
            "binary": browser,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"],
        }
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self.session = self.ask("POST", "/session", {"capabilities": wanted})["sessionId"]

    def wait_for_driver(self):
        for _ in range(300):
            try:
                if self.ask("GET", "/status")["ready"]:
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError("chromedriver does not answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            if self.session:
                self.ask("DELETE", f"/session/{self.session}")
        finally:
            self.driver.terminate()
            self.driver.wait(10)

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def post(self, path, body):
        return self.ask("POST", f"/session/{self.session}{path}", body)

    def open(self, path):
        self.post("/url", {"url": Path(path).resolve().as_uri()})

    def run(self, script, *arguments):
        """What a script in the page returns."""
        return self.post("/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.post("/element", {"using": "css selector", "value": selector})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def keys(self, selector, *names):
        """Focuses an element and presses keys, one after the other."""
        self.run("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", self.find(selector))
        for name in names:
            key = KEYS.get(name, name)
            actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
            self.post("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def hover(self, selector, x, y):
        """Moves the pointer to a place in an element, in pixels from its upper left corner."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'start'})", element)
        box = self.run("const b = arguments[0].getBoundingClientRect(); return [b.left, b.top]", element)
        move = {"type": "pointerMove", "x": round(box[0] + x), "y": round(box[1] + y), "origin": "viewport", "duration": 0}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self.post("/actions", {"actions": [mouse]})

    def media(self, scheme):
        """Lets the page believe in light or dark."""
        parameters = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.post("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": parameters})

    def size(self, width, height):
        self.post("/window/rect", {"width": width, "height": height})

    def complaints(self):
        """What the page wrote to the console as errors or warnings."""
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"}) if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path):
        """The whole page as a picture."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        whole = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.post("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": whole})
        # Two frames: one for the new size, one for what is drawn anew because of it.
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        answer = self.post("/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": {"format": "png"}})
        self.post("/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})
        Path(path).write_bytes(base64.b64decode(answer["data"]))
