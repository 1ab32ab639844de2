"""A running `keel serve`, as tests ask it."""

import http.client
import json
import os
import pathlib
import re
import socket
import subprocess

import harness

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Server:
    """A running `keel serve`."""

    def __init__(self, test, model, *arguments, key=None, wait=True):
        environment = {**harness.environment(), **({"KEEL_API_KEY": key} if key else {})}
        self.key = key
        self.process = subprocess.Popen(
            [harness.KEEL, "serve", *([str(model)] if model else []), "--port", "0", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip
        test.addClassCleanup(self.end) if isinstance(test, type) else test.addCleanup(self.end)
        self.port = None
        if wait:
            self.wait()

    def wait(self):
        """Until it listens; what it said until then."""
        said = []
        while not said or not said[-1].startswith("serving "):
            said.append(self.process.stdout.readline())
            if not said[-1]:
                raise AssertionError("".join(said))
        self.port = int(said[-1].rsplit(":", 1)[1])
        return "".join(said)

    def end(self):
        harness.end_with_children(self.process)
        self.process.stdout.close()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.LIMIT_S)

    def send(self, path, body, **headers):
        """A connection with a POST under way."""
        connection = self.connect()
        if self.key:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        return connection

    def post(self, path, **body):
        """(status, JSON)."""
        connection = self.send(path, body)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text)

    def answer(self, path, **body):
        status, answer = self.post(path, **body)
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def stream(self, path, **body):
        """The objects of the events, which must end as they should."""
        connection = self.send(path, {**body, "stream": True})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != 200 or response.getheader("Content-Type") != "text/event-stream":
            raise AssertionError(f"{response.status}: {text}")
        events = text.split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            raise AssertionError(text[-300:])
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def get(self, path, **headers):
        connection = self.connect()
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def metrics(self):
        status, text = self.get("/metrics", **({"Authorization": f"Bearer {self.key}"} if self.key else {}))
        if status != 200:
            raise AssertionError(text)
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("keel_serve_"): float(value) for name, value in lines}

    def raw(self, sent):
        """What comes back for these bytes, until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=harness.LIMIT_S) as connection:
            connection.sendall(sent)
            got = b""
            try:
                while part := connection.recv(65536):
                    got += part
            except ConnectionResetError:
                pass
            return got

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def of_process(self, name):
        """A number of /proc's status: Threads, VmRSS (KiB)."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1])


def texts(answer):
    """Of an answer's choices, in their order."""
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]


def joined(events):
    """{choice: (its text, its finish_reason)} of a stream."""
    found = {}
    for event in events:
        for choice in event["choices"]:
            text, finish = found.get(choice["index"], ("", None))
            assert finish is None, "a chunk behind the last"
            text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            found[choice["index"]] = text, choice["finish_reason"]
    return found
