"""The oracles accept what is right, and find one flipped bit.

Runs as the ctest entry `oracles`; KEEL_FIXTURES names the folder of make_model_fixtures.py.
"""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

import safetensors.torch
import torch

import make_lr_reference
import warm

HERE = pathlib.Path(__file__).parent
FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])


def setUpModule():
    global oracles
    oracles = unittest.enterModuleContext(warm.Oracles(os.environ))


def flip_last_bit(path):
    """Of the file's last byte, which belongs to a tensor."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def split(tensor, ranks):
    """Uneven boxes along the first dim: rank 0 has one row, the last all that remains."""
    rows = [min(r, tensor.shape[0]) for r in range(ranks)] + [tensor.shape[0]]
    return [(rows[r], tensor[rows[r] : rows[r + 1]]) for r in range(ranks)]


def write_dcp(directory, tensors, ranks=3):
    directory.mkdir(parents=True)
    for rank in range(ranks):
        shards, offsets = {}, {}
        for name, tensor in tensors.items():
            start, part = split(tensor, ranks)[rank]
            if part.numel():
                shards[name] = part.contiguous()
                offsets[name] = {"saved_offsets": [start] + [0] * (tensor.dim() - 1)}
        metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
        path = directory / f"rank_{rank:05d}.safetensors"
        safetensors.torch.save_file(shards, path, metadata)


class CheckDcp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.step = pathlib.Path(folder.name) / "global_step_1"
        self.expected = FIXTURES / "llama" / "hf" / "model.safetensors"
        self.tensors = safetensors.torch.load_file(self.expected)

    def check(self):
        return oracles.run("check_dcp.py", self.step, self.expected)

    def test_accepts_uneven_shards(self):
        write_dcp(self.step / "actor" / "model", self.tensors)
        result = self.check()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"{len(self.tensors)} tensors equal\n")

    def test_names_the_tensor_with_a_flipped_bit(self):
        write_dcp(self.step / "actor" / "model", self.tensors)
        flip_last_bit(self.step / "actor" / "model" / "rank_00002.safetensors")
        result = self.check()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("1 of", result.stderr)

    def test_finds_a_missing_shard(self):
        write_dcp(self.step / "actor" / "model", self.tensors)
        (self.step / "actor" / "model" / "rank_00001.safetensors").unlink()
        self.assertNotEqual(self.check().returncode, 0)

    def test_finds_an_extra_and_a_missing_tensor(self):
        del self.tensors["lm_head.weight"]
        self.tensors["foreign.weight"] = torch.ones(2, 2)
        write_dcp(self.step / "actor" / "model", self.tensors)
        result = self.check()
        self.assertIn("lm_head.weight: missing", result.stderr)
        self.assertIn("foreign.weight: not expected", result.stderr)


class CheckHfExport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "hf"

    def check(self, model):
        return oracles.run("check_hf_export.py", FIXTURES / model / "hf", self.out)

    def test_accepts_the_same_weights_in_one_file_instead_of_several(self):
        source = FIXTURES / "qwen3" / "hf"
        self.out.mkdir()
        shutil.copy(source / "config.json", self.out)
        tensors = {}
        for path in source.glob("*.safetensors"):
            tensors |= safetensors.torch.load_file(path)
        safetensors.torch.save_file(tensors, self.out / "model.safetensors", {"format": "pt"})
        result = self.check("qwen3")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_accepts_the_older_spelling_of_the_config(self):
        shutil.copytree(FIXTURES / "llama_rope_scaled_v4" / "hf", self.out)
        result = self.check("llama_rope_scaled")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_finds_a_flipped_bit(self):
        shutil.copytree(FIXTURES / "llama" / "hf", self.out)
        flip_last_bit(self.out / "model.safetensors")
        result = self.check("llama")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("1 of", result.stderr)

    def test_finds_a_tied_weight_written_twice(self):
        shutil.copytree(FIXTURES / "llama_tied" / "hf", self.out)
        tensors = safetensors.torch.load_file(self.out / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        safetensors.torch.save_file(tensors, self.out / "model.safetensors", {"format": "pt"})
        result = self.check("llama_tied")
        self.assertIn("lm_head.weight: only in", result.stderr)

    def test_finds_a_changed_config(self):
        shutil.copytree(FIXTURES / "llama" / "hf", self.out)
        path = self.out / "config.json"
        path.write_text(path.read_text().replace("1e-05", "1e-06"))
        self.assertIn("rms_norm_eps", self.check("llama").stderr)


class LrReference(unittest.TestCase):
    """The kept learning rates are those of the transformers that is installed; Megatron's stand beside them."""

    def test_is_what_transformers_says(self):
        checked = 0
        for case in json.loads((HERE / "lr_reference.json").read_text()):
            shape = [case[key] for key in ("style", "min_lr", "warmup", "decay", "wsd_decay", "updates")]
            self.assertIn(tuple(shape), make_lr_reference.SHAPES)
            if case["source"] == "transformers":
                self.assertEqual(case["rates"], make_lr_reference.of_transformers(*shape), shape)
                checked += 1
        self.assertEqual(checked, sum(make_lr_reference.of_transformers(*shape) is not None for shape in make_lr_reference.SHAPES))


if __name__ == "__main__":
    unittest.main()
