"""Wrong configs, data and weights: each is refused before training, with the exit code of sysexits.h
and a message that says what was found, where, and what was expected."""

import gzip
import json
import os
import pathlib
import shutil
import struct
import subprocess
import unittest

import harness

USAGE, DATA, NO_INPUT, NO_SPACE, CONFIG = 64, 65, 66, 74, 78
DAMAGED = 1  # of `keel ckpt verify` alone
FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])
MODEL = "actor_rollout_ref__model__"
MEGATRON = "actor_rollout_ref__actor__megatron__"


def split_file(content):
    """Header, as an object, and data of a safetensors file."""
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join_file(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class BadInput(harness.Job):
    def refused(self, arguments, code, *fragments):
        done = harness.keel(*arguments)
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, output[-3000:])
        for fragment in fragments:
            self.assertIn(fragment.lower(), output.lower())
        self.assertNotIn("terminate called", output)

    def train_refused(self, code, *fragments, ranks=1, text=None, **changes):
        config = self.config("bad", **changes)
        if text is not None:
            config.write_text(text(config.read_text()))
        self.refused(self.command(config, ranks), code, *fragments)
        self.assertFalse(list(self.run_dir("bad").glob("global_step_*")))


class BadStreams(BadInput):
    def test_streams_that_take_nothing(self):
        """What was said there is lost, and the exit code is that of what was done; what was printed is said to be lost."""
        rows = self.folder / "rows.jsonl"
        rows.write_text('{"text": "a"}\n')
        model = FIXTURES / "llama" / "hf"
        encode = ("data", "encode", "--tokenizer", model, "--input", rows, "--output", self.folder / "out.jsonl")
        for redirect in ("2>/dev/full", "2>&-", "<&- >&- 2>&-"):
            for code, arguments in ((NO_INPUT, ("config", "validate", "nowhere.yaml")), (USAGE, ("config", "nothing")), (CONFIG, encode)):
                done = subprocess.run(["bash", "-c", f'exec "$@" {redirect}', "keel", harness.KEEL, *map(str, arguments)], check=False)
                self.assertEqual(done.returncode, code, (redirect, arguments))
        for code, redirect, arguments in ((NO_SPACE, ">/dev/full", ("--version",)), (NO_SPACE, ">/dev/full", ("config", "schema")), (0, ">&-", ("--version",))):
            done = subprocess.run(["bash", "-c", f'exec "$@" {redirect}', "keel", harness.KEEL, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, "write standard output" in done.stderr), (code, code != 0), done)


class BadConfig(BadInput):
    def test_unknown_key(self):
        self.train_refused(
            CONFIG, "bad.yaml:", "totl_training_steps", "total_training_steps", trainer__totl_training_steps=3
        )

    def test_unknown_override(self):
        config = self.config("bad")
        self.refused(["train", config, "trainer.totl_training_steps=3"], CONFIG, "total_training_steps")

    def test_wrong_type(self):
        self.train_refused(CONFIG, "bad.yaml:", "train_batch_size", "many", data__train_batch_size="many")

    def test_out_of_range(self):
        self.train_refused(CONFIG, "train_batch_size", "-4", data__train_batch_size=-4)

    def test_wrong_choice(self):
        self.train_refused(CONFIG, "task", "pretrian", "pretrain", trainer__task="pretrian")

    def test_duplicate_key(self):
        def twice(text):
            return text.replace('"seed": 3', '"seed": 3, "seed": 4')

        self.train_refused(CONFIG, "bad.yaml:", "seed", "duplicate", text=twice)

    def test_all_problems_at_once(self):
        self.train_refused(
            CONFIG, "totl_training_steps", "train_batch_size", data__train_batch_size="many",
            trainer__totl_training_steps=3,
        )  # fmt: skip

    def test_not_yaml(self):
        self.train_refused(CONFIG, "bad.yaml:", text=lambda text: text + "\n: [")

    def test_missing_config_file(self):
        self.refused(["train", self.folder / "none.yaml"], NO_INPUT, "none.yaml")

    def test_world_size(self):
        self.train_refused(
            CONFIG, "world size 2", ranks=2, **{MEGATRON + "tensor_model_parallel_size": 3}
        )

    def test_fewer_heads_than_tp(self):
        changes = {MODEL + "config": {**harness.MODEL, "num_attention_heads": 1, "num_key_value_heads": 1}}
        changes[MEGATRON + "tensor_model_parallel_size"] = 2
        self.train_refused(CONFIG, "num_attention_heads 1 leaves", "size 2", "at most 1", ranks=2, **changes)

    def test_more_stages_than_layers(self):
        changes = {MODEL + "config": {**harness.MODEL, "num_hidden_layers": 1}}
        changes[MEGATRON + "pipeline_model_parallel_size"] = 2
        self.train_refused(CONFIG, "layer", ranks=2, **changes)

    def test_unknown_command(self):
        self.refused(["tarin", "a.yaml"], USAGE, 'keel: unknown command "tarin"', "did you mean keel train?")
        self.refused(
            ["ckpt", "inspct"], USAGE, 'keel ckpt: unknown command "inspct"', "did you mean keel ckpt inspect?"
        )
        self.refused(["fly"], USAGE, '"fly"', "train", "generate", "ckpt")

    def test_unknown_option(self):
        self.refused(["generate", "--modle", "x"], USAGE, "--modle", "did you mean --model?")

    def test_missing_argument(self):
        self.refused(["train"], USAGE, "config")


