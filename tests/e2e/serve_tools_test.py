"""Programs of others against `keel serve`: calls of tools as OpenAI's API has them, by a model that has learnt to call one; the
`openai` client, and lm-evaluation-harness, whose log-likelihoods are those of `keel score`."""

import json
import os
import subprocess
import sys
import unittest

import harness
import multi_turn_test
from server import CHAT, COMPLETIONS, Server

# The interpreter that has the packages `openai` and `lm_eval`.
PYTHON = os.environ.get("KEEL_CLIENTS_PYTHON", sys.executable)
ASKED = [{"role": "user", "content": "12*3"}]
SAID = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"x": "12*3"}'}}]}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "calc", "description": "a product", "parameters": {"type": "object"}}}]
GREEDY = {"temperature": 0, "max_tokens": 40}
CALLED = ("calc", {"x": "12*3"})


def missing(package):
    done = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False)
    return f"{PYTHON} has no package {package}" if done.returncode else None


def call_of(message):
    """(name, arguments) of a message's only call."""
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["id"], call
    return call["function"]["name"], json.loads(call["function"]["arguments"])


class Tools(multi_turn_test.MultiTurn):
    @classmethod
    def setUpClass(cls):
        """A model that knows one conversation by heart."""
        job = cls("learn")
        job.setUp()
        cls.addClassCleanup(job._clean)
        cls.model, cls.tokenizer_folder = job.learn(), job.tokenizer
        cls.server = Server(cls, cls.model, "--name", "calculator")

    def learn(self):
        """With a template that shows that there are tools, without which `keel serve` takes none."""
        (self.tokenizer / "chat_template.jinja").write_text("{% if tools %}+{% endif %}" + multi_turn_test.TEMPLATE)
        talk = self.talk(12, 3)
        rows = [json.dumps(row) + "\n" for row in (talk, {**talk, "tools": TOOLS})]
        (self.folder / "warmup.jsonl").write_text("".join(rows * 16))
        return self.warm_up(30)

    def test_a_call_and_what_follows(self):
        answer = self.server.answer(CHAT, messages=ASKED, tools=TOOLS, **GREEDY)
        (choice,) = answer["choices"]
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None), choice)
        self.assertEqual(call_of(choice["message"]), CALLED)
        # Its result, behind an answer as clients send it back.
        result = {"role": "tool", "tool_call_id": "call_1", "content": "36"}
        (last,) = self.server.answer(CHAT, messages=[*ASKED, SAID, result], tools=TOOLS, **GREEDY)["choices"]
        self.assertEqual((last["message"]["content"], last["finish_reason"]), ("36", "stop"))
        self.assertNotIn("tool_calls", last["message"])

    def test_in_a_stream(self):
        events = self.server.stream(CHAT, messages=ASKED, tools=TOOLS, n=2, **GREEDY)
        for index in range(2):
            choices = [c for event in events for c in event["choices"] if c["index"] == index]
            calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
            self.assertEqual([call["index"] for call in calls], [0])
            self.assertEqual(call_of({"tool_calls": calls}), CALLED)
            self.assertEqual([c["finish_reason"] for c in choices if c["finish_reason"]], ["tool_calls"])
            self.assertEqual("".join(c["delta"].get("content") or "" for c in choices), "")

    def test_text_where_no_call_is_wanted_or_whole(self):
        text = '<tool_call>{"name": "calc", "arguments": {"x": "12*3"}}</tool_call>'
        for body in ({"tools": TOOLS, "tool_choice": "none"}, {}):
            (choice,) = self.server.answer(CHAT, messages=ASKED, **body, **GREEDY)["choices"]
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (text, "stop"))
        cut = {**GREEDY, "max_tokens": 3}
        (choice,) = self.server.answer(CHAT, messages=ASKED, tools=TOOLS, **cut)["choices"]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertTrue(text.startswith(choice["message"]["content"]) and choice["message"]["content"], choice)
        for wrong in ("required", {"type": "function", "function": {"name": "calc"}}):
            status, answer = self.server.post(CHAT, messages=ASKED, tools=TOOLS, tool_choice=wrong)
            self.assertEqual((status, answer["error"]["param"]), (400, "tool_choice"))

    def test_a_prompt_is_scored(self):
        """`echo`, with and without an answer, whole and in chunks: the log-probabilities of `keel score`."""
        text = "1<|im_start|>2*3?"
        rows, out = self.folder / "rows.jsonl", self.folder / "scores.jsonl"
        rows.write_text(json.dumps({"text": text}) + "\n")
        done = harness.keel("score", "--model", self.model, "--input", rows, "--output", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        (wanted,) = harness.read_jsonl(out)
        for tokens in (0, 1, 5):
            body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "echo": True, "logprobs": 3, "ignore_eos": True}
            (choice,) = self.server.answer(COMPLETIONS, **body)["choices"]
            events = self.server.stream(COMPLETIONS, **body)
            parts = [event["choices"][0] for event in events]
            self.assertEqual("".join(part["text"] for part in parts), choice["text"])
            for name in ("tokens", "token_logprobs", "top_logprobs"):
                self.assertEqual(sum((part["logprobs"][name] for part in parts), []), choice["logprobs"][name])
            self.assertTrue(choice["text"].startswith(text))
            found = choice["logprobs"]
            prompt = len(wanted["log_probs"]) + 1
            self.assertEqual((len(found["tokens"]), found["token_logprobs"][0]), (prompt + tokens, None))
            for one, other in zip(found["token_logprobs"][1:prompt], wanted["log_probs"], strict=True):
                self.assertAlmostEqual(one, other, places=5)
            self.assertEqual("".join(found["tokens"][:prompt]), text)
            for token, log_prob, top in list(zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True))[1:]:
                self.assertGreaterEqual(len(top), 3)
                self.assertEqual(top[token], log_prob)
                self.assertLessEqual(log_prob, max(top.values()))
            for log_prob, top in zip(found["token_logprobs"][prompt:], found["top_logprobs"][prompt:], strict=True):
                self.assertEqual(log_prob, max(top.values()), "greedy")
        ids = self.server.answer(COMPLETIONS, prompt=[49, 256, 50], max_tokens=0, echo=True)
        self.assertEqual((ids["choices"][0]["text"], ids["usage"]["completion_tokens"]), ("12", 0))
        chat = self.server.answer(CHAT, messages=ASKED, logprobs=True, top_logprobs=2, **GREEDY)
        for one in chat["choices"][0]["logprobs"]["content"]:
            self.assertEqual(len(one["top_logprobs"]), 2)
            self.assertEqual((one["token"], one["logprob"]), tuple(one["top_logprobs"][0][k] for k in ("token", "logprob")))

    @unittest.skipIf(missing("openai"), missing("openai"))
    def test_the_openai_client(self):
        script = """
import json, sys
import openai
base, asked, tools = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
greedy = {"model": "calculator", "temperature": 0, "max_tokens": 40}
assert [m.id for m in client.models.list()] == ["calculator"]
answer = client.chat.completions.create(messages=asked, tools=tools, **greedy)
message = answer.choices[0].message
assert answer.choices[0].finish_reason == "tool_calls" and message.content is None, answer
call = message.tool_calls[0]
assert (call.function.name, json.loads(call.function.arguments)) == ("calc", {"x": "12*3"}), call
follow = [*asked, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "36"}]
assert client.chat.completions.create(messages=follow, tools=tools, **greedy).choices[0].message.content == "36"
with client.chat.completions.stream(messages=asked, tools=tools, **greedy) as stream:
    for event in stream:
        pass
    last = stream.get_final_completion().choices[0]
assert json.loads(last.message.tool_calls[0].function.arguments) == {"x": "12*3"}, last
text = "".join(chunk.choices[0].text for chunk in client.completions.create(prompt="12*3?", stream=True, **greedy))
whole = client.completions.create(prompt="12*3?", logprobs=2, echo=True, **greedy).choices[0]
assert whole.text == "12*3?" + text, (whole.text, text)
assert whole.logprobs.token_logprobs[0] is None and len(whole.logprobs.top_logprobs[1]) >= 2
try:
    client.completions.create(prompt="a", model="calculator", logit_bias={"5": 1})
except openai.BadRequestError as error:
    assert error.param == "logit_bias", error
else:
    raise AssertionError("not refused")
"""
        done = subprocess.run([PYTHON, "-c", script, f"http://127.0.0.1:{self.server.port}/v1", json.dumps(ASKED), json.dumps(TOOLS)],
                              capture_output=True, text=True, timeout=harness.LIMIT_S, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])

    @unittest.skipIf(missing("lm_eval"), missing("lm_eval"))
    def test_lm_evaluation_harness(self):
        """A task of choices and one of generation, made here, with prompts of ids and of text."""
        choices = [{"question": f"{a}*3?", "choices": ["36", "<|im_end|>", "7"], "answer": a % 3} for a in (12, 13, 14)]
        (self.folder / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in choices))
        common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(self.folder / "rows.json")}},
                  "test_split": "test", "doc_to_text": "{{question}}"}  # fmt: skip
        for name, task in {
            "tiny_choice": {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer",
                            "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
            "tiny_until": {"output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
                           "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12}, "metric_list": [{"metric": "exact_match"}]},
        }.items():  # fmt: skip
            (self.folder / f"{name}.yaml").write_text(json.dumps({"task": name, **common, **task}))
        script = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
base, tokenizer, folder = sys.argv[1:4]
found = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={"base_url": base, "model": "calculator", "tokenizer": tokenizer, "tokenizer_backend": "huggingface",
                "tokenized_requests": sys.argv[4] == "ids", "max_length": 128, "batch_size": 2},
    tasks=["tiny_choice", "tiny_until"], task_manager=TaskManager(include_path=folder, include_defaults=False),
    log_samples=True, bootstrap_iters=0)
print("FOUND" + json.dumps({name: [s["resps"] for s in found["samples"][name]] for name in found["samples"]}))
"""
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(self.folder / "cache"), "HF_HOME": str(self.folder)}
        rows, out = self.folder / "rows.jsonl", self.folder / "scores.jsonl"
        rows.write_text("".join(json.dumps({"text": row["question"] + choice}) + "\n" for row in choices for choice in row["choices"]))
        done = harness.keel("score", "--model", self.model, "--input", rows, "--output", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        scores = iter(harness.read_jsonl(out))
        for kind in ("ids",):
            done = subprocess.run([PYTHON, "-c", script, f"http://127.0.0.1:{self.server.port}/v1/completions",
                                   str(self.tokenizer_folder), str(self.folder), kind], capture_output=True, text=True,
                                  timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            found = json.loads(done.stdout.rsplit("FOUND", 1)[1])
            for row, responses in zip(choices, found["tiny_choice"], strict=True):
                for choice, ((log_prob, _),) in zip(row["choices"], responses, strict=True):
                    tokens = 1 if choice == multi_turn_test.END else len(choice)
                    self.assertAlmostEqual(float(log_prob), sum(next(scores)["log_probs"][-tokens:]), places=4)
            for row, ((text,),) in zip(choices, found["tiny_until"], strict=True):
                body = {"prompt": row["question"], "temperature": 0, "max_tokens": 12, "stop": ["\n"]}
                self.assertEqual(text, self.server.answer(COMPLETIONS, **body)["choices"][0]["text"])




if __name__ == "__main__":
    unittest.main()
