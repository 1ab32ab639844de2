"""Training by a model's own tokenizer and chat template: what is learnt is what transformers' apply_chat_template gives and
masks, for SFT, DPO and RL; text, cached shards, resume, ranks with other files, exports."""

import concurrent.futures
import json
import os
import subprocess
import unittest

import checkpoint_files
import harness
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CONFIG, DATA = 78, 65
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<tool>"]

# As most families write it: what the assistant said is not marked.
PLAIN = (
    "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls %}<tool>{{ c.function | tojson }}"
    "{% endfor %}{% endif %}{{ m.content if m.content is string else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "(no thinking)\n{% endif %}{% endif %}"
)
# The same with marks; the end of a message belongs to it, the line break behind it does not.
MARKED = (
    "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool>{{ c.function | tojson }}{% endfor %}{% endif %}"
    "{{ m.content if m.content is string else '' }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As those of models that see pictures: a content is text, or parts.
PARTS = PLAIN.replace("m.content if m.content is string else ''", "text(m.content)")
PARTS = "{%- macro text(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}{% endfor %}{% endif %}{% endmacro -%}" + PARTS
MARKED_PARTS = PARTS.replace("{% if m.tool_calls %}", "{% if m.role == 'assistant' %}{% generation %}{{ text(m.content) }}<|im_end|>"
                             "{% endgeneration %}{{ '\n' }}{% continue %}{% endif %}{% if m.tool_calls %}")  # fmt: skip
# As Qwen3's: what was thought before the last question is not shown again.
THINKING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"type": "function", "function": {"name": "sum", "arguments": {"a": 1, "b": [2, 3]}}}
TOOLS = [{"type": "function", "function": {"name": "sum", "description": "adds \u00e9", "parameters": {"type": "object"}}}]
CHATS = [
    [message("user", "What is 1 + 1?"), message("assistant", "It is 2.")],
    [message("system", "Be brief."), message("user", "a\n\nb"), message("assistant", "\n c \n"),
     message("user", "<|im_end|> in the text"), message("assistant", "d\u00e9\U0001f600")],
    [message("user", "Add."), message("assistant", "", tool_calls=[CALL]), message("tool", "6"),
     message("assistant", "Six."), message("user", "thanks"), message("assistant", "")],
    [message("assistant", "I begin."), message("user", "Well."), message("assistant", "x" * 40)],
]  # fmt: skip