class BadData(BadInput):
    def test_missing_file(self):
        self.train_refused(NO_INPUT, "nowhere.jsonl", data__train_files=["nowhere.jsonl"])

    def test_malformed_line(self):
        lines = self.data.read_text().splitlines()
        lines[6] = lines[6][:-3]
        self.data.write_text("\n".join(lines) + "\n")
        self.train_refused(DATA, "documents.jsonl:7")

    def test_line_without_a_known_field(self):
        lines = self.data.read_text().splitlines()
        lines[3] = '{"words": [1, 2]}'
        self.data.write_text("\n".join(lines) + "\n")
        self.train_refused(DATA, "documents.jsonl:4", "input_ids")

    def test_token_outside_the_vocabulary(self):
        lines = self.data.read_text().splitlines()
        lines[9] = '{"input_ids": [1, 2, 263, 3]}'
        self.data.write_text("\n".join(lines) + "\n")
        self.train_refused(DATA, "documents.jsonl:10", "263")

    def test_empty_file(self):
        self.data.write_text("")
        self.train_refused(DATA, "documents.jsonl")


    def test_what_is_no_file(self):
        """A pipe waited for ever, a device filled the memory."""
        pipe = self.folder / "pipe.jsonl"
        os.mkfifo(pipe)
        for place, word in ((pipe, "is a pipe"), (self.folder, "is a directory"), ("/dev/zero", "is a device")):
            self.train_refused(DATA, str(place), word, data__train_files=[str(place)])
            self.train_refused(DATA, str(place), word, data__val_files=[str(place)])
            for command in ("score", "generate"):
                out = self.folder / "out.jsonl"
                self.refused([command, "--model", FIXTURES / "llama" / "hf", "--input", place, "--output", out],
                             DATA, "--input", str(place), word)  # fmt: skip
                self.assertFalse(out.exists())

    def test_packed_rows_are_read_and_other_formats_refused(self):
        """`.jsonl.gz` gave samples of its packed bytes, `.arrow` of whatever stood there."""
        packed = self.folder / "rows.jsonl.gz"
        packed.write_bytes(gzip.compress(self.data.read_bytes()))
        self.train(self.config("plain", trainer__total_training_steps=2))
        self.train(self.config("packed", trainer__total_training_steps=2, data__train_files=[str(packed)]))
        steps = lambda name: {step: harness.stable(data) for step, data in self.metrics(name).items()}
        self.assertEqual(steps("packed"), steps("plain"))
        packed.write_bytes(packed.read_bytes()[:-20])
        self.train_refused(DATA, "rows.jsonl.gz", "cut off", data__train_files=[str(packed)])
        for name, content, word in (("rows.arrow", b"ARROW1\0\0" + bytes(200), "an Arrow file"),
                                    ("rows.npz", b"PK\x03\x04" + bytes(200), "zip"),
                                    ("text.txt", "caf\xe9".encode("latin-1"), "at offset 3"),
                                    ("rows.csv", b"text\na\n", "read_csv")):  # fmt: skip
            (self.folder / name).write_bytes(content)
            self.train_refused(DATA, name, word, data__train_files=[str(self.folder / name)])

    def test_rows_to_encode_that_hold_what_belongs_to_other_tokens(self):
        rows, model = self.folder / "older.jsonl", self.folder / "model"
        model.mkdir()
        config = json.loads((FIXTURES / "llama" / "hf" / "config.json").read_text())
        config |= {"keel_tokenizer": "bytes", "vocab_size": 259, "bos_token_id": 256, "eos_token_id": 257}
        (model / "config.json").write_text(json.dumps(config))
        encode = ("data", "encode", "--tokenizer", model, "--input", rows, "--output", self.folder / "out.jsonl")
        for key in ("labels", "attention_mask", "position_ids"):
            rows.write_text(json.dumps({"text": "abc", "input_ids": [1], key: [1]}) + "\n")
            self.refused(encode, DATA, "older.jsonl:1", f"{key}: belongs to other tokens")
            self.assertFalse((self.folder / "out.jsonl").exists())
        rows.write_text(json.dumps({"text": "abc", "input_ids": [1], "labels": None}) + "\n")
        self.assertEqual(harness.keel(*encode).returncode, 0)
        # What is said at the start of a run is said here, too: nothing was.
        message = {"role": "user", "content": [{"type": "text", "text": "hi"}], "mood": "good"}
        rows.write_text(json.dumps({"messages": [message]}) + "\n")
        for template, said in (("chatml", "in 1 rows: messages[].mood (1)"),
                               ("{% for m in messages %}{{ m.content }}{% endfor %}", "reads no lists of parts")):  # fmt: skip
            done = harness.keel(*encode, "--chat-template", template)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(said, done.stderr)

    def test_what_rows_say_besides(self):
        tools = {"messages": [{"role": "user", "content": "a"},
                              {"role": "assistant", "content": "b", "tool_calls": [{"name": "f"}]}]}  # fmt: skip
        self.data.write_text(json.dumps(tools) + "\n")
        self.train_refused(DATA, "documents.jsonl:1", "tool_calls", "input_ids", trainer__task="sft")
        rows = [{"text": "abc", "id": i, **({"source": "x"} if i else {})} for i in range(3)]
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = self.train(self.config("named", trainer__total_training_steps=1))
        output = done.stdout + done.stderr
        self.assertEqual(output.count("keys that nothing reads, with their number in 3 rows: id (3), source (2)"), 1)

    def test_standard_input_of_generate(self):
        out = self.folder / "out.jsonl"
        command = [harness.KEEL, "generate", "--model", FIXTURES / "llama" / "hf", "--input", "-", "--output", out]
        subprocess.run([*command, "--max-new-tokens", "2"], input=b'{"input_ids": [1, 2]}\n', check=True,
                       capture_output=True, env=harness.environment(), timeout=harness.LIMIT_S)  # fmt: skip
        self.assertEqual(len(harness.read_jsonl(out)), 1)

    def test_a_row_that_is_too_long_to_be_scored(self):
        rows = self.folder / "rows.jsonl"
        rows.write_text(json.dumps({"input_ids": [1] * 600}) + "\n")
        done = harness.keel("score", "--model", FIXTURES / "llama" / "hf", "--input", rows, "--output",
                            self.folder / "out.jsonl")  # fmt: skip
        self.assertEqual(done.returncode, DATA)
        self.assertIn("rows.jsonl:1", done.stderr)
        self.assertIn("600 tokens to score", done.stderr)
        self.assertNotIn("response", done.stderr)

    def test_a_row_of_one_token_has_no_perplexity(self):
        rows, out = self.folder / "rows.jsonl", self.folder / "out.jsonl"
        rows.write_text('{"input_ids": [1]}\n')
        score = ["score", "--model", FIXTURES / "llama" / "hf", "--input", rows, "--output", out]
        done = harness.keel(*score)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(harness.read_jsonl(out), [{"log_probs": [], "sum_log_prob": 0.0, "perplexity": None}])
        self.assertIn("0 tokens scored, which have a token each", done.stdout)
        out.unlink()
        rows.write_text('{"input_ids": [1]}\n{"input_ids": [1, 2]}\n')
        done = harness.keel(*score)
        self.assertEqual([row["perplexity"] is None for row in harness.read_jsonl(out)], [True, False])
        self.assertIn("1 tokens scored, mean log-prob", done.stdout)

    def test_a_model_of_a_hub(self):
        self.refused(["generate", "--model", "Qwen/Qwen2-7B-Instruct", "--input", self.data, "--output", "x"],
                     NO_INPUT, "--model: Qwen/Qwen2-7B-Instruct", "not looked up")  # fmt: skip
        self.train_refused(NO_INPUT, "actor_rollout_ref.model.path", "not looked up",
                           **{"actor_rollout_ref__model": {"path": "Qwen/Qwen2-7B-Instruct"}})  # fmt: skip
        for path in ("~/m", "$HOME/m"):
            self.train_refused(NO_INPUT, "actor_rollout_ref.model.path", f"{path}: there is no such directory; no shell has put anything in the place of ~",
                               **{"actor_rollout_ref__model": {"path": path}})  # fmt: skip


