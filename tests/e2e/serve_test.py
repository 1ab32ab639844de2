"""`keel serve`: what OpenAI's API is answered, against `keel generate` of the same prompts; who else asks, leaves in the middle, sends
garbage or nothing makes no difference to it."""

import concurrent.futures
import json
import os
import re
import select
import signal
import socket
import time
import unittest

import browser
import harness
from server import CHAT, COMPLETIONS, Server, joined, texts

KEY = "a key of this test"
UNAVAILABLE = 69
STORM_S = 60 if harness.NIGHTLY else 10
HI = [{"role": "user", "content": "hi"}]


class Serve(harness.Job):
    @classmethod
    def setUpClass(cls):
        """A run of one step, and a server of it with 512 positions a text."""
        job = cls("train_once")
        job.setUp()
        cls.addClassCleanup(job._clean)
        config = job.config(
            "run", trainer__total_training_steps=1, trainer__save_freq=1,
            actor_rollout_ref__model__config={**harness.MODEL, "max_position_embeddings": 512, "initializer_range": 0.2},
        )  # fmt: skip
        job.train(config)
        cls.step = job.run_dir("run") / "global_step_1"
        cls.server = Server(cls, cls.step, "--name", "tiny", "--read-timeout", 2, "--max-body-bytes", 100000)

    def train_once(self):
        pass

    def generate(self, rows, *arguments):
        """What `keel generate` makes of these rows."""
        path, output = self.folder / "rows.jsonl", self.folder / "out.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = harness.keel("generate", "--model", self.step, "--input", path, "--output", output, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return harness.read_jsonl(output)

    def wait_for_quiet(self, server):
        quiet = ("sequences_running", "sequences_waiting", "samples_open", "kv_blocks_held")
        self.wait_until(lambda: not any(server.metrics()[name] for name in quiet), "nothing runs", server.process)

    def test_answers_are_those_of_generate(self):
        """Greedy and sampled; several prompts and samples; texts, ids and messages; whole and in chunks."""
        prompts = ["the", "0123456789"]
        for options, flags in (
            ({"temperature": 0}, []),
            ({"temperature": 1, "seed": 5, "n": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1},
             ["--temperature", 1, "--seed", 5, "--n", 3, "--top-p", 0.9, "--top-k", 50, "--min-p", 0.01,
              "--repetition-penalty", 1.1]),
        ):  # fmt: skip
            with self.subTest(options):
                rows = self.generate([{"text": text} for text in prompts], "--max-new-tokens", 20, *flags)
                asked = {**options, "prompt": prompts, "max_tokens": 20}
                answer = self.server.answer(COMPLETIONS, **asked)
                self.assertEqual(texts(answer), [row["output"] for row in rows])
                self.assertEqual([c["finish_reason"] for c in answer["choices"]], [row["finish_reason"] for row in rows])
                tokens = sum(len(row["output_ids"]) for row in rows)
                self.assertEqual(answer["usage"], {"prompt_tokens": 13, "completion_tokens": tokens, "total_tokens": 13 + tokens})
                streamed = joined(self.server.stream(COMPLETIONS, **asked))
                self.assertEqual(streamed, {i: (row["output"], row["finish_reason"]) for i, row in enumerate(rows)})
                ids = self.server.answer(COMPLETIONS, **{**asked, "prompt": [list(text.encode()) for text in prompts]})
                self.assertEqual(texts(ids), texts(answer))
        row = self.generate([{"messages": HI}], "--max-new-tokens", 20)[0]
        for limit in ("max_tokens", "max_completion_tokens"):
            asked = {"messages": HI, "temperature": 0, limit: 20}
            self.assertEqual(texts(self.server.answer(CHAT, **asked)), [row["output"]])
            self.assertEqual(joined(self.server.stream(CHAT, **asked)), {0: (row["output"], row["finish_reason"])})
        parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
        self.assertEqual(texts(self.server.answer(CHAT, messages=parts, temperature=0, max_tokens=20)), [row["output"]])

    def test_parts_of_text_are_a_text_whatever_the_template(self):
        """A template that knows texts alone wrote a list of parts down as Python prints it, into the prompt."""
        head, tail = "{% for m in messages %}<{{ m.role }}>", "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
        for number, content in enumerate((
            "{{ m.content }}", "{{ m.content | trim }}", "{{ '' + m.content }}",
            "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
        )):  # fmt: skip
            folder = self.folder / f"model_{number}"
            done = harness.keel("ckpt", "export-hf", self.step, folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            (folder / "chat_template.jinja").write_text(head + content + tail)
            server = Server(self, folder)
            asked = {"temperature": 0, "max_tokens": 5}
            wanted = server.answer(CHAT, messages=HI, **asked)
            parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
            answer = server.answer(CHAT, messages=parts, **asked)
            self.assertEqual((texts(answer), answer["usage"]), (texts(wanted), wanted["usage"]), content)
            self.assertEqual(answer["usage"]["prompt_tokens"], len("<user>hi<assistant>"))
            for wrong in ([], ["hi"], [{"type": "image_url", "image_url": {"url": "x"}}]):
                status, said = server.post(CHAT, messages=[{"role": "user", "content": wrong}], **asked)
                self.assertEqual((status, said["error"]["param"]), (400, "messages"), content)
            server.end()

    def test_tools_that_no_template_shows_are_refused(self):
        """They were dropped, and the answer was 200."""
        tools = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]
        templates = (None, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
        for template in templates:
            server = self.server
            if template is not None:
                folder = self.folder / "toolless"
                done = harness.keel("ckpt", "export-hf", self.step, folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                (folder / "chat_template.jinja").write_text(template)
                server = Server(self, folder)
            asked = {"messages": HI, "max_tokens": 2}
            status, said = server.post(CHAT, **asked, tools=tools)
            self.assertEqual((status, said["error"]["param"]), (400, "tools"), said)
            self.assertIn("shows none of them", said["error"]["message"])
            for nothing in ({"tools": []}, {"tools": tools, "tool_choice": "none"}):
                server.answer(CHAT, **asked, **nothing)
            called = {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "calc", "arguments": "{}"}}]}  # fmt: skip
            if template is not None:  # what an answer came with comes back
                server.answer(CHAT, max_tokens=2, messages=[*HI, called, {"role": "tool", "tool_call_id": "c", "content": "3"}])
                server.end()

    def test_log_probs_and_usage(self):
        row = self.generate([{"text": "the"}], "--max-new-tokens", 8, "--log-probs")[0]
        asked = {"prompt": "the", "max_tokens": 8, "temperature": 0, "logprobs": 0}
        found = self.server.answer(COMPLETIONS, **asked)["choices"][0]["logprobs"]
        self.assertEqual(found["token_logprobs"], row["output_log_probs"])
        self.assertEqual(len(found["text_offset"]), len(found["tokens"]))
        events = self.server.stream(COMPLETIONS, **asked, stream_options={"include_usage": True})
        parts = [event["choices"][0]["logprobs"]["token_logprobs"] for event in events[:-1]]
        self.assertEqual(sum(parts, []), row["output_log_probs"])
        self.assertEqual((events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], len(row["output_ids"])))
        chat = self.server.answer(CHAT, messages=HI, max_tokens=5, temperature=0, logprobs=True)["choices"][0]["logprobs"]
        wanted = self.generate([{"messages": HI}], "--max-new-tokens", 5, "--log-probs")[0]["output_log_probs"]
        self.assertEqual([one["logprob"] for one in chat["content"]], wanted)

    def test_stop_strings(self):
        """The text ends before it, whole and in chunks, of which none shows a part of it."""
        asked = {"prompt": "the", "max_tokens": 40, "temperature": 1, "seed": 11}
        text = texts(self.server.answer(COMPLETIONS, **asked))[0]
        stop = next(text[i : i + 2] for i in range(5, len(text)) if text[i : i + 2].isascii())
        wanted = text.split(stop)[0]
        for value in (stop, ["not in it", stop]):
            self.assertEqual(texts(self.server.answer(COMPLETIONS, **asked, stop=value)), [wanted])
            self.assertEqual(joined(self.server.stream(COMPLETIONS, **asked, stop=value)), {0: (wanted, "stop")})

    def test_what_is_wrong_is_said(self):
        def refused(status, part, path, param=None, **body):
            got, answer = self.server.post(path, **body)
            self.assertEqual(got, status, str(answer)[:300])
            self.assertIn(part, answer["error"]["message"])
            self.assertEqual(answer["error"]["param"], param)
            self.assertIsInstance(answer["error"]["type"], str)

        refused(400, "logit_bias", COMPLETIONS, "logit_bias", prompt="a", logit_bias={"1": 2})
        refused(400, "no_such", CHAT, "no_such", messages=HI, no_such=1)
        refused(400, "top_logprobs", CHAT, "top_logprobs", messages=HI, top_logprobs=2)
        refused(400, "700 tokens and 1 are asked for; the model has room for 512", COMPLETIONS, "prompt", prompt="a" * 700)
        refused(400, "the model has room for 512", CHAT, "messages", messages=[{"role": "user", "content": "a" * 700}])
        refused(400, "3 tokens and 510 are asked for; the model has room for 512", COMPLETIONS, "max_tokens", prompt="abc", max_tokens=510)
        refused(400, "no tokens", COMPLETIONS, "prompt", prompt="")
        refused(400, "vocabulary", COMPLETIONS, "prompt", prompt=[99999])
        refused(400, "stop_token_ids: 99999 is outside", COMPLETIONS, "stop_token_ids", prompt="a", stop_token_ids=[1, 99999])
        refused(400, "stop holds U+FFFD", COMPLETIONS, prompt="a", stop=["\ufffd"])
        refused(400, "role", CHAT, "messages", messages=[{"content": "a"}])
        refused(400, "a part of type image_url", CHAT, "messages", messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}])  # fmt: skip
        refused(400, "1280 at most", COMPLETIONS, prompt=["a"] * 1000, n=2)
        refused(404, "tiny", COMPLETIONS, "model", prompt="a", model="another")
        refused(404, "/v1/nothing", "/v1/nothing", prompt="a")
        refused(405, "GET", "/health", prompt="a")
        self.assertEqual(self.server.get(CHAT)[0], 405)
        self.assertEqual(self.server.answer(COMPLETIONS, prompt="a", model="tiny")["model"], "tiny")

    def test_http_1_0(self):
        """A client that knows no chunks gets a stream as it stands, to the connection's end."""
        body = json.dumps({"prompt": "a", "max_tokens": 4, "stream": True, "ignore_eos": True}).encode()
        head = "POST /v1/completions HTTP/1.{}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n"
        old = self.server.raw(head.format(0, len(body), "").encode() + body)
        new = self.server.raw(head.format(1, len(body), "Connection: close\r\n").encode() + body)
        self.assertNotIn(b"chunked", old)
        self.assertIn(b"chunked", new)
        events = old.split(b"\r\n\r\n", 1)[1].decode().split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        last = json.loads(events[-3].removeprefix("data: "))
        self.assertEqual(last["choices"][0]["finish_reason"], "length")

    def test_hostile_http(self):
        """Each is refused in words of HTTP, or cut off; the server goes on."""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        for status, sent in (
            (400, head + b"Content-Length: 9\r\n\r\nnot JSON!"),
            (400, head + b'Content-Length: 15\r\n\r\n{"prompt":"\xff\xfe"}'),
            (400, head + b"Content-Length: 20000\r\n\r\n" + b"[" * 20000),
            (400, head + b'Content-Length: 24\r\n\r\n{"prompt":"a","n":1e999}'),
            (411, head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello"),
            (411, head + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"),
            (411, head + b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
            (None, head + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n"),
            (400, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20000 + b"\r\n"),
            (400, head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
            (400, head + b"Content-Length: -1\r\n\r\n"),
            (400, head + b"Content-Length: 1e9\r\n\r\n"),
            (411, head + b"\r\n"),
            (411, head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            (413, head + b"Content-Length: 100001\r\n\r\n"),
            (413, head + b"Content-Length: 99999999999999999\r\n\r\n"),
            (415, head + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
            (415, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"),
            (400, head.replace(b"application/json", b"Application/JSON; charset=utf-8") + b"Content-Length: 9\r\n\r\nnot JSON!"),
            (400, head.replace(b"application/json", b"application/json\t ;charset=utf-8") + b"Content-Length: 9\r\n\r\nnot JSON!"),
            (415, head.replace(b"application/json", b"application/json-seq") + b"Content-Length: 9\r\n\r\nnot JSON!"),
            # As a proxy's client writes it.
            (200, b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
            (200, b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
            (404, b"GET http://localhost/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
            (400, head.replace(b"/v1", b"http://localhost:80/v1") + b"Content-Length: 9\r\n\r\nnot JSON!"),
            (200, b"GET HTTPS://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
            (421, b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            (421, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n"),
            (421, head.replace(b"localhost", b"evil.example") + b"Content-Length: 2\r\n\r\n{}"),
            (400, b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"),
            (414, b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            (None, b"GET / HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n\r\n"),
            (None, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 30 + b"\r\n\r\n"),
            (None, b"garbage\r\n\r\n"),
            (None, b"\r\n" * 100),
            (None, os.urandom(3000) + b"\r\n\r\n"),
        ):
            with self.subTest(sent[:90]):
                got = self.server.raw(sent)
                if status is not None:
                    self.assertTrue(got.startswith(b"HTTP/1.1 %d " % status), got[:200])
                else:
                    self.assertFalse(got.startswith(b"HTTP/1.1 2"), got[:200])
        # Half a request, then silence; and one that dribbles.
        self.server.raw(head + b"Content-Length: 20\r\n\r\n{")
        self.server.raw(b"POST /v1/comple")
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=harness.LIMIT_S) as slow:
            try:
                while True:
                    slow.sendall(b"X")
                    slow.settimeout(0.2)
                    try:
                        if not slow.recv(1):
                            break
                    except TimeoutError:
                        pass
            except (BrokenPipeError, ConnectionResetError):
                pass
        # Many that say a byte now and then keep nobody else from being answered, and are cut off.
        slow = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(100)]
        begun = time.monotonic()
        for connection in slow:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        self.server.answer(COMPLETIONS, prompt="a", max_tokens=2)
        for connection in slow:
            connection.settimeout(harness.LIMIT_S)
            while True:
                try:
                    if not connection.recv(4096):
                        break
                except ConnectionResetError:
                    break
            connection.close()
        self.assertGreater(time.monotonic() - begun, 1.5, "cut off before --read-timeout")
        self.assertEqual(self.server.get("/health"), (200, '{"status":"ok"}'))

    def test_every_field_of_every_wrong_type(self):
        """Each is refused by its name, or means nothing; none is a server's error."""
        wrong = [True, -1, 0, 1.5, 1e308, -(2**63), 2**64, 10**40, "x", "\ud800", "", [], [1], [[]], [None], ["\x00"], {}, {"a": 1},
                 [{}], {"type": []}]  # fmt: skip
        fields = {
            COMPLETIONS: ["prompt", "model", "max_tokens", "temperature", "top_p", "min_p", "top_k", "repetition_penalty", "n",
                          "seed", "stop", "stop_token_ids", "logprobs", "echo", "stream", "stream_options", "ignore_eos",
                          "best_of", "suffix", "logit_bias", "frequency_penalty", "presence_penalty"],
            CHAT: ["messages", "model", "max_tokens", "max_completion_tokens", "temperature", "n", "seed", "stop", "logprobs",
                   "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "response_format"],
        }  # fmt: skip
        for path, names in fields.items():
            for name in names:
                for value in wrong:
                    body = {"prompt": "a"} if path == COMPLETIONS else {"messages": HI}
                    connection = self.server.send(path, {"max_tokens": 1, **body, name: value})
                    response = connection.getresponse()
                    text = response.read().decode()
                    connection.close()
                    with self.subTest(f"{name}: {value!r}"):
                        self.assertIn(response.status, (200, 400, 404), text[:300])
                        if response.status == 400:
                            self.assertIn(json.loads(text)["error"]["param"], (name, "max_tokens", "max_completion_tokens", None), text[:300])
        for part in ({"role": 5, "content": "a"}, {"role": "user", "content": 5}, {"role": "user"}, {"role": "user", "content": [{"type": 5}]},
                     {"role": "assistant", "content": "a", "tool_calls": 5}, {"role": "x" * 1000, "content": {}}):  # fmt: skip
            status, answer = self.server.post(CHAT, messages=[part], max_tokens=1)
            self.assertEqual((status, type(answer["error"]["message"])), (400, str), answer)
        self.wait_for_quiet(self.server)

    def test_pages_and_models(self):
        status, page = self.server.get("/")
        self.assertEqual((status, "<title>Keel chat</title>" in page, re.findall(r"https?://", page)), (200, True, []))
        models = json.loads(self.server.get("/v1/models")[1])
        self.assertEqual([(m["id"], m["max_model_len"]) for m in models["data"]], [("tiny", 512)])
        self.assertEqual(json.loads(self.server.get("/v1/models/tiny")[1]), models["data"][0])
        self.assertEqual(self.server.get("/v1/models/other")[0], 404)

    @unittest.skipUnless(browser.CHROMIUM, "no Chromium is installed")
    def test_the_page_in_a_browser(self):
        """A conversation of two turns, whose second knows the first; an error is shown; nothing goes wrong in the console."""
        page = browser.Page(self, f"http://127.0.0.1:{self.server.port}/")
        shown = "[...document.querySelectorAll('#said p')].map(p => [p.className, p.textContent])"

        def ask(text):
            page.evaluate(f"at('text').value = {json.dumps(text)}; at('ask').requestSubmit()")
            self.wait_until(lambda: not page.evaluate("at('send').disabled"), "the answer ends")
            return page.evaluate(shown)

        self.wait_until(lambda: page.evaluate("document.readyState === 'complete' && document.getElementById('model')?.textContent")
                        == "tiny", "the page is there")  # fmt: skip
        page.evaluate("at('temperature').value = 0; at('tokens').value = 12")
        first, second = "hi", "<b>and</b> then?"
        messages = [{"role": "user", "content": first}]
        wanted = texts(self.server.answer(CHAT, messages=messages, temperature=0, max_tokens=12))[0]
        self.assertEqual(ask(first), [["user", first], ["assistant", wanted]])
        messages += [{"role": "assistant", "content": wanted}, {"role": "user", "content": second}]
        again = texts(self.server.answer(CHAT, messages=messages, temperature=0, max_tokens=12))[0]
        self.assertEqual(ask(second)[2:], [["user", second], ["assistant", again]])
        self.assertEqual(page.errors(), [])
        page.evaluate("at('tokens').value = 5000")
        kind, text = ask("too long")[-1]
        self.assertEqual((kind, "the model has room for 512" in text), ("error", True), text)

    def test_a_connection_is_kept(self):
        connection = self.server.connect()
        for text in ("a", "b", "c"):
            connection.request("POST", COMPLETIONS, json.dumps({"prompt": text, "max_tokens": 2}),
                               {"Content-Type": "application/json"})  # fmt: skip
            self.assertEqual(connection.getresponse().read()[:1], b"{")
        connection.close()

    def test_many_clients_of_whom_half_leave(self):
        """200 at a time, again and again: those that stay get what each would have got alone; of the others nothing is left."""
        server = Server(self, self.step, "--max-num-seqs", 24)
        before, threads = server.descriptors(), server.of_process("Threads")

        def asked(i):
            return {"prompt": f"prompt {i % 17}", "max_tokens": 24, "temperature": 1, "seed": i % 5, "n": 1 + i % 2}

        alone = {i: texts(server.answer(COMPLETIONS, **asked(i))) for i in range(85)}  # all there are

        def stay(i):
            if i % 4:
                return texts(server.answer(COMPLETIONS, **asked(i)))
            found = joined(server.stream(COMPLETIONS, **asked(i)))
            return [found[choice][0] for choice in sorted(found)]

        def leave(i):
            connection = server.send(COMPLETIONS, {**asked(i), "max_tokens": 450, "stream": i % 3 > 0, "ignore_eos": True})
            if i % 3 == 1:
                connection.getresponse().read(60)
            elif i % 3 == 0:
                time.sleep(0.05)
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

        def storm():
            leaving = [clients.submit(leave, i) for i in range(100)]
            staying = {i: clients.submit(stay, i) for i in range(100)}
            for future in leaving:
                future.result()
            for i, future in staying.items():
                # Which prompts and seeds recur after 85.
                self.assertEqual(future.result(), alone[i] if i < 85 else stay(i), i)

        # The allocator has its arenas after the first storms; what grows then is lost.
        end, sizes = time.monotonic() + STORM_S, []
        with concurrent.futures.ThreadPoolExecutor(200) as clients:
            while time.monotonic() < end or len(sizes) < 3:
                storm()
                self.wait_for_quiet(server)
                sizes.append(server.of_process("VmRSS"))
        self.assertGreater(server.metrics()["cancelled_total"], 50 * len(sizes))
        self.wait_until(lambda: server.descriptors() <= before + 1, "all connections are closed", server.process)
        self.wait_until(lambda: server.of_process("Threads") <= threads, "all threads have ended", server.process)
        self.assertLess(sizes[-1] - sizes[1], 32 * 1024, f"KiB after each storm: {sizes}")

    def test_who_leaves_behind_unread_bytes(self):
        """A client that is gone is gone, whatever it sent before; so is one that ends what it sends."""
        body = json.dumps({"prompt": "the", "max_tokens": 450, "n": 8, "ignore_eos": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        asked, server = head.encode() + body, self.server
        for more in (b"", b"\r\n", asked):
            before = server.metrics()["cancelled_total"]
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(asked)
                self.wait_until(lambda: server.metrics()["samples_open"] > 0, "it is taken up", server.process)
                connection.sendall(more)
            self.wait_for_quiet(server)
            self.assertEqual(server.metrics()["cancelled_total"], before + 1, more)
        with socket.create_connection(("127.0.0.1", server.port), timeout=harness.LIMIT_S) as connection:
            connection.sendall(asked)
            connection.shutdown(socket.SHUT_WR)
            got = b"".join(iter(lambda: connection.recv(65536), b""))
        self.assertTrue(got.startswith(b"HTTP/1.1 499 Client Closed Request\r\n"), got)
        self.assertEqual(got.count(b"HTTP/"), 1)
        self.assertIn("the client is gone", json.loads(got.split(b"\r\n\r\n")[1])["error"]["message"])
        self.assertGreater(server.metrics()[f'responses_total{{path="{COMPLETIONS}",status="499"}}'], 0)

    def test_too_many(self):
        """More samples than may wait are 429 with a time to wait; more connections than may be are 503."""
        server = Server(self, self.step, "--max-num-seqs", 1, "--max-waiting", 99, "--max-connections", 5)
        long = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 100}
        busy = server.send(COMPLETIONS, long)
        # One after the other: most of them wait for long.
        self.wait_until(lambda: server.metrics()["samples_open"] > 1, "they wait", server.process)
        taken = server.metrics()["prompt_tokens_total"]
        # Those that run have prompts of one token, some of which may begin meanwhile.
        refused = server.send(COMPLETIONS, {**long, "prompt": "b" * 200, "max_tokens": 1})
        response = refused.getresponse()
        self.assertLess(server.metrics()["prompt_tokens_total"], taken + 200)
        self.assertEqual((response.status, response.getheader("Retry-After")), (429, "1"), response.read())
        # One that ends meanwhile, as those of what was asked above, leaves room for one more.
        idle = []

        def no_room():
            idle.append(socket.create_connection(("127.0.0.1", server.port)))
            return b" 503 " in server.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[:20]

        self.wait_until(no_room, "no room", server.process)
        # Connections are accepted in their order: by now each was answered 503, or waits.
        waiting = [connection for connection in idle if not select.select([connection], [], [], 0)[0]]
        self.assertLessEqual(len(waiting), 4, "beside that of the busy one")
        self.assertGreater(len(waiting), 0)
        for connection in (busy, refused, *idle):
            connection.close()
        self.wait_until(lambda: server.get("/health")[0] == 200, "there is room", server.process)
        self.wait_for_quiet(server)

    def test_the_key(self):
        server = Server(self, self.step, "--host", "0.0.0.0", key=KEY)
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": f"Bearer {KEY}x"}):
            for path in ("/v1/models", "/metrics"):
                self.assertEqual(server.get(path, **given)[0], 401)
            connection = server.send(COMPLETIONS, {"prompt": "a"}, **{"Authorization": "no", **given})
            self.assertEqual(connection.getresponse().status, 401)
            connection.close()
        self.assertEqual([server.get(path)[0] for path in ("/", "/health")], [200, 200])
        self.assertEqual(server.get("/v1/models", Authorization=f"Bearer {KEY}")[0], 200)
        server.answer(COMPLETIONS, prompt="a")
        for arguments, part in ((["--host", "0.0.0.0"], "API key"), (["--api-key-env", "NO_SUCH"], "NO_SUCH")):
            done = harness.keel("serve", self.step, *arguments)
            self.assertEqual((done.returncode, part in done.stderr), (64, True), done.stderr)
        done = harness.keel("serve", self.step, "--port", server.port)
        self.assertEqual((done.returncode, "taken" in done.stderr), (69, True), done.stderr)

    def ended(self, server):
        said = server.process.communicate(timeout=harness.LIMIT_S)[0]
        return server.process.returncode, said

    def test_the_end(self):
        """What runs ends first; or, if it takes longer than it may, with an error. Then exit 0."""
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server(self, self.step)
            asked = {"prompt": "the", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
            wanted = texts(server.answer(COMPLETIONS, **asked))
            before = server.metrics()["generated_tokens_total"]
            connection = server.send(COMPLETIONS, asked)
            self.wait_until(lambda: server.metrics()["generated_tokens_total"] > before, "it runs", server.process)  # noqa: B023
            server.process.send_signal(number)
            response = connection.getresponse()
            self.assertEqual((response.status, texts(json.loads(response.read()))), (200, wanted))
            connection.close()
            self.assertEqual(self.ended(server)[0], 0)
        server = Server(self, self.step, "--grace-seconds", 0, "--max-num-seqs", 1)
        connection = server.send(COMPLETIONS, {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 100})
        self.wait_until(lambda: server.metrics()["samples_open"] > 1, "it runs", server.process)
        server.process.terminate()
        response = connection.getresponse()
        self.assertEqual((response.status, json.loads(response.read())["error"]["message"]), (503, "the server has ended"))
        connection.close()
        code, said = self.ended(server)
        self.assertEqual((code, "did not end in time" in said), (0, True), said)

    def test_who_reads_slowly_has_the_grace_too(self):
        """And who has not read by then is cut off, which the log says; half a request keeps nobody waiting."""
        asked = {"prompt": ["a", "b", "c", "d"], "max_tokens": 60, "n": 128, "stream": True, "logprobs": 20, "ignore_eos": True}
        body = json.dumps(asked).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        servers, clients, bodies = [], [], []
        for grace in (int(harness.LIMIT_S), 0):
            servers.append(Server(self, self.step, "--grace-seconds", grace, "--max-num-seqs", 512, "--read-timeout", 600, "--write-timeout", 600))
            client, *halves = (socket.socket() for _ in range(3))
            for one in (client, *halves):
                self.addCleanup(one.close)
                one.settimeout(harness.LIMIT_S)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for one, sent in zip((client, *halves), (b"%d\r\n\r\n" % len(body) + body, b"", b"%d\r\n\r\n{" % len(body)), strict=True):
                one.connect(("127.0.0.1", servers[-1].port))
                one.sendall(head + sent)
            clients.append(client)
            bodies.append(halves[1])
            self.wait_until(lambda: servers[-1].metrics()["samples_open"] > 0, "it runs", servers[-1].process)
        self.wait_until(lambda: servers[1].metrics()["samples_open"] == 0, "all of it is there to be read", servers[1].process)
        for server in servers:
            server.process.terminate()
        # Neither reads until the second server has ended; the first one's client reads then.
        code, said = self.ended(servers[1])
        self.assertEqual((code, "not taken all in time: 1" in said), (0, True), said)
        self.assertIsNone(servers[0].process.poll())
        got = bytearray()
        while part := clients[0].recv(1 << 16):
            got += part
        self.assertTrue(got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), got[-200:])
        code, said = self.ended(servers[0])
        self.assertEqual((code, "in time" in said), (0, False), said)
        for one in bodies:
            self.assertRegex(one.recv(1 << 16), rb"^HTTP/1.1 503 (.|\r|\n)*the server is about to end")

    def test_on_two_ranks(self):
        """The same answers, also beside a client that leaves; ended in order."""
        server = Server(self, self.step, "--tp", 2, "--name", "tiny")
        asked = [
            {"prompt": ["the", "0123456789"], "max_tokens": 20, "temperature": 0},
            {"prompt": "the", "max_tokens": 20, "temperature": 1, "seed": 3, "n": 2, "stop": ["e"]},
        ]
        left = server.send(COMPLETIONS, {"prompt": "b", "max_tokens": 450, "stream": True, "ignore_eos": True})
        left.getresponse().read(60)
        left.sock.shutdown(socket.SHUT_RDWR)
        left.close()
        with concurrent.futures.ThreadPoolExecutor() as clients:
            found = list(clients.map(lambda body: texts(server.answer(COMPLETIONS, **body)), asked * 4))
        self.assertEqual(found, [texts(self.server.answer(COMPLETIONS, **body)) for body in asked] * 4)
        self.wait_for_quiet(server)
        time.sleep(0.3)  # the ranks wait for each other without asking anything
        self.assertEqual(texts(server.answer(COMPLETIONS, **asked[0])), found[0])
        server.process.terminate()
        self.assertEqual(self.ended(server)[0], 0)

    def test_a_rank_that_dies_while_nobody_asks(self):
        """The server ends; no client has to find out that it cannot answer."""
        server = Server(self, self.step, "--tp", 2)
        (other,) = harness.descendants(server.process.pid)
        os.kill(other, signal.SIGKILL)
        code, said = self.ended(server)
        self.assertEqual((code, "lost a peer" in said), (UNAVAILABLE, True), said)

    def test_an_answer_that_takes_too_long(self):
        server = Server(self, self.step, "--request-timeout", 1, "--max-num-seqs", 1)
        asked = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128}
        status, answer = server.post(COMPLETIONS, **asked)
        self.assertEqual((status, "--request-timeout" in answer["error"]["message"]), (504, True), answer)
        self.wait_for_quiet(server)


if __name__ == "__main__":
    unittest.main()
