"""Texts of `keel serve` with a tokenizer whose words begin with their space, as SentencePiece's do: what `/v1/completions` answers goes
on behind the prompt, against the package `tokenizers`; what a conversation is answered is a text of its own."""

import itertools
import json
import unittest

import harness
from server import CHAT, COMPLETIONS, Server, joined, texts
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<unk>", "<s>", "</s>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
GREEDY = {"temperature": 0, "max_tokens": 12}


def words(size):
    """Letters, and pairs of them, each within a word and as its beginning; the first answer is a beginning as often as not."""
    parts = ["▁", *LETTERS, *("▁" + letter for letter in LETTERS)]
    pairs = ["".join(pair) for pair in itertools.islice(itertools.product("abcdefgh", LETTERS), (size - len(SPECIAL) - len(parts)) // 2)]
    merges = [("▁", letter) for letter in LETTERS] + [tuple(pair) for pair in pairs] + [("▁" + pair[0], pair[1]) for pair in pairs]
    tokens = SPECIAL + parts + pairs + ["▁" + pair for pair in pairs]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def shown(tokens):
    return "".join(token for token in tokens if token not in SPECIAL)


class Texts(harness.Job):
    @classmethod
    def setUpClass(cls):
        job = cls("make")
        job.setUp()
        cls.addClassCleanup(job._clean)
        config = job.config("run", trainer__total_training_steps=1, trainer__save_freq=1,
                            actor_rollout_ref__model__config={**harness.MODEL, "initializer_range": 0.2})  # fmt: skip
        job.train(config)
        folder = job.folder / "model"
        done = harness.keel("ckpt", "export-hf", job.run_dir("run") / "global_step_1", folder)
        assert done.returncode == 0, done.stderr
        cls.tokenizer = words(harness.MODEL["vocab_size"])
        cls.tokenizer.save(str(folder / "tokenizer.json"))
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
        cls.server = Server(cls, folder)

    def make(self):
        pass

    def goes_on(self, prompt, chosen):
        """What these tokens add to the text of the prompt."""
        return self.tokenizer.decode(prompt + chosen)[len(self.tokenizer.decode(prompt)) :]

    def test_a_completion_goes_on_behind_its_prompt(self):
        kept = 0
        for prompt in ["the", "go", "a b", "see the", "at x", *LETTERS]:
            ids = self.tokenizer.encode(prompt).ids
            (choice,) = self.server.answer(COMPLETIONS, prompt=prompt, logprobs=0, **GREEDY)["choices"]
            scored = choice["logprobs"]
            chosen = [self.tokenizer.token_to_id(text.replace(" ", "▁")) for text in scored["tokens"]]
            text = self.goes_on(ids, chosen)
            self.assertEqual((choice["text"], shown(scored["tokens"])), (text, text), prompt)
            self.assertEqual(scored["text_offset"], [len(shown(scored["tokens"][:i])) for i in range(len(chosen))])
            kept += text.startswith(" ")
            # In chunks, of ids, behind the prompt, for a conversation of the same tokens.
            self.assertEqual(joined(self.server.stream(COMPLETIONS, prompt=prompt, **GREEDY))[0][0], text)
            self.assertEqual(texts(self.server.answer(COMPLETIONS, prompt=ids, **GREEDY)), [text])
            (whole,) = self.server.answer(COMPLETIONS, prompt=prompt, echo=True, logprobs=0, **GREEDY)["choices"]
            self.assertEqual((whole["text"], shown(whole["logprobs"]["tokens"])), (prompt + text, prompt + text))
            self.assertEqual(whole["logprobs"]["text_offset"][len(ids) :], [len(prompt) + at for at in scored["text_offset"]])
            answer = texts(self.server.answer(CHAT, messages=[{"role": "user", "content": prompt}], **GREEDY))
            self.assertEqual(answer, [self.tokenizer.decode(chosen)], prompt)
            said = [{"role": "user", "content": ""}, {"role": "assistant", "content": prompt}]
            self.assertEqual(texts(self.server.answer(CHAT, messages=said, **GREEDY)), [text], prompt)
            # A stop string may begin with that space.
            stop = text[:3]
            for asked in ({"stop": stop}, {"stop": ["###", stop]}):
                (stopped,) = self.server.answer(COMPLETIONS, prompt=prompt, **asked, **GREEDY)["choices"]
                self.assertEqual((stopped["text"], stopped["finish_reason"]), ("", "stop"), (prompt, stop))
                self.assertEqual(joined(self.server.stream(COMPLETIONS, prompt=prompt, **asked, **GREEDY))[0], ("", "stop"))
        self.assertGreaterEqual(kept, 3, "no answer began with a word")

    def test_a_prompt_without_a_text_is_gone_on_with_as_a_text_of_its_own(self):
        (choice,) = self.server.answer(COMPLETIONS, prompt=[1], logprobs=0, **GREEDY)["choices"]
        chosen = [self.tokenizer.token_to_id(text.replace(" ", "▁")) for text in choice["logprobs"]["tokens"][1:]]
        self.assertFalse(choice["text"].startswith(" "), choice)
        self.assertTrue(choice["text"].endswith(self.goes_on([3], chosen)), choice)


if __name__ == "__main__":
    unittest.main()