class Validate(BadInput):
    """`keel config validate` finds what `keel train` would refuse before it connects."""

    ROOT = pathlib.Path(__file__).parent.parent.parent

    def both_refuse(self, code, *fragments, **changes):
        config = self.config("bad", **changes)
        self.refused(["train", config], code, *fragments)
        self.refused(["config", "validate", config], code, *fragments)
        self.assertEqual(harness.keel("config", "validate", config, "--no-files").returncode, 0)

    def test_what_training_refuses(self):
        self.both_refuse(NO_INPUT, "nowhere.jsonl", data__train_files=["nowhere.jsonl"])
        self.both_refuse(CONFIG, "model_type", **{MODEL + "config": {**harness.MODEL, "model_type": "bert"}})
        self.both_refuse(CONFIG, "vocab_size 100 is less", **{MODEL + "config": {**harness.MODEL, "vocab_size": 100}})
        self.both_refuse(CONFIG, "data.max_length: 129 positions", data__max_length=129)
        self.both_refuse(DATA, "model.safetensors", **{MODEL + "path": str(self.broken()), MODEL + "config": {}})
        self.data.write_text('{"input_ids": [1, 263]}\n')
        self.both_refuse(DATA, "documents.jsonl:1", "263")

    def test_folders_that_cannot_be(self):
        below = str(self.data / "run")
        self.both_refuse(CONFIG, "trainer.default_local_dir", "is no directory", trainer__default_local_dir=below)
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"prompt": "1=", "answer": "1"}\n' * 4)
        rl = {
            "trainer__task": "rl", "data__train_files": [str(prompts)], "reward__type": "exact",
            "data__max_prompt_length": 8, "data__max_response_length": 6,
        }  # fmt: skip
        for key in ("rollout_data_dir", "validation_data_dir"):
            self.both_refuse(CONFIG, f"trainer.{key}", "is no directory", **rl, **{f"trainer__{key}": below})
        self.both_refuse(NO_INPUT, "trainer.rollout_replay_dir", **rl, trainer__rollout_replay_dir=str(self.folder / "none"))

    def test_a_critic_of_another_model(self):
        prompts, critic = self.folder / "ids.jsonl", self.folder / "critic"
        prompts.write_text('{"input_ids": [1, 2], "answer": "1"}\n' * 4)
        shutil.copytree(FIXTURES / "llama_tied" / "hf", critic)
        settings = json.loads((critic / "config.json").read_text())
        rl = {
            "trainer__task": "rl", "data__train_files": [str(prompts)], "reward__type": "command", "reward__command": ["cat"],
            "data__max_prompt_length": 8, "data__max_response_length": 6, "algorithm__adv_estimator": "gae",
            "critic__model__path": str(critic), "data__tokenizer": "ids", MODEL + "path": str(self.ended()), MODEL + "config": {},
        }  # fmt: skip
        self.assertEqual(harness.keel("config", "validate", self.config("good", **rl)).returncode, 0)
        (critic / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 0.1}))
        self.both_refuse(CONFIG, "critic.model.path", "eps 0.1", **rl)
        (critic / "config.json").unlink()
        self.both_refuse(NO_INPUT, "critic.model.path", "config.json", **rl)

    def ended(self):
        """A model whose texts end."""
        model = self.folder / "ended"
        shutil.copytree(FIXTURES / "llama_tied" / "hf", model)
        settings = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**settings, "eos_token_id": 7}))
        return model

    def broken(self):
        model = self.folder / "hf"
        shutil.copytree(FIXTURES / "llama" / "hf", model)
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100])
        return model

    def test_a_layout_that_the_model_cannot_have(self):
        config = self.config("tp", **{MEGATRON + "tensor_model_parallel_size": 5})
        arguments = ["config", "validate", config, "--world", "5"]
        self.refused(arguments, CONFIG, "num_attention_heads 4 leaves some of the ranks", "at most 4 fit")
        done = harness.keel("config", "validate", self.config("good"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("20 samples to train on", done.stdout)

    def test_a_model_for_the_shipped_configurations(self):
        """Each told whoever gave a model to take its own out."""
        rows = {"sft": {"input_ids": [1, 2]}, "dpo": {"prompt": [1], "chosen": [2], "rejected": [3]}}
        for name, row in rows.items():
            path = self.folder / f"{name}.jsonl"
            path.write_text(json.dumps(row) + "\n")
            model = self.folder / f"{name}_model"
            shutil.copytree(FIXTURES / "llama" / "hf", model)
            settings = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 1024}))
            done = harness.keel("config", "validate", self.ROOT / "configs" / f"{name}.yaml", "data.val_split=0",
                                f"data.train_files=[{path}]", f"actor_rollout_ref.model.path={model}")  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("takes the place of actor_rollout_ref.model.config", done.stdout)
            self.assertIn("1 samples to train on", done.stdout)


