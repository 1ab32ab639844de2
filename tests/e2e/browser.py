"""A headless Chromium that shows a page, driven over its pipe (the DevTools protocol)."""

import json
import os
import shutil
import subprocess
import tempfile

import harness

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    def __init__(self, test, url):
        folder = tempfile.mkdtemp(prefix="keel-browser-")
        test.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        test.addCleanup(os.close, self.to)
        test.addCleanup(os.close, self.back)
        # Chromium reads 3 and writes 4.
        command = (
            f'exec 8<&{to_read} 9>&{to_write}; exec 3<&8 4>&9; exec "{CHROMIUM}" --headless=new --no-sandbox --disable-gpu '
            f"--disable-dev-shm-usage --no-first-run --user-data-dir={folder} --remote-debugging-pipe about:blank"
        )
        process = subprocess.Popen(["/bin/bash", "-c", command], pass_fds=(to_read, to_write),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        test.addCleanup(harness.end_with_children, process)
        self.calls, self.session, self.held, self.events = 0, None, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Log", "Runtime", "Page"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    def call(self, method, **parameters):
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                part = os.read(self.back, 65536)
                if not part:
                    raise AssertionError("the browser has ended")
                self.held += part
            text, self.held = self.held.split(b"\0", 1)
            got = json.loads(text)
            if got.get("id") == self.calls:
                if "error" in got:
                    raise AssertionError(f"{method}: {got['error']}")
                return got["result"]
            self.events.append(got)

    def evaluate(self, expression):
        """The value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def errors(self):
        """What went wrong in the page, as its console has it."""
        self.evaluate("0")
        return [e for e in self.events if e["method"] == "Runtime.exceptionThrown"
                or e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error"]  # fmt: skip