class ChatTraining(harness.Job):
    def setUp(self):
        super().setUp()
        self.model = self.make_tokenizer("own", PLAIN)

    def make_tokenizer(self, name, template, words=300):
        folder = self.folder / name
        folder.mkdir()
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        corpus = ["user assistant system What is the sum of 1 and 2? It is 3. \u00e9\n\n"] * 3
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
            vocab_size=words, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False))  # fmt: skip
        begin = tokenizer.token_to_id("<|begin|>")
        tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", begin)])
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|im_end|>"}))  # fmt: skip
        (folder / "chat_template.jinja").write_text(template)
        return folder

    def tokenizer(self, folder=None):
        return transformers.AutoTokenizer.from_pretrained(folder or self.model)

    def rows(self, name, rows):
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def job(self, name, rows, task="sft", **changes):
        path = rows if isinstance(rows, (str, os.PathLike)) else self.rows(name, rows)
        model = {"tokenizer_path": str(self.model), "dtype": "float32",
                 "config": {**harness.MODEL, "vocab_size": 420, "max_position_embeddings": 512}}  # fmt: skip
        config = self.config(
            name, **{"trainer__task": task, "trainer__total_training_steps": 2, "trainer__save_freq": 2,
                     "actor_rollout_ref__model": model, "data__train_files": [str(path)], "data__max_length": 256,
                     "data__max_prompt_length": 256, "data__max_response_length": 64, **changes},
        )  # fmt: skip
        content = json.loads(config.read_text())
        del content["data"]["tokenizer"]  # the model's own
        config.write_text(json.dumps(content))
        return config

    def show(self, config, *overrides, count=100):
        done = harness.keel("data", "show", config, *overrides, "--json", "--count", count)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refused(self, config, code, *words):
        for command in (["train", config], ["config", "validate", config]):
            done = harness.keel(*command)
            self.assertEqual(done.returncode, code, done.stderr[-2000:])
            for word in words:
                self.assertIn(word, done.stderr)

    def wanted(self, chat, template=MARKED, **more):
        """input_ids and labels by transformers, of a template with marks."""
        ids = self.tokenizer().apply_chat_template(
            chat, chat_template=template, return_dict=True, return_assistant_tokens_mask=True, **more)  # fmt: skip
        labels = [i if learnt else -100 for i, learnt in zip(ids["input_ids"], ids["assistant_masks"])]
        return {"input_ids": ids["input_ids"], "labels": labels}

    def test_what_is_learnt_is_what_transformers_masks(self):
        """By marks and by the texts up to each answer, which must come to the same."""
        rows = [{"messages": chat, "tools": TOOLS if i % 2 else None, "id": i} for i, chat in enumerate(CHATS)]
        (self.folder / "marked.jinja").write_text(MARKED)
        marked = self.show(self.job("marked", rows), f"data.chat_template={self.folder}/marked.jinja")
        wanted = [self.wanted(row["messages"], tools=row["tools"]) for row in rows]
        for i, row in enumerate(wanted):
            self.assertEqual({key: marked[i][key] for key in row}, row)
            self.assertGreater(sum(label != -100 for label in row["labels"]), 0)
        # What begins with an answer has nothing before it that shows where that begins.
        plain = self.show(self.job("plain", rows[:3]))
        for i, row in enumerate(wanted[:3]):
            self.assertEqual({key: plain[i][key] for key in row}, row)
        text = harness.keel("data", "show", self.job("plain", rows[:1]))
        self.assertIn("\u27e6It is 2.<|im_end|>\u27e7\n", text.stdout)
        # The last alone: the same tokens, and those labels behind the last question.
        for name in ("marked.jinja", "own/chat_template.jinja"):
            last = self.show(self.job("last", rows[:3], data__train_on="last",
                                      data__chat_template=str(self.folder / name)))  # fmt: skip
            for found, row, chat in zip(last, wanted, CHATS):
                opened = self.tokenizer().apply_chat_template(
                    chat[:-1], add_generation_prompt=True, tools=TOOLS if chat is CHATS[1] else None)["input_ids"]  # fmt: skip
                self.assertEqual(found["input_ids"], row["input_ids"])
                self.assertEqual(found["labels"], [-100] * len(opened) + row["labels"][len(opened):])

    def test_messages_of_parts(self):
        """SFT by both ways, RL and DPO, where a template reads parts, prints them, and raises."""
        cut = lambda chat: [{**m, "content": [{"type": "text", "text": m["content"][:3]}, {"type": "text", "text": m["content"][3:]}]}
                            for m in chat]  # fmt: skip
        plain = CHATS[:2]
        chats = [cut(chat) for chat in plain] + [[plain[0][0], *cut(plain[0][1:])]]
        rows = [{"messages": chat} for chat in chats]
        wanted = [self.wanted(chat, MARKED_PARTS) for chat in chats]
        for i, same in ((0, plain[0]), (1, plain[1]), (2, plain[0])):
            self.assertEqual(wanted[i], self.wanted(same))
        for name, template in (("marked", MARKED_PARTS), ("by_difference", PARTS)):
            (self.model / "chat_template.jinja").write_text(template)
            found = self.show(self.job(name, rows))
            self.assertEqual([{key: row[key] for key in wanted[0]} for row in found], wanted)
        tokenizer = self.tokenizer()
        asked = chats[1][:-1]
        (prompt,) = self.show(self.job("rl", [{"prompt": asked, "answer": "1"}], "rl", reward__type="exact"))
        opened = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
        self.assertEqual(prompt["prompt_ids"], opened)
        good, bad = chats[1][-1:], cut([message("assistant", "otherwise")])
        pairs = [{"prompt": asked, "chosen": good, "rejected": bad}, {"chosen": [*asked, *good], "rejected": [*asked, *bad]}]
        for pair in self.show(self.job("dpo", pairs, "dpo")):
            self.assertEqual(pair["prompt_input_ids"], opened)
            for key, answer in (("chosen", good), ("rejected", bad)):
                whole = tokenizer.apply_chat_template(asked + answer)["input_ids"]
                self.assertEqual([*opened, *pair[f"{key}_input_ids"]], whole[: len(whole) - 1])  # the line break is not learnt
        # What expects text prints the list, or raises.
        (self.model / "chat_template.jinja").write_text(MARKED.replace("m.content if m.content is string else ''", "m.content"))
        config = self.job("printed", rows, data__max_length=500)
        self.assertEqual([{key: row[key] for key in wanted[0]} for row in self.show(config)],
                         [self.wanted(chat, MARKED.replace("m.content if m.content is string else ''", "m.content")) for chat in chats])  # fmt: skip
        self.assertIn("as Python prints it", harness.keel("data", "show", config).stderr)
        raises = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
        (self.model / "chat_template.jinja").write_text(raises)
        with self.assertRaises(TypeError):
            tokenizer.apply_chat_template(chats[0], chat_template=raises)
        self.refused(self.job("raises", rows), DATA, "raises.jsonl:1", "chat_template.jinja")
        # Keel's ChatML, and its export, write them as their text.
        chatml = self.show(self.job("chatml", rows + [{"messages": chat} for chat in [*plain, plain[0]]], data__chat_template="chatml"))
        self.assertEqual([row["input_ids"] for row in chatml[:3]], [row["input_ids"] for row in chatml[3:]])
        self.assertEqual([row["labels"] for row in chatml[:3]], [row["labels"] for row in chatml[3:]])

    def test_a_template_that_shows_answers_otherwise_later(self):
        chat = [message("user", "a"), message("assistant", "b", reasoning_content="x"), message("user", "c"),
                message("assistant", "d", reasoning_content="y")]  # fmt: skip
        (self.model / "chat_template.jinja").write_text(THINKING)
        self.refused(self.job("all", [{"messages": chat}]), DATA, "all.jsonl:1", "message 2", "train_on to last")
        (found,) = self.show(self.job("last", [{"messages": chat}], data__train_on="last"))
        tokenizer = self.tokenizer()
        whole = tokenizer.apply_chat_template(chat)["input_ids"]
        prompt = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True)["input_ids"]
        self.assertEqual(found["input_ids"], whole)
        learnt = whole[len(prompt) :]
        self.assertEqual([label for label in found["labels"] if label != -100],
                         learnt[: learnt.index(tokenizer.convert_tokens_to_ids("<|im_end|>")) + 1])  # fmt: skip
        self.assertEqual(tokenizer.decode(learnt), "<think>y</think>d<|im_end|>\n")

    def test_prompts_of_rl(self):
        tokenizer = self.tokenizer()
        asked = CHATS[1][:-1]
        rows = [
            {"prompt": asked, "answer": "1"},
            {"prompt": asked, "answer": "1", "tools": json.dumps(TOOLS)},
            {"prompt": asked, "answer": "1", "enable_thinking": False},
            {"prompt": asked, "answer": "1", "chat_template_kwargs": {"enable_thinking": False}},
            {"prompt": CHATS[0], "answer": "1"},
            {"prompt": "as it stands", "answer": "1"},
            {"question": "What?", "answer": "1", "data_source": "x"},
            {"prompt": asked, "reward_model": {"ground_truth": "1", "style": "rule"}, "data_source": "x", "extra_info": {"index": 4}},
        ]  # fmt: skip
        found = [row["prompt_ids"] for row in self.show(self.job("rl", rows, "rl", reward__type="exact"))]
        render = lambda chat, **more: tokenizer.apply_chat_template(
            chat, **{"add_generation_prompt": True, **more})["input_ids"]  # fmt: skip
        quiet = render(asked, enable_thinking=False)
        self.assertNotEqual(quiet, render(asked))
        self.assertEqual(found, [
            render(asked), render(asked, tools=TOOLS), quiet, quiet,
            render(CHATS[0], add_generation_prompt=False, continue_final_message=True),
            tokenizer("as it stands").input_ids, render([message("user", "What?")]), render(asked),
        ])  # fmt: skip
        # What the configuration gives, a row's own takes the place of.
        kwargs = "data.apply_chat_template_kwargs={enable_thinking: false}"
        again = [row["prompt_ids"] for row in self.show(self.job("rl", rows[:1], "rl", reward__type="exact"), kwargs)]
        self.assertEqual(again, [quiet])
        rows[0]["enable_thinking"] = True
        again = [row["prompt_ids"] for row in self.show(self.job("rl", rows[:1], "rl", reward__type="exact"), kwargs)]
        self.assertEqual(again, [render(asked)])

    def test_pairs_of_dpo(self):
        tokenizer = self.tokenizer()
        user, good, bad = message("user", "q\n"), message("assistant", "good "), message("assistant", "bad")
        rows = [
            {"prompt": [user], "chosen": [good], "rejected": [bad]},
            {"chosen": [user, good], "rejected": [user, bad]},
            {"prompt": "q\n", "chosen": [user, good], "rejected": [user, bad]},
            {"prompt": [user], "chosen": "good ", "rejected": "bad"},
            {"prompt": "text", "chosen": " good", "rejected": " bad"},
        ]
        found = self.show(self.job("dpo", rows, "dpo"))
        prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True)["input_ids"]
        more = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        end = tokenizer.eos_token_id
        for row in found[:4]:
            self.assertEqual(row["prompt_input_ids"], prompt)
            self.assertEqual(row["chosen_input_ids"], more("good <|im_end|>"))
            self.assertEqual(row["rejected_input_ids"], more("bad<|im_end|>"))
        self.assertEqual(found[4]["prompt_input_ids"], tokenizer("text").input_ids)
        self.assertEqual(found[4]["chosen_input_ids"], [*more(" good"), end])
        self.assertEqual(found[4]["rejected_input_ids"], [*more(" bad"), end])

    def test_pairs_behind_an_answer(self):
        """TRL's prompt is what apply_chat_template opens an answer behind, whoever said the last message."""
        tokenizer = self.tokenizer()
        asked, good, bad = [message("user", "q"), message("assistant", "x")], message("assistant", "good"), message("assistant", "bad")
        rows = [{"prompt": asked, "chosen": [good], "rejected": [bad]}, {"chosen": [*asked, good], "rejected": [*asked, bad]}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
        for row in self.show(self.job("dpo", rows, "dpo")):
            self.assertEqual(row["prompt_input_ids"], prompt)
            for key, answer in (("chosen", good), ("rejected", bad)):
                whole = tokenizer.apply_chat_template([*asked, answer], tokenize=False)
                ids = tokenizer(whole.removesuffix("\n"), add_special_tokens=False).input_ids
                self.assertEqual([*prompt, *row[key + "_input_ids"]], ids)

    def test_text_and_trl_rows(self):
        tokenizer = self.tokenizer()
        end = tokenizer.eos_token_id
        user, good = message("user", "q"), message("assistant", "good")
        rows = [
            {"text": "What is the sum?"},
            {"text": "it ends<|im_end|>"},
            {"prompt": "What is", "completion": " the sum"},
            {"prompt": [user], "completion": [good]},
            {"prompt": [user], "response": "good"},
            {"question": "q", "answer": "good"},
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "good"}]},
        ]
        found = self.show(self.job("text", rows))
        self.assertEqual(found[0]["input_ids"], [*tokenizer("What is the sum?").input_ids, end])
        self.assertEqual(found[1]["input_ids"], tokenizer("it ends<|im_end|>").input_ids)
        more = tokenizer(" the sum", add_special_tokens=False).input_ids
        self.assertEqual(found[2]["input_ids"], [*tokenizer("What is").input_ids, *more, end])
        self.assertEqual([label for label in found[2]["labels"] if label != -100], [*more, end])
        for row in found[3:]:
            self.assertEqual({key: row[key] for key in ("input_ids", "labels")}, self.wanted([user, good]))
        (document,) = self.show(self.job("pre", [{"text": "What is the sum?"}], "pretrain", data__packing="none"))
        self.assertEqual(document["input_ids"], found[0]["input_ids"])

    def test_it_trains_as_the_same_ids_do(self):
        """Bit for bit; the cache knows templates apart; checkpoints hold the tokenizer, and no other goes on from them."""
        rows = [{"messages": chat} for chat in CHATS[:3]] * 4
        config = self.job("chats", rows)
        ids = [{key: row[key] for key in ("input_ids", "labels")} for row in self.show(config)]
        self.train(config)
        self.train(self.job("ids", ids))
        self.train(self.job("cached", rows, data__cache_dir=str(self.folder / "cache")), ranks=2)
        stable = lambda name: {step: harness.stable(data) for step, data in self.metrics(name).items()}
        self.assertEqual(stable("chats"), stable("ids"))
        model = lambda name: self.run_dir(name) / "global_step_2"
        shards = lambda name: {key: value for key, value in checkpoint_files.digests(model(name)).items() if "dist" in str(key)}
        self.assertEqual(shards("chats"), shards("ids"))
        kept = model("chats") / "actor" / "huggingface"
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            self.assertEqual((kept / name).read_bytes(), (self.model / name).read_bytes())
        self.assertEqual(self.tokenizer(kept).apply_chat_template(CHATS[1]), self.tokenizer().apply_chat_template(CHATS[1]))
        # The same rows by another template are other data, to the cache and to a resumed run.
        other = self.folder / "other.jinja"
        other.write_text(PLAIN.replace("<|im_start|>{{ m.role }}", "<|im_start|>{{ m.role | upper }}").replace(
            "<|im_start|>assistant", "<|im_start|>ASSISTANT"))
        changed = self.job("cached", rows, data__cache_dir=str(self.folder / "cache"), data__chat_template=str(other),
                           trainer__total_training_steps=4)  # fmt: skip
        found = self.show(changed)
        self.assertNotEqual([row["input_ids"] for row in found], [row["input_ids"] for row in ids])
        done = harness.keel("train", changed)
        self.assertEqual(done.returncode, CONFIG, done.stderr)
        self.assertIn("trained on other data", done.stderr)
        # The same ids by another tokenizer: rows of ids do not show it, and responses would.
        with_other = self.job("ids", ids, trainer__total_training_steps=4)
        another = self.make_tokenizer("another", PLAIN, words=280)
        content = json.loads(with_other.read_text())
        content["actor_rollout_ref"]["model"]["tokenizer_path"] = str(another)
        with_other.write_text(json.dumps(content))
        done = harness.keel("train", with_other)
        self.assertEqual(done.returncode, CONFIG, done.stderr)
        self.assertIn("another tokenizer", done.stderr)

    def test_shards_of_a_directorys_tokenizer(self):
        rows = self.rows("chats", [{"messages": chat} for chat in CHATS[:3]])
        shards = self.folder / "shards"
        done = harness.keel("data", "tokenize", rows, "--tokenizer", self.model, "--out", shards)
        self.assertEqual(done.returncode, 0, done.stderr)
        wanted = self.show(self.job("rows", rows))
        self.assertEqual(self.show(self.job("shards", shards)), wanted)
        other = self.make_tokenizer("another", PLAIN, words=280)
        done = harness.keel("data", "show", self.job("shards", shards), f"actor_rollout_ref.model.tokenizer_path={other}")
        self.assertEqual(done.returncode, CONFIG, done.stderr)
        self.assertIn("made by another tokenizer", done.stderr)

    def test_grpo_by_a_template(self):
        rows = [{"prompt": [message("user", f"What is {i} + 1?")], "answer": str(i + 1)} for i in range(8)]
        config = self.job(
            "grpo", rows, "rl", reward__type="exact", actor_rollout_ref__rollout__n=2, trainer__total_training_steps=1,
            trainer__save_freq=1, trainer__rollout_data_dir=str(self.folder / "dump"), data__shuffle=False,
            actor_rollout_ref__actor__megatron={"tensor_model_parallel_size": 2},
        )  # fmt: skip
        self.train(config, ranks=2)
        tokenizer = self.tokenizer()
        responses = harness.read_jsonl(self.folder / "dump" / "1.jsonl")
        self.assertEqual(len(responses), 8)
        for response in responses:
            ids = response["response_ids"]
            self.assertEqual(response["output"], tokenizer.decode(ids, skip_special_tokens=True))
            # The vocabulary is padded to 420, which no token has.
            self.assertLess(max(ids), len(tokenizer))
            self.assertEqual(response["finish_reason"] == "stop", ids[-1] == tokenizer.eos_token_id)

    def test_what_does_not_fit(self):
        chat = [{"messages": CHATS[0]}]
        (self.model / "chat_template.jinja").write_text("{{ raise_exception('only questions') }}")
        self.refused(self.job("raises", chat), DATA, "raises.jsonl:1", "only questions")
        (self.model / "chat_template.jinja").write_text("{% if %}")
        self.refused(self.job("broken", chat), DATA, "broken.jsonl:1", "chat_template.jinja")
        (self.model / "chat_template.jinja").unlink()
        self.refused(self.job("none", chat), DATA, "none.jsonl:1", "no chat template", "data.chat_template")
        given = self.job("given", chat, data__chat_template="chatml")
        self.assertEqual(len(self.show(given)), 1)
        self.refused(self.job("file", chat, data__chat_template="no/such/file"), CONFIG, "data.chat_template", "no/such")
        (self.model / "chat_template.jinja").write_text(PLAIN)
        bad = [
            ([{"messages": []}], "expected a list of messages"),
            ([{"messages": [{"content": "a"}]}], "role"),
            ([{"messages": [message("user", [{"type": "image", "image": "x.png"}])]}], "of type image"),
            ([{"messages": CHATS[0], "tools": "not json"}], "tools"),
            ([{"messages": CHATS[0], "tools": {"a": 1}}], "tools: expected a list"),
            ([{"messages": CHATS[0], "images": ["x.png"]}], "text alone"),
            ([{"messages": CHATS[0], "enable_thinking": "no"}], "enable_thinking"),
            ([{"messages": CHATS[0], "chat_template_kwargs": {"messages": []}}], "messages"),
            ([{"prompt": [message("user", "a")]}], "expected one of the keys"),
        ]
        for number, (rows, word) in enumerate(bad):
            self.refused(self.job(f"bad{number}", chat + rows), DATA, f"bad{number}.jsonl:2", word)
        # Of another model: more ids than it has, special tokens that there are none of.
        content = json.loads(self.job("small", chat).read_text())
        for change, word in (({"vocab_size": 290}, "300 ids"), ({"eos_token_id": 410}, "no token 410"),
                             ({"bos_token_id": 415}, "no token 415")):  # fmt: skip
            content["actor_rollout_ref"]["model"]["config"] = {**harness.MODEL, "vocab_size": 420, **change}
            path = self.folder / "small.yaml"
            path.write_text(json.dumps(content))
            self.refused(path, CONFIG, "own", word, "not of one model")
        # Special tokens alone may lie beyond it, as Gemma 3's of pictures do.
        settings = json.loads((self.model / "tokenizer_config.json").read_text())
        (self.model / "tokenizer_config.json").write_text(json.dumps({**settings, "extra_special_tokens": ["<image>"]}))
        content["actor_rollout_ref"]["model"]["config"] = {**harness.MODEL, "vocab_size": 300, "max_position_embeddings": 512}
        path.write_text(json.dumps(content))
        done = harness.keel("config", "validate", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.rows("small", chat + [{"messages": [message("user", "<image>"), message("assistant", "a")]}])
        self.refused(path, DATA, "small.jsonl:2: token 300 is outside the model's vocabulary of 300")
        empty = self.folder / "empty"
        empty.mkdir()
        content["actor_rollout_ref"]["model"].update(tokenizer_path=str(empty), config={**harness.MODEL, "vocab_size": 420})
        path.write_text(json.dumps(content))
        self.refused(path, CONFIG, "tokenizer_path", "no tokenizer")

    def test_rows_as_ids_and_back(self):
        tokenizer = self.tokenizer()
        (self.model / "chat_template.jinja").write_text(MARKED)
        rows = [{"text": "What is \u00e9 <|im_end|>?", "id": 7}] + [{"messages": chat} for chat in CHATS]

        def run(command, rows, *arguments, code=0):
            out = self.folder / "out.jsonl"
            out.unlink(missing_ok=True)
            done = harness.keel("data", command, "--tokenizer", self.model, "--input", self.rows("in", rows), "--output", out,
                                *arguments)  # fmt: skip
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(sorted(path.name for path in self.folder.glob("out*")), ["out.jsonl"] * (code == 0))
            return harness.read_jsonl(out) if code == 0 else done.stderr

        found = run("encode", rows, "--mask")
        self.assertEqual(found[0], {**rows[0], "input_ids": tokenizer(rows[0]["text"]).input_ids})
        for row, chat in zip(found[1:], CHATS):
            wanted = self.wanted(chat)
            self.assertEqual(row["input_ids"], wanted["input_ids"])
            self.assertEqual(row["assistant_mask"], [int(label != -100) for label in wanted["labels"]])
        self.assertNotIn("assistant_mask", run("encode", rows)[1])
        opened = run("encode", rows[1:], "--generation-prompt", "--chat-template", PLAIN, "--chat-template-kwargs",
                     '{"enable_thinking": false}')  # fmt: skip
        asks = [tokenizer.apply_chat_template(chat, chat_template=PLAIN, add_generation_prompt=True, enable_thinking=False)["input_ids"]
                for chat in [CHATS[0][:-1]]]  # fmt: skip
        again = run("encode", [{"messages": CHATS[0][:-1]}], "--generation-prompt", "--chat-template", PLAIN,
                    "--chat-template-kwargs", '{"enable_thinking": false}')  # fmt: skip
        self.assertEqual([row["input_ids"] for row in again], asks)
        self.assertEqual(len(opened), len(CHATS))
        self.assertIn("images: ", run("encode", [{**rows[0], "images": ["a.png"]}], code=65))
        bare = run("encode", rows[:1], "--no-special-tokens")[0]["input_ids"]
        self.assertEqual(bare, tokenizer(rows[0]["text"], add_special_tokens=False).input_ids)
        texts = run("decode", found)
        self.assertEqual([row["text"] for row in texts], [tokenizer.decode(row["input_ids"]) for row in found])
        texts = run("decode", found, "--skip-special-tokens")
        self.assertEqual([row["text"] for row in texts], [tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in found])
        # What is no number of JSON goes out as it came; it may stand where nothing reads.
        odd = {"text": "a", "s": float("-inf"), "t": [10**30]}
        back = run("decode", run("encode", [odd]))[0]
        self.assertEqual([back["s"], back["t"]], [odd["s"], odd["t"]])
        self.assertEqual(harness.keel("data", "info", self.rows("odd", [odd]), "--rows").stdout,
                         '{"text":"a","s":-Infinity,"t":[1000000000000000000000000000000]}\n')  # fmt: skip
        self.assertIn("in.jsonl:1: line 1, column", run("encode", [{"messages": CHATS[0], "tools": [odd]}], code=DATA))
        self.assertIn("in.jsonl:1: line 1, column", run("decode", [{"input_ids": [float("nan")]}], code=DATA))
        self.assertIn("in.jsonl:2", run("encode", [rows[0], {"other": 1}], code=DATA))
        self.assertIn("in.jsonl:1", run("encode", [{"messages": 5}], code=DATA))
        self.assertIn("in.jsonl:1", run("decode", [{"input_ids": [999]}], code=DATA))
        self.assertIn("in.jsonl:1", run("decode", [{"text": "a"}], code=DATA))

    def test_templates_of_a_name(self):
        """As transformers chooses: the default, tool_use where there are tools, or the one that is asked for."""
        (self.model / "chat_template.jinja").unlink()
        settings = json.loads((self.model / "tokenizer_config.json").read_text())
        settings["chat_template"] = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": "T" + PLAIN},
                                     {"name": "rag", "template": "R" + PLAIN}]  # fmt: skip
        (self.model / "tokenizer_config.json").write_text(json.dumps(settings))
        rows = [{"messages": CHATS[0]}, {"messages": CHATS[0], "tools": TOOLS}, {"messages": CHATS[0], "tools": []}]
        tokenizer = self.tokenizer()
        for name, more in ((None, {}), ("rag", {"data__chat_template": "rag"})):
            wanted = [tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=name)["input_ids"]
                      for row in rows]  # fmt: skip
            self.assertEqual([row["input_ids"] for row in self.show(self.job("named", rows, **more))], wanted)
            self.assertNotEqual(wanted[0], wanted[1])

    def test_a_folder_of_links_is_as_its_files(self):
        """As the hub's cache has every snapshot."""
        files = self.model.rename(self.folder / "blobs")
        self.model.mkdir()
        for file in files.iterdir():
            (self.model / file.name).symlink_to(file)
        rows = [{"messages": CHATS[0]}, {"question": "q?", "answer": "a"}]
        asked = [message("user", "q?"), message("assistant", "a")]
        wanted = [self.wanted(CHATS[0])["input_ids"], self.wanted(asked)["input_ids"]]
        self.assertEqual([row["input_ids"] for row in self.show(self.job("links", rows))], wanted)

    def test_a_template_that_cannot_be_used_refuses_the_rows_that_it_is_for(self):
        pair, chat = {"question": "q?", "answer": "a"}, {"messages": CHATS[0]}
        (self.model / "additional_chat_templates").mkdir()
        (self.model / "additional_chat_templates" / "tool_use.jinja").write_text("{% block a %}{% endblock %}")
        self.refused(self.job("tools", [pair, {**chat, "tools": TOOLS}]), DATA, "tools.jsonl:2", "'tool_use'", "'block'")
        self.assertEqual(len(self.show(self.job("plain", [pair, chat]))), 2)
        (self.model / "chat_template.jinja").write_text("{{ messages[ }}")
        for number, row in enumerate((pair, chat)):
            self.refused(self.job(f"broken{number}", [row]), DATA, f"broken{number}.jsonl:1", "cannot be used")
        self.assertEqual(len(self.show(self.job("text", [{"prompt": "q?", "response": "a"}]))), 1)

    def test_tokens_of_every_name_are_the_templates(self):
        text = "{{ bos_token }}{{ image_token }}{{ mine }}{{ messages[0].content }}"
        (self.model / "chat_template.jinja").write_text(text)
        settings = json.loads((self.model / "tokenizer_config.json").read_text())
        words = sorted(self.tokenizer().get_vocab(), key=self.tokenizer().get_vocab().get)
        named = {"image_token": words[-1], "extra_special_tokens": {"mine": words[-2]}, "bos_token": None}
        for more in ({}, {"added_tokens_decoder": {}}):
            (self.model / "tokenizer_config.json").write_text(json.dumps({**settings, **named, **more}))
            (self.model / "special_tokens_map.json").write_text(json.dumps({"bos_token": words[-1]}))
            wanted = self.tokenizer().apply_chat_template(CHATS[0][:1], tokenize=False)
            out = self.folder / "named.jsonl"
            out.unlink(missing_ok=True)
            done = harness.keel("data", "encode", "--tokenizer", self.model, "--input", self.rows("named_in", [{"messages": CHATS[0][:1]}]),
                                "--output", out)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            ids = harness.read_jsonl(out)[0]["input_ids"]
            self.assertEqual(ids, self.tokenizer()(wanted, add_special_tokens=False).input_ids, f"{more}: {wanted}")

    def test_a_systems_text_beside_the_messages_is_refused(self):
        for key in ("system", "system_prompt"):
            self.refused(self.job(key, [{"messages": CHATS[0], key: "Be brief."}]), DATA, f"{key}.jsonl:1", "read as a message")

    def test_data_of_which_nothing_is_learnt(self):
        """Packings that cut rows leave none out for it: a loss of no token would be 0, or no number."""
        prompts, rows = self.folder / "prompts.jsonl", self.folder / "long.jsonl"
        prompts.write_text("".join(json.dumps({"input_ids": [i, 2, 3], "labels": [-100] * 3}) + "\n" for i in range(4)))
        rows.write_text("".join(json.dumps({"input_ids": list(range(1, 61)), "labels": [-100] * 50 + list(range(51, 61))}) + "\n" for _ in range(4)))
        sft = {"trainer__task": "sft", "trainer__total_training_steps": 3, "data__tokenizer": "ids", "data__packing": "wrapped",
               "data__max_length": 10, "data__train_batch_size": 1, "data__shuffle": False}  # fmt: skip
        for name, data in (("train", {"data__train_files": [str(prompts)]}),
                           ("val", {"data__train_files": [str(rows)], "data__val_files": [str(prompts)]})):  # fmt: skip
            done = harness.keel("config", "validate", self.config(name, **sft, **data))
            self.assertEqual(done.returncode, DATA, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"none of the \d+ samples has a token that is learnt")
        done = self.train(self.config("steps", data__train_files=[str(rows)], **sft))
        self.assertEqual((done.stdout + done.stderr).count("none of its 10 tokens is learnt"), 1)
        self.assertEqual(self.metrics("steps")[3]["data/steps_without_targets"], 3)

    def test_a_validation_counts_the_tokens_that_its_loss_is_of(self):
        """It counted those of the prompts, too."""
        rows = self.rows("counted", [{"input_ids": list(range(1, 11)), "labels": [-100] * 6 + list(range(7, 11))}] * 4)
        done = self.train(self.config(
            "counted", trainer__task="sft", trainer__total_training_steps=1, trainer__test_freq=1, trainer__logger=["console", "jsonl"],
            data__tokenizer="ids", data__max_length=10, data__train_batch_size=1, data__train_files=[str(rows)], data__val_files=[str(rows)]))  # fmt: skip
        self.assertRegex(done.stdout + done.stderr, r"validation  loss .* \(16 learnt tokens, ")

    def test_a_date_is_the_same_at_every_start(self):
        (self.model / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') if date is not defined else date }}" + PLAIN)
        config = self.job("dated", [{"messages": CHATS[0]}], data__train_on="last")
        done = harness.keel("data", "show", config)
        self.assertIn("26 Jul 2024", done.stdout)
        self.assertIn("told 26 July 2024", done.stderr)
        done = harness.keel("data", "show", config, "data.apply_chat_template_kwargs={date: today}")
        self.assertIn("today", done.stdout)

    def test_ranks_with_other_tokenizers_do_not_begin(self):
        ids = [{"input_ids": [1, 2, 3]}] * 4
        config = self.job("ranks", ids)
        other = self.make_tokenizer("another", PLAIN, words=280)
        port = harness.free_port()

        def run(rank):
            override = [f"actor_rollout_ref.model.tokenizer_path={other}"] * rank
            ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
            return subprocess.run([harness.KEEL, "train", str(config), *override], capture_output=True, text=True, check=False,
                                  timeout=harness.LIMIT_S, env={**harness.environment(), **ranks})  # fmt: skip

        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in pool.map(run, range(2)):
                self.assertEqual(done.returncode, CONFIG, done.stderr)
                self.assertIn("content of tokenizer.json", done.stderr + done.stdout)


if __name__ == "__main__":
    unittest.main()