class BadWeights(BadInput):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "hf"
        shutil.copytree(FIXTURES / "llama" / "hf", self.model)
        self.file = self.model / "model.safetensors"
        self.prompts = FIXTURES / "llama" / "score.jsonl"

    def score_refused(self, code, *fragments):
        output = self.folder / "scores.jsonl"
        self.refused(
            ["score", "--model", self.model, "--input", self.prompts, "--output", output], code, *fragments
        )
        self.assertFalse(output.exists())

    def rewrite(self, change):
        header, data = split_file(self.file.read_bytes())
        data = change(header, data) or data
        self.file.write_bytes(join_file(header, data))

    def test_good_weights_are_taken(self):
        output = self.folder / "scores.jsonl"
        done = harness.keel("score", "--model", self.model, "--input", self.prompts, "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_truncated(self):
        self.file.write_bytes(self.file.read_bytes()[:-100])
        self.score_refused(DATA, "model.safetensors")

    def test_trailing_bytes(self):
        self.file.write_bytes(self.file.read_bytes() + b"more")
        self.score_refused(DATA, "model.safetensors")

    def test_empty(self):
        self.file.write_bytes(b"")
        self.score_refused(DATA, "model.safetensors")

    def test_foreign(self):
        self.file.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 16)
        self.score_refused(DATA, "model.safetensors")

    def test_header_length_beyond_the_file(self):
        content = self.file.read_bytes()
        self.file.write_bytes(struct.pack("<Q", 1 << 62) + content[8:])
        self.score_refused(DATA, "model.safetensors")

    def test_overlapping_tensors(self):
        def overlap(header, data):
            first = header["model.layers.0.self_attn.q_proj.weight"]
            header["model.layers.0.self_attn.o_proj.weight"]["data_offsets"] = first["data_offsets"]

        self.rewrite(overlap)
        self.score_refused(DATA, "model.safetensors")

    def test_wrong_shape(self):
        def transpose(header, data):
            header["model.layers.1.mlp.down_proj.weight"]["shape"].reverse()

        self.rewrite(transpose)
        self.score_refused(DATA, "model.layers.1.mlp.down_proj.weight", "[64, 96]", "[96, 64]")

    def test_missing_tensor(self):
        def rename(header, data):
            header["model.layers.2.other.weight"] = header.pop("model.layers.2.mlp.up_proj.weight")

        self.rewrite(rename)
        self.score_refused(DATA, "model.layers.2.mlp.up_proj.weight")

    def test_missing_weights(self):
        self.file.unlink()
        self.score_refused(NO_INPUT, "safetensors")

    def test_a_snapshot_whose_blobs_are_not_there(self):
        """As a hub's cache has a model: links to blobs, of which one after the other leads nowhere."""
        blobs, snapshot = self.folder / "blobs", self.folder / "snapshots" / "main"
        blobs.mkdir()
        snapshot.mkdir(parents=True)
        for file in list(self.model.iterdir()):
            file.rename(blobs / f"of-{file.name}")
            (snapshot / file.name).symlink_to(f"../../blobs/of-{file.name}")
        self.model = snapshot
        self.test_good_weights_are_taken()
        (self.folder / "scores.jsonl").unlink()
        (snapshot / "tokenizer.json").symlink_to("../../blobs/of-tokenizer.json")  # bytes would stand in for a missing one
        for name in ("tokenizer.json", "model.safetensors", "config.json"):
            blob, away = blobs / f"of-{name}", self.folder / "away"
            if blob.exists():
                blob.rename(away)
            said = f"snapshots/main/{name}: it is a link to ../../blobs/of-{name}, where there is nothing"
            self.score_refused(DATA, said, "cp -rL")
            run = ["ckpt", "import-hf", self.model, self.folder / "run"]
            if name != "tokenizer.json":
                self.refused(run, DATA, said)
                away.rename(blob)
            else:
                (snapshot / name).unlink()
        self.test_good_weights_are_taken()

    def test_missing_config(self):
        (self.model / "config.json").unlink()
        self.score_refused(NO_INPUT, "config.json")

    def test_unsupported_architecture(self):
        path = self.model / "config.json"
        path.write_text(path.read_text().replace('"model_type": "llama"', '"model_type": "mamba"'))
        self.score_refused(DATA, "mamba", "llama")

    def test_unsupported_bias(self):
        path = self.model / "config.json"
        path.write_text(path.read_text().replace('"mlp_bias": false', '"qkv_bias": true'))
        self.score_refused(DATA, "config.json", "qkv_bias")

    def test_token_outside_the_vocabulary(self):
        self.prompts = self.folder / "tokens.jsonl"
        self.prompts.write_text('{"input_ids": [1, 2]}\n{"input_ids": [1, 263]}\n')
        self.score_refused(DATA, "tokens.jsonl:2", "263")


