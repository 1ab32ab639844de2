"""Token files against their owners' readers: Megatron's indexed datasets against megatron-core's, best-fit bins against TRL's, parquet
against pyarrow. The packages come from PyPI, or from the folder KEEL_ORACLE_WHEELS; what cannot be had is named and skipped."""

import datetime
import decimal
import importlib
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
import byte_level

KEEL = os.environ["KEEL_BINARY"]
PACKAGES = {"megatron-core": "0.16.1", "trl": "1.16.0"}


def keel(*arguments):
    return subprocess.run([KEEL, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False)


def wheel_of(package):
    """Its wheel, from the cache of the build tree; None when it cannot be had."""
    cache = pathlib.Path(os.environ.get("KEEL_ORACLE_WHEELS", pathlib.Path(KEEL).parent / "oracle_wheels"))
    name = f"{package.replace('-', '_')}-{PACKAGES[package]}-*.whl"
    if not list(cache.glob(name)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(cache)]
        subprocess.run([*command, f"{package}=={PACKAGES[package]}"], capture_output=True, timeout=300, check=False)
    found = list(cache.glob(name))
    return found[0] if found else None


def without_nulls(value):
    return {key: without_nulls(one) for key, one in value.items() if one is not None} if isinstance(value, dict) else value


class TokenData(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="keel-oracle-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def unpacked(self, package, part):
        """A folder with what begins so of the package's wheel, for sys.path."""
        wheel = wheel_of(package)
        if wheel is None:
            self.skipTest(f"{package} {PACKAGES[package]} cannot be had from PyPI")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.folder, [name for name in archive.namelist() if name.startswith(part)])
        sys.path.insert(0, str(self.folder))
        self.addCleanup(sys.path.remove, str(self.folder))

    def documents(self, path):
        done = keel("data", "info", path, "--rows")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["input_ids"] for line in done.stdout.splitlines()]

    def test_megatron_files_are_what_its_reader_reads(self):
        self.unpacked("megatron-core", "megatron/core/datasets/")
        # Of the package only this file is there; what it imports besides is not what reads.
        core = types.ModuleType("megatron.core")
        core.__path__ = [str(self.folder / "megatron" / "core")]
        sys.modules["megatron.core"] = core
        utils = types.ModuleType("megatron.core.utils")
        utils.log_single_rank = lambda *a, **k: None
        storage = types.ModuleType("megatron.core.msc_utils")
        storage.MultiStorageClientFeature = types.SimpleNamespace(is_enabled=lambda: False)
        sys.modules.update({"megatron.core.utils": utils, "megatron.core.msc_utils": storage})
        datasets = types.ModuleType("megatron.core.datasets")
        datasets.__path__ = [str(self.folder / "megatron" / "core" / "datasets")]
        sys.modules["megatron.core.datasets"] = datasets
        indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
        chance = numpy.random.default_rng(3)
        for dtype, top in ((numpy.uint8, 256), (numpy.int16, 32768), (numpy.uint16, 65536), (numpy.int32, 150000), (numpy.int64, 150000)):
            with self.subTest(dtype=dtype.__name__):
                prefix = str(self.folder / dtype.__name__)
                builder = indexed.IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
                for _ in range(60):
                    parts = chance.integers(1, 4)
                    lengths = [int(n) for n in chance.integers(1, 200, parts)]
                    ids = chance.integers(0, top, sum(lengths)).astype(dtype)
                    builder.add_document(torch.from_numpy(ids.astype(numpy.int64)), lengths)
                builder.finalize(prefix + ".idx")
                theirs = indexed.IndexedDataset(prefix)
                bounds = theirs.document_indices
                expected = [
                    [int(i) for s in range(bounds[d], bounds[d + 1]) for i in theirs[s]] for d in range(len(bounds) - 1)
                ]
                self.assertEqual(len(expected), 60)
                self.assertEqual(self.documents(prefix + ".idx"), expected)

    def test_best_fit_bins_are_as_many_as_trls(self):
        pyarrow = importlib.import_module("pyarrow")
        self.unpacked("trl", "trl/data_utils.py")
        for name in ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"):
            module = sys.modules.setdefault("datasets", types.ModuleType("datasets"))
            setattr(module, name, type(name, (), {}))
        spec = importlib.util.spec_from_file_location("trl_data_utils", self.folder / "trl" / "data_utils.py")
        trl = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(trl)
        chance = random.Random(8)
        for round_, capacity in enumerate((16, 100, 128, 128)):
            # An input less than tokens: a row of n + 1 ids is one of n to whoever counts inputs.
            lengths = [1 + min(int(chance.expovariate(3 / capacity)), 3 * capacity) for _ in range(800)]
            table = pyarrow.table({"input_ids": [[0] * length for length in lengths]})
            bins = len(trl._pack_bfd(table, capacity, "split"))
            rows = self.folder / f"{round_}.jsonl"
            rows.write_text("".join(json.dumps({"input_ids": [0] * (n + 1)}) + "\n" for n in lengths))
            config = self.folder / f"{round_}.yaml"
            config.write_text(json.dumps(run_config("pretrain", rows, capacity, packing="best_fit")))
            said = keel("config", "validate", config)
            self.assertIn(f" {bins} samples to train on", said.stdout, said.stderr)


    def test_parquet_rows_are_pyarrows(self):
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        chance = random.Random(5)

        def verl(i):
            return {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "system", "content": ""}, {"role": "user", "content": f"How many is {i}? \u00e9\U0001f600"}],
                "reward_model": {"style": "rule", "ground_truth": str(i)},
                "extra_info": {"index": i, "split": None if i % 7 == 0 else "train", "weights": [0.5] * (i % 4), "deep": [[i], [], None]},
                "flag": i % 2 == 0,
                "nothing": None,
                "word": chance.choice(["a", "b", None]),
            }

        rows = [verl(i) for i in range(2500)]
        plain = pyarrow.Table.from_pylist(rows)
        types_ = pyarrow.table({
            **{str(t): pyarrow.array([1, None, 100], t) for t in (pyarrow.int8(), pyarrow.uint16(), pyarrow.int64(), pyarrow.uint64())},
            "half": pyarrow.array(numpy.array([1.5, -2, 0], numpy.float16)),
            "float": pyarrow.array([0.1, None, 3.0], pyarrow.float32()),
            "large": pyarrow.array(["x", "", None], pyarrow.large_string()),
            "words": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
            "fixed": pyarrow.array([[1, 2], [3, 4], None], pyarrow.list_(pyarrow.int32(), 2)),
            "lists": pyarrow.array([[["a"], []], None, []], pyarrow.large_list(pyarrow.list_(pyarrow.string()))),
            "view": pyarrow.array([[1, 2], None, []], pyarrow.list_view(pyarrow.int64())),
            "views": pyarrow.array([[["a"], []], None, [["b", None]]], pyarrow.large_list_view(pyarrow.list_view(pyarrow.string()))),
            "map": pyarrow.array([[("k", 1)], [], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        })
        # With a dictionary of its own in each row group, which pyarrow itself does not read in one batch.
        role = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        talks = pyarrow.list_(pyarrow.struct([("role", role), ("content", pyarrow.string())]))
        words = [[{"role": f"r{i // 400}", "content": str(i)}] * (i % 3) for i in range(2000)]
        dictionaries = pyarrow.table({"messages": pyarrow.array(words, talks)})
        for name, table in (("verl", plain), ("types", types_), ("sliced", plain.slice(100, 900)), ("empty", plain.slice(0, 0)), ("words", dictionaries)):
            for codec in ("none", "snappy", "zstd", "gzip", "brotli", "lz4") if name == "verl" else ("snappy",):
                with self.subTest(table=name, codec=codec):
                    path = self.folder / f"{name}_{codec}.parquet"
                    parquet.write_table(table, path, compression=codec, row_group_size=611)
                    done = keel("data", "info", path, "--rows")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    found = [json.loads(line) for line in done.stdout.splitlines()]
                    self.assertEqual(found, json.loads(json.dumps(parquet.read_table(path).to_pylist())))

    def test_what_is_no_number_is_printed_as_pythons_json_does(self):
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        path = self.folder / "odd.parquet"
        rows = [{"text": "a", "s": float("nan"), "t": {"u": [1.5, float("inf"), None]}}, {"text": "b", "s": float("-inf"), "t": None}]
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        done = keel("data", "info", path, "--rows")
        self.assertEqual((done.returncode, done.stdout.split()), (0, [json.dumps(row, separators=(",", ":")) for row in rows]), done.stderr)

    def test_nanogpts_ids_are_told_and_printed(self):
        ids = [5, 65535, 0, 300]
        path = self.folder / "val.bin"
        numpy.array(ids, numpy.uint16).tofile(path)
        self.assertIn("ids of 16 bits, 4 tokens", keel("data", "info", path).stdout)
        self.assertEqual(json.loads(keel("data", "info", path, "--rows").stdout), {"input_ids": ids})

    def test_a_page_of_parquet_that_is_not_what_its_checksum_says_is_refused(self):
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        path = self.folder / "checked.parquet"
        parquet.write_table(pyarrow.table({"text": [f"row number {i}" for i in range(50)]}), path,
                            write_page_checksum=True, compression="none", use_dictionary=False)  # fmt: skip
        self.assertEqual(keel("data", "info", path, "--rows").returncode, 0)
        content = path.read_bytes()
        self.assertIn(b"row number 7", content)
        path.write_bytes(content.replace(b"row number 7", b"row number 9", 1))
        done = keel("data", "info", path, "--rows")
        self.assertEqual(done.returncode, 65, done.stdout[:200])
        self.assertIn("CRC checksum verification failed", done.stderr)

    def test_a_row_of_parquet_has_no_members_that_are_null(self):
        """Rows of several forms in one file, as a table has all of their columns."""
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        rows = [{"text": "some words"}, {"messages": talk}, {"prompt": "one", "response": "two"}, {"text": "more", "messages": None}]
        path, lines = self.folder / "forms.parquet", self.folder / "forms.jsonl"
        parquet.write_table(pyarrow.Table.from_pylist([{"text": None, "messages": None, "prompt": None, "response": None, **row} for row in rows]), path)
        lines.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows))
        said = []
        for file in (path, lines):
            shards = self.folder / f"{file.suffix}.tokens"
            done = keel("data", "tokenize", file, "--tokenizer", "bytes", "--out", shards)
            self.assertEqual(done.returncode, 0, done.stderr)
            said.append(keel("data", "info", shards, "--rows").stdout)
        self.assertEqual(said[0], said[1])
        self.assertEqual(len(said[0].splitlines()), len(rows))

    def test_rows_of_verl_and_trl_are_the_same_from_a_table_that_has_every_column(self):
        """Of every key, nested ones too, that only some rows have a table has a null in the others."""
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        model = self.folder / "model"
        model.mkdir()
        byte_level.write_tokenizer(model, {"<|user|>": True, "<|assistant|>": True, "<|tool|>": True, "<|end|>": True}, "<|end|>")
        (model / "chat_template.jinja").write_text(
            "{% if tools is defined and tools is not none %}{{ tools | tojson }}{% endif %}{{ enable_thinking | default('?') }}{{ documents | default('') }}"
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content if m.content is defined else 'no content' }}"
            "{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
        ask, say = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": "1"}}}]}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}
        other = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {"y": {"type": "integer", "default": 1}}}}}
        written = json.dumps([{"name": "f", "default": None}])
        chats = [{"messages": [ask, say]}, {"messages": [ask, call, {"role": "tool", "content": "r"}, say], "tools": [tool]},
                 {"messages": [ask, say], "tools": [other], "chat_template_kwargs": {"enable_thinking": True}}]  # fmt: skip
        texts = [{"messages": [ask, say], "tools": written}, {"text": "t"}, {"prompt": "p", "completion": "c"}, {"question": "q", "answer": "r"},
                 {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, {"prompt": [ask], "response": [say]}]  # fmt: skip
        prompts = [{"prompt": [ask], "data_source": "addition", "reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 1}},
                   {"prompt": [ask], "answer": "3", "extra_info": {"tools_kwargs": {"f": {"create_kwargs": {"x": "1"}}}}}, {"question": "q", "answer": "4"},
                   {"prompt": [ask], "ground_truth": "5", "tools": [tool]}, {"input_ids": [1, 2], "answer": "6"}]  # fmt: skip
        pairs = [{"prompt": [ask], "chosen": [say], "rejected": [{**say, "content": "c"}]}, {"chosen": [ask, say], "rejected": [ask, {**say, "content": "c"}], "score_chosen": 1.0},
                 {"prompt_input_ids": [1], "chosen_input_ids": [2, 3], "rejected_input_ids": [4]}]  # fmt: skip
        for name, rows, task in (("chats", chats, "sft"), ("texts", texts, "sft"), ("prompts", prompts, "rl"), ("pairs", pairs, "dpo")):
            with self.subTest(name):
                columns = dict.fromkeys(key for row in rows for key in row)
                if any(isinstance(row.get("prompt"), list) for row in rows) and any(isinstance(row.get("prompt"), str) for row in rows):
                    rows = [row for row in rows if not isinstance(row.get("prompt"), list)]  # a column has one type
                files = {kind: self.folder / f"{name}.{kind}.{'parquet' if kind == 'table' else 'jsonl'}" for kind in ("table", "nulls", "bare")}
                parquet.write_table(pyarrow.Table.from_pylist([{key: row.get(key) for key in columns} for row in rows]), files["table"])
                files["nulls"].write_text("".join(json.dumps({key: row.get(key) for key in columns}) + "\n" for row in rows))
                files["bare"].write_text("".join(json.dumps(row) + "\n" for row in rows))
                said = {}
                for kind, file in files.items():
                    config = run_config(task, file, 256, tokenizer=None)
                    config["actor_rollout_ref"]["model"]["tokenizer_path"] = str(model)
                    config["actor_rollout_ref"]["model"]["config"] |= {"bos_token_id": None, "eos_token_id": 259}
                    config["data"] |= {"max_prompt_length": 200, "max_response_length": 200}
                    if task == "rl":
                        config["reward"] = {"type": "exact"}
                    path = self.folder / "run.yaml"
                    path.write_text(json.dumps(config))
                    done = keel("data", "show", path, "--count", len(rows), "--json")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    shown = [json.loads(line) for line in done.stdout.splitlines()]
                    for row in shown:  # what verifiers and tools are given stays as it is
                        row["extra_info"] = without_nulls(row.get("extra_info"))
                    said[kind] = "".join(json.dumps(row) + "\n" for row in shown)
                    if name == "chats":
                        out = self.folder / "encoded.jsonl"
                        done = keel("data", "encode", "--tokenizer", model, "--input", file, "--output", out, "--mask")
                        self.assertEqual(done.returncode, 0, done.stderr)
                        said[kind] += "".join(str(json.loads(line)["input_ids"]) for line in out.read_text().splitlines())
                self.assertEqual(len(said["bare"].splitlines()), len(rows) + (name == "chats"))
                self.assertEqual(said["table"], said["bare"])
                self.assertEqual(said["nulls"], said["bare"])

    def test_parquet_trains_as_its_rows_do_and_damage_is_refused(self):
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        rows = [{"text": "some words " * (i % 5 + 1), "at": None} for i in range(200)]
        table, path, lines = pyarrow.Table.from_pylist(rows), self.folder / "rows.parquet", self.folder / "rows.jsonl"
        parquet.write_table(table, path)
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        said = []
        for number, file in enumerate((path, lines)):
            shards = self.folder / f"{number}.tokens"
            done = keel("data", "tokenize", file, "--tokenizer", "bytes", "--out", shards)
            self.assertEqual(done.returncode, 0, done.stderr)
            said.append([line for line in keel("data", "info", shards, "--verify").stdout.splitlines() if "content" in line])
        self.assertEqual(said[0], said[1])
        whole, chance = path.read_bytes(), random.Random(1)
        for round_ in range(60):
            bad = bytearray(whole)
            if round_ % 3 == 0:
                del bad[chance.randrange(len(bad)) :]
            else:
                for _ in range(chance.randrange(1, 6)):
                    bad[chance.randrange(len(bad))] = chance.randrange(256)
            path.write_bytes(bad)
            done = keel("data", "info", path, "--rows")
            self.assertIn(done.returncode, (0, 65), done.stderr)
            if done.returncode == 65:
                self.assertIn("rows.parquet", done.stderr)
        binary = pyarrow.table({"text": pyarrow.array([b"x"]), "at": pyarrow.array([datetime.date(2026, 1, 1)])})
        parquet.write_table(binary, path)
        self.assertIn('{"text":{"$arrow":"binary"},"at":{"$arrow":"date32[day]"}}', keel("data", "info", path, "--rows").stdout)
        done = keel("data", "tokenize", path, "--tokenizer", "bytes", "--out", self.folder / "binary.tokens")
        self.assertIn("rows.parquet:1: text: expected a string", done.stderr)

    def test_a_ground_truth_that_json_has_not_is_refused(self):
        """Verifiers were given {"$arrow": "decimal128(5, 2)"} for 1.50, and null for nan, and found every answer wrong."""
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        path, config = self.folder / "rows.parquet", self.folder / "run.yaml"
        config.write_text(json.dumps(run_config("rl", path, 64, max_prompt_length=32, max_response_length=8) | {"reward": {"type": "exact"}}))

        def validate(truth, extra_info):
            parquet.write_table(pyarrow.table({"prompt": ["x"], "answer": pyarrow.array([truth]), "extra_info": [extra_info]}), path)
            done = keel("config", "validate", config)
            return done.returncode, done.stdout + done.stderr

        for truth, type_ in ((decimal.Decimal("1.50"), "decimal128(3, 2)"), (float("nan"), "nan"), ([b"1"], "binary")):
            status, said = validate(truth, {"index": 1})
            self.assertEqual(status, 65, said)
            self.assertIn(f"rows.parquet:1: the ground truth holds {type_}", said)
        status, said = validate("1.50", {"index": 1, "at": datetime.date(2026, 1, 1)})
        self.assertEqual(status, 0, said)
        self.assertIn("extra_info.at (1)", said)


def run_config(task, rows, max_length, **data):
    model = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model |= {"num_key_value_heads": 1, "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    return {
        "trainer": {"task": task, "default_local_dir": str(rows) + ".run", "total_training_steps": 1},
        "data": {"train_files": [str(rows)], "tokenizer": "bytes", "max_length": max_length, **data},
        "actor_rollout_ref": {"model": {"config": model}},
    }


if __name__ == "__main__":
    unittest.main()