class OtherWeights(BadInput):
    """Weights that are not those of their config.json: `score`, `ckpt import-hf` and `train` refuse alike."""

    def start_from(self, name):
        self.model = self.folder / name
        shutil.rmtree(self.model, ignore_errors=True)
        shutil.copytree(FIXTURES / name / "hf", self.model)
        self.file = self.model / "model.safetensors"

    def everyone_refuses(self, *fragments, code=DATA):
        output, run = self.folder / "scores.jsonl", self.folder / "imported"
        prompts = FIXTURES / "llama" / "score.jsonl"
        config = self.config("bad", actor_rollout_ref__model={"path": str(self.model), "dtype": "float32"})
        self.refused(["score", "--model", self.model, "--input", prompts, "--output", output], code, *fragments)
        self.refused(["ckpt", "import-hf", self.model, run], code, *fragments)
        self.refused(["train", config], code, *fragments)
        self.assertFalse(output.exists() or run.exists())
        self.assertFalse(list(self.run_dir("bad").glob("*.jsonl")))

    def change(self, edit):
        """`edit` gets {name: [dtype, shape, bytes]}."""
        header, data = split_file(self.file.read_bytes())
        header.pop("__metadata__", None)
        tensors = {
            name: [one["dtype"], one["shape"], data[slice(*one["data_offsets"])]] for name, one in header.items()
        }
        edit(tensors)
        header, data = {}, b""
        for name, (dtype, shape, content) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        self.file.write_bytes(join_file(header, data))

    def configure(self, **changes):
        path = self.model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def test_missing(self):
        self.start_from("llama")
        self.change(lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
        self.everyone_refuses("missing tensors (1): model.layers.2.mlp.up_proj.weight")

    def test_another_shape(self):
        self.start_from("llama")
        self.change(lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"][1].reverse())
        self.everyone_refuses("model.layers.1.mlp.down_proj.weight is [96, 64], expected [64, 96]")

    def test_more_layers_than_weights_and_fewer(self):
        self.start_from("llama")
        layers = json.loads((self.model / "config.json").read_text())["num_hidden_layers"]
        self.configure(num_hidden_layers=layers + 2)
        self.everyone_refuses("missing tensors (18): ", f"model.layers.{layers}.input_layernorm.weight")
        self.configure(num_hidden_layers=layers - 1)
        self.everyone_refuses("no place for (9): ", f"model.layers.{layers - 1}.input_layernorm.weight")

    def test_experts_that_are_not_those_of_the_config(self):
        self.start_from("qwen3_moe")
        self.change(lambda tensors: tensors.pop("model.layers.2.mlp.experts.5.up_proj.weight"))
        self.everyone_refuses("missing tensors (1): model.layers.2.mlp.experts.5.up_proj.weight")
        self.start_from("qwen3_moe")
        self.change(lambda tensors: tensors["model.layers.0.mlp.experts.3.down_proj.weight"][1].reverse())
        self.everyone_refuses("model.layers.0.mlp.experts.3.down_proj.weight is [40, 64], expected [64, 40]")
        self.start_from("qwen3_moe")
        self.change(lambda tensors: tensors["model.layers.0.mlp.gate.weight"][1].reverse())
        self.everyone_refuses("model.layers.0.mlp.gate.weight is [64, 8], expected [8, 64]")
        self.start_from("mixtral")
        self.configure(num_local_experts=3)
        self.everyone_refuses("no place for (6): ", "model.layers.0.block_sparse_moe.experts.3.w1.weight")
        self.configure(num_local_experts=4, num_experts_per_tok=5)
        self.everyone_refuses("config.json: num_experts_per_tok 5 is more than num_local_experts 4")

    def test_biases_that_one_of_the_two_has(self):
        self.start_from("llama")
        self.configure(attention_bias=True)
        self.everyone_refuses("missing tensors", "model.layers.0.self_attn.k_proj.bias")
        self.start_from("llama_attention_bias")
        self.configure(attention_bias=False)
        self.everyone_refuses("no place for", "model.layers.0.self_attn.k_proj.bias")

    def test_a_head_that_is_not_the_embedding_it_is_tied_to(self):
        self.start_from("llama_tied")
        embedding = "model.embed_tokens.weight"
        self.change(lambda tensors: tensors.update({"lm_head.weight": list(tensors[embedding])}))
        output = self.folder / "scores.jsonl"
        prompts = FIXTURES / "llama" / "score.jsonl"
        done = harness.keel("score", "--model", self.model, "--input", prompts, "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        output.unlink()

        def differ(tensors):
            dtype, shape, content = tensors["lm_head.weight"]
            tensors["lm_head.weight"] = [dtype, shape, content[:-4] + b"\0\0\0\1"]

        self.change(differ)
        self.everyone_refuses("lm_head.weight differs from model.embed_tokens.weight", "tie_word_embeddings")

    def test_not_finite(self):
        self.start_from("llama")

        def spoil(tensors):
            dtype, shape, content = tensors["model.norm.weight"]
            self.assertEqual(dtype, "F32")
            tensors["model.norm.weight"] = [dtype, shape, struct.pack("<f", float("nan")) + content[4:]]

        self.change(spoil)
        self.everyone_refuses("model.norm.weight has values that are not finite")

    def test_sizes_that_no_model_has(self):
        self.start_from("llama")
        self.configure(num_hidden_layers=10**9)
        self.everyone_refuses("num_hidden_layers: expected an integer from 1 to 10000, found 1000000000")
        self.train_refused(
            CONFIG, "num_hidden_layers: expected an integer from 1 to",
            **{MODEL + "config": {**harness.MODEL, "num_hidden_layers": 10**9}},
        )  # fmt: skip

    def test_what_a_directory_says_is_shown_and_does_nothing(self):
        evil = "\x1b]0;x\x07\n2026-11-21T07:00:00.123Z info  [rank 0] saved\r\x7f\u009b31m"
        for where in ("tensor", "config"):
            self.start_from("llama")
            if where == "tensor":
                self.change(lambda tensors: tensors.update({evil: ["F32", [1], bytes(4)]}))
            else:
                self.configure(model_type=evil)
            prompts = FIXTURES / "llama" / "score.jsonl"
            config = self.config("bad", actor_rollout_ref__model={"path": str(self.model), "dtype": "float32"})
            for command in (["score", "--model", self.model, "--input", prompts, "--output", self.folder / "x"],
                            ["ckpt", "import-hf", self.model, self.folder / "imported"],
                            ["train", config], ["launch", "--nproc-per-node", "1", "train", config]):  # fmt: skip
                done = harness.keel(*command)
                output = done.stdout + done.stderr
                self.assertEqual(done.returncode, DATA, output)
                self.assertIn("[rank 0] saved", output)
                self.assertNotRegex(output, r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
                self.assertNotRegex(output, r"(?m)^2026-11-21T07")


class BadFolder(BadInput):
    def test_a_working_directory_that_is_gone(self):
        """Intel's library ended the process: it could not load libtorch_cpu.so, it said."""
        gone = self.folder / "gone"
        gone.mkdir()
        # The shell goes on in what it removes.
        script = 'cd "$0" && rmdir "$0" && exec "$@"'
        ended = subprocess.run(
            ["sh", "-c", script, str(gone), harness.KEEL, "train", str(self.config("bad"))],
            capture_output=True, text=True, timeout=harness.LIMIT_S, env=harness.environment(), check=False,
        )  # fmt: skip
        self.assertEqual(ended.returncode, 66, ended.stderr)
        self.assertIn("the directory that keel was started in is gone", ended.stderr)

    def test_what_is_no_file_under_a_name_that_a_run_needs(self):
        run = self.run_dir("bad")
        run.mkdir()
        kinds = {
            "a pipe or device": (os.mkfifo, lambda path: path.symlink_to("/dev/zero")),
            "a directory": (lambda path: path.mkdir(),),
        }
        names = ["metrics.jsonl", "config.yaml", "run_id", "checkpoints.jsonl", ".keel-lock"]
        cases = [(name, what, make) for name in names for what, makers in kinds.items() for make in makers]
        for name, what, make in cases:
            with self.subTest(name=name, what=what):
                path = run / name
                make(path)
                config = self.config("bad")
                self.refused(["train", config], CONFIG, "trainer.default_local_dir", f"{path} is {what}")
                self.assertEqual([p.name for p in run.iterdir()], [name])
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


class BadCheckpoint(BadInput):
    STEPS = {"trainer__save_freq": 2, "trainer__total_training_steps": 4}

    def setUp(self):
        super().setUp()
        self.trained = self.config("trained", **self.STEPS)
        self.train(self.trained)
        self.newest = self.run_dir("trained") / "global_step_4"

    def test_of_another_model(self):
        config = self.config(
            "trained", **self.STEPS, **{MODEL + "config": {**harness.MODEL, "intermediate_size": 128}}
        )
        self.refused(["train", config], CONFIG, "another model", "global_step_4")

    def test_of_another_model_by_path(self):
        config = self.config(
            "other",
            trainer__resume_mode="resume_path",
            trainer__resume_from_path=str(self.newest),
            **{MODEL + "config": {**harness.MODEL, "num_hidden_layers": 2}},
        )
        self.refused(["train", config], CONFIG, "another model", "global_step_4")

    def test_missing_resume_path(self):
        for name in ("none", "none/global_step_4", "trained/global_step_5"):
            path = str(self.folder / name)
            config = self.config("other", trainer__resume_mode="resume_path", trainer__resume_from_path=path)
            for ranks in (1, 2):
                self.refused(self.command(config, ranks), NO_INPUT, "trainer.resume_from_path", path)

    def test_resume_path_that_is_no_checkpoint(self):
        path = str(self.run_dir("trained"))
        config = self.config("other", trainer__resume_mode="resume_path", trainer__resume_from_path=path)
        self.refused(["train", config], NO_INPUT, "trainer.resume_from_path", path, "global_step_<n>")

    def test_resume_path_under_another_mode(self):
        config = self.config("other", trainer__resume_from_path=str(self.newest))
        self.refused(["train", config], CONFIG, "trainer.resume_from_path", "resume_mode is auto")

    def test_nothing_to_load(self):
        section = "actor_rollout_ref__actor__checkpoint__load_contents"
        config = self.config("trained", **self.STEPS, **{section: []})
        self.refused(["train", config], CONFIG, "load_contents is empty", "disable")

    def test_weights_that_are_not_loaded_are_spoken_of(self):
        section = "actor_rollout_ref__actor__checkpoint__load_contents"
        config = self.config("trained", **{**self.STEPS, "trainer__total_training_steps": 6}, **{section: ["extra"]})
        done = self.train(config)
        self.assertIn("load_contents has neither model nor hf_model", done.stdout + done.stderr)

    def test_weights_alone_begin_anew_among_later_steps(self):
        section = "actor_rollout_ref__actor__checkpoint__load_contents"
        config = self.config("trained", **{**self.STEPS, "trainer__total_training_steps": 2}, **{section: ["model"]})
        done = self.train(config)
        self.assertRegex(done.stdout + done.stderr, r"holds 2 checkpoints of later steps, .*begins anew")

    def test_a_step_that_is_a_link(self):
        elsewhere = self.folder / "elsewhere"
        self.newest.rename(elsewhere)
        self.newest.symlink_to(elsewhere)
        self.refused(["train", self.trained], CONFIG, "global_step_4", "symbolic link", "resume_from_path")
        listed = harness.keel("ckpt", "ls", self.run_dir("trained"))
        self.assertRegex(listed.stdout, r"global_step_4 .*NO")
        # By name it is what it points to, and so is a link that is named.
        self.newest.unlink()
        latest = self.folder / "latest"
        latest.symlink_to("elsewhere")
        for path in (elsewhere, latest):
            config = self.config("trained", **{**self.STEPS, "trainer__total_training_steps": 6},
                                 trainer__resume_mode="resume_path", trainer__resume_from_path=str(path))  # fmt: skip
            done = self.train(config)
            self.assertIn("resumed from elsewhere at step 4", done.stdout + done.stderr)

    def test_a_manifest_that_is_no_file(self):
        manifest = self.newest / "manifest.json"
        manifest.rename(self.folder / "manifest.json")
        manifest.symlink_to(self.folder / "manifest.json")
        self.refused(["train", self.trained], CONFIG, "global_step_4/manifest.json", "is not a file")

    def test_places_that_nothing_may_be_written_to(self):
        inside = self.newest / "inside"
        for command in (["export-hf", self.newest, inside], ["reshard", "--world", "2", self.newest, inside],
                        ["export-hf", self.newest, ""]):  # fmt: skip
            self.refused(["ckpt", *command], USAGE, "inside" if command[-1] else "no place to write to")
        self.assertFalse(inside.exists())

    def test_an_import_does_not_send_a_run_back(self):
        exported = self.folder / "exported"
        self.assertEqual(harness.keel("ckpt", "export-hf", self.newest, exported).returncode, 0)
        before = sorted(path.name for path in self.run_dir("trained").iterdir())
        self.refused(["ckpt", "import-hf", exported, self.run_dir("trained")], USAGE, "holds global_step_4 already")
        self.assertEqual(sorted(path.name for path in self.run_dir("trained").iterdir()), before)

    def test_the_best_of_none(self):
        self.refused(["ckpt", "prune", "--keep-latest", "1", "--keep-best", "1", self.run_dir("trained")],
                     USAGE, "none of the run's checkpoints in", "has a metric")  # fmt: skip

    def test_a_checkpoint_is_no_folder_of_a_run(self):
        before = (self.newest / "config.yaml").read_bytes()
        config = self.config("other", trainer__default_local_dir=str(self.newest))
        self.refused(["train", config], CONFIG, "trainer.default_local_dir", "is a checkpoint itself")
        self.assertEqual((self.newest / "config.yaml").read_bytes(), before)

    def test_a_folder_of_a_run_where_a_step_is_wanted(self):
        for arguments in (["inspect"], ["diff", self.newest], ["pin"], ["export-hf", self.folder / "out"]):
            where = [arguments[0], self.run_dir("trained"), *arguments[1:]]
            self.refused(["ckpt", *where], NO_INPUT, "is the folder of a run", "global_step_")

    def test_a_new_start_among_old_checkpoints_is_spoken_of(self):
        config = self.config("trained", **self.STEPS, trainer__resume_mode="disable")
        done = self.train(config)
        self.assertRegex(done.stdout + done.stderr, r"resume_mode is disable, .*global_step_4.*begins anew")

    def test_a_checkpoint_of_another_run_is_not_taken_for_this_ones(self):
        self.train(self.config("other", trainer__save_freq=6, trainer__total_training_steps=6))
        shutil.copytree(self.run_dir("other") / "global_step_6", self.run_dir("trained") / "global_step_6")
        theirs = (self.run_dir("other") / "run_id").read_text().strip()
        longer = {"trainer__save_freq": 2, "trainer__total_training_steps": 8}
        done = self.train(self.config("trained", **{**longer, "trainer__total_training_steps": 5}))
        output = done.stdout + done.stderr
        self.assertIn("resumed from global_step_4", output)
        self.assertRegex(output, rf"checkpoints of other runs, .*global_step_6 \(run {theirs}\)")
        # Whose step it is is asked before it is replaced, too.
        done = self.train(self.config("trained", **longer))
        self.assertRegex(done.stdout + done.stderr, r"global_step_6 exists and is of another run .*set-aside")
        # By name, or by the key, it is what was asked for, and said to be.
        for changes in ({"trainer__resume_mode": "resume_path",
                         "trainer__resume_from_path": str(self.run_dir("other") / "global_step_6")},
                        {"trainer__adopt_foreign_checkpoints": True}):  # fmt: skip
            name = f"taker_{len(changes)}"
            self.run_dir(name).mkdir()
            (self.run_dir(name) / "run_id").write_text("0123\n")
            shutil.copytree(self.run_dir("other") / "global_step_6", self.run_dir(name) / "global_step_6")
            self.refused(["train", self.config(name, **longer)], CONFIG, "global_step_6", theirs, "0123",
                         "trainer.adopt_foreign_checkpoints")  # fmt: skip
            done = self.train(self.config(name, **longer, **changes))
            self.assertIn("resumed from global_step_6 at step 6", done.stdout + done.stderr)
            self.assertRegex(done.stdout + done.stderr, rf"was saved by another run, {theirs}; this one, 0123,")

    def test_a_lost_run_id_is_that_of_the_checkpoints(self):
        path = self.run_dir("trained") / "run_id"
        before = path.read_text()
        path.unlink()
        done = self.train(self.config("trained", trainer__save_freq=2, trainer__total_training_steps=6))
        self.assertIn("takes the id of the checkpoints there, " + before.strip(), done.stdout + done.stderr)
        self.assertEqual(path.read_text(), before)

    def damage(self, path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)

    def test_damaged_manifest_falls_back_to_the_older_one(self):
        self.damage(self.newest / "manifest.json")
        config = self.config("trained", trainer__save_freq=2, trainer__total_training_steps=6)
        done = self.train(config)
        output = done.stdout + done.stderr
        self.assertIn("global_step_4", output)
        self.assertIn("manifest.json", output)
        self.assertNotIn("checkpoints of later steps", output)  # that one was spoken of
        self.assertEqual(sorted(self.metrics("trained")), [1, 2, 3, 4, 5, 6])

    def test_flipped_bit_in_a_tensor_falls_back_to_the_older_one(self):
        self.damage(next((self.newest / "actor" / "model").glob("*.safetensors")))
        self.refused(["ckpt", "verify", self.newest], DAMAGED, "rank_00000.safetensors")
        config = self.config("trained", trainer__save_freq=2, trainer__total_training_steps=6)
        done = self.train(config)
        self.assertIn("global_step_4", done.stdout + done.stderr)
        self.assertNotIn("checkpoints of later steps", done.stdout + done.stderr)
        # Step 4 was trained again, and the damaged one is there for people to look at.
        (kept,) = self.run_dir("trained").glob("global_step_4.set-aside-*")
        self.assertRegex(done.stdout + done.stderr, rf"version of global_step_4 is damaged: .*{kept.name}")
        self.refused(["ckpt", "verify", kept], DAMAGED, "rank_00000.safetensors")
        self.assertEqual(harness.keel("ckpt", "verify", self.run_dir("trained")).returncode, 0)

    def test_none_valid_never_starts_from_nothing(self):
        for step in (2, 4):
            self.damage(self.run_dir("trained") / f"global_step_{step}" / "manifest.json")
        self.refused(["train", self.trained], DATA, "global_step_2", "global_step_4")

    def test_damaged_by_path(self):
        self.damage(self.newest / "manifest.json")
        config = self.config(
            "other", trainer__resume_mode="resume_path", trainer__resume_from_path=str(self.newest)
        )
        self.refused(["train", config], DATA, "manifest.json")


if __name__ == "__main__":
    unittest.main()
