"""`keel ckpt dequantize-hf`: bit for bit what transformers and torch make of quantized weights, and a folder that every command takes."""

import json
import pathlib
import sys
import unittest

import harness
import safetensors.torch
import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "oracles"))
import warm  # noqa: E402: of tests/oracles

KINDS = {"mxfp4": "mxfp4", "fp8": "fp8", "fp8_rows": "compressed-tensors", "fp8_blocks": "compressed-tensors", "fp8_one": "fp8"}


def setUpModule():
    global oracles
    oracles = unittest.enterModuleContext(warm.Oracles(harness.environment()))


class Dequantize(harness.Job):
    def quantized(self, kind):
        """The folder, and a file of what its tensors are worth."""
        folder, expected = self.folder / kind, self.folder / f"{kind}.safetensors"
        made = oracles.run("make_quantized.py", kind, folder, expected)
        self.assertEqual(made.returncode, 0, made.stderr)
        return folder, expected

    def dequantize(self, *arguments):
        return harness.keel("ckpt", "dequantize-hf", *arguments)

    def refuses(self, folder, *words):
        out = self.folder / "refused"
        done = self.dequantize(folder, "--out", out)
        self.assertEqual(done.returncode, 65, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir() if "refused" in path.name], [], "left behind")

    def tensors(self, folder):
        found = {}
        for file in folder.glob("*.safetensors"):
            found.update(safetensors.torch.load_file(file))
        return found

    def test_every_value_is_that_of_transformers_and_torch(self):
        for kind, method in KINDS.items():
            with self.subTest(kind=kind):
                folder, expected = self.quantized(kind)
                out = self.folder / f"{kind}_out"
                done = self.dequantize(folder, "--out", out)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f" of them of {method} and now bfloat16", done.stdout)
                self.assertEqual("14 scales of activations are left out" in done.stdout, kind == "fp8")
                found, wanted = self.tensors(out), safetensors.torch.load_file(expected)
                self.assertEqual(found.keys(), wanted.keys())
                for name, tensor in wanted.items():
                    self.assertEqual(found[name].dtype, tensor.dtype, name)
                    self.assertTrue(torch.equal(found[name].view(torch.int16), tensor.view(torch.int16)), name)
                config = json.loads((out / "config.json").read_text())
                self.assertNotIn("quantization_config", config)
                self.assertEqual(config.get("dtype", config.get("torch_dtype")), "bfloat16")
                self.assertEqual((out / "LICENSE").read_text(), "as it is\n")
                # The rest is as for any folder.
                rows = self.folder / "rows.jsonl"
                rows.write_text('{"input_ids": [1, 2, 3, 4]}\n')
                scored = harness.keel("score", "--model", out, "--input", rows, "--output", "-")
                self.assertEqual(scored.returncode, 0, scored.stderr)
                told = harness.keel("score", "--model", folder, "--input", rows, "--output", "-")
                self.assertIn("keel ckpt dequantize-hf DIR --out OUT makes them so", told.stderr)

    def test_in_float32_the_product_is_not_rounded(self):
        folder, expected = self.quantized("fp8_one")
        out = self.folder / "out"
        self.assertEqual(self.dequantize(folder, "--dtype", "float32", "--out", out).returncode, 0)
        made, given = self.tensors(out), self.tensors(folder)
        quantized = [name for name in made if name + "_scale_inv" in given]
        self.assertEqual(len(quantized), 14)
        for name in quantized:
            self.assertEqual(made[name].dtype, torch.float32)
            self.assertTrue(torch.equal(made[name], given[name].float() * given[name + "_scale_inv"]), name)
        # What is there is not written over.
        again = self.dequantize(folder, "--out", out)
        self.assertEqual(again.returncode, 73, again.stderr)

    def test_of_a_model_of_texts_and_images_the_text_is_there(self):
        """Whose quantization_config may stand with the text's keys, before or behind others, and the outer one be null."""
        folder, expected = self.quantized("fp8_one")
        config = json.loads((folder / "config.json").read_text())
        quantization = config.pop("quantization_config")
        tensors = {"model.language_model." + name.removeprefix("model.") if name.startswith("model.") else name: tensor
                   for name, tensor in self.tensors(folder).items()}  # fmt: skip
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        wanted = safetensors.torch.load_file(expected)
        for number, settings in enumerate((
            {"quantization_config": None, "text_config": {**config, "model_type": "qwen3", "quantization_config": quantization}},
            {"quantization_config": quantization, "text_config": {**config, "model_type": "qwen3"}},
            {"text_config": {"quantization_config": None, **config, "model_type": "qwen3"}, "quantization_config": quantization},
        )):  # fmt: skip
            (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "vision_config": {}, **settings}))
            out = self.folder / f"out_{number}"
            done = self.dequantize(folder, "--out", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("14 of them of fp8", done.stdout)
            self.assertNotIn("quantization_config", (out / "config.json").read_text().replace('"quantization_config": null', ""))
            found = self.tensors(out)
            self.assertEqual(len(found), len(wanted))
            name = "model.layers.1.mlp.up_proj.weight"
            self.assertTrue(torch.equal(found[name.replace("model.", "model.language_model.", 1)], wanted[name]))

    def test_what_is_wrong_is_named_and_nothing_is_left(self):
        folder, _ = self.quantized("fp8")
        whole = self.tensors(folder)
        name = "model.layers.1.mlp.up_proj.weight"

        def changed(**changes):
            tensors = {key: value for key, value in {**whole, **changes}.items() if value is not None}
            safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})

        changed(**{name + "_scale_inv": None})
        self.refuses(folder, f"{name}: there is no {name}_scale_inv or {name}_scale")
        changed(**{name + "_scale_inv": torch.ones(3, 3)})
        self.refuses(folder, f"{name}_scale_inv: scales [3, 3] do not fit the weight [96, 64] in blocks of 16 x 24")
        bits = whole[name].view(torch.uint8).clone()
        bits[5, 7] = 0x7F
        changed(**{name: bits.view(torch.float8_e4m3fn)})
        self.refuses(folder, f"{name}: has a value that is not finite as BF16")
        changed(**{"model.norm.weight": None})
        self.refuses(folder, "missing tensors (1): model.norm.weight")
        changed(**{name: torch.zeros(96, 64, dtype=torch.float8_e5m2)})
        self.refuses(folder, f"{name}: F8_E5M2[96, 64]: expected a matrix of F8_E4M3")
        changed()
        config = json.loads((folder / "config.json").read_text())
        for settings, words in {
            '{"quant_method": "gptq", "bits": 4}': 'quantization_config.quant_method: expected fp8, mxfp4 and compressed-tensors of format float-quantized, found "gptq"',
            '{"quant_method": "compressed-tensors", "format": "pack-quantized"}': 'quantization_config.format: expected float-quantized, found "pack-quantized"',
            '{"quant_method": "fp8", "weight_block_size": [0, 8]}': "quantization_config.weight_block_size: expected a list of rows and columns, or null",
            '{"quant_method": "mxfp4"}': "is F8_E4M3, and quantization_config says mxfp4",
            "null": "has no quantization_config: its weights can be used as they are",
        }.items():  # fmt: skip
            (folder / "config.json").write_text(json.dumps({**config, "quantization_config": json.loads(settings)}))
            self.refuses(folder, words)
        (folder / "config.json").write_text(json.dumps(config))
        with open(folder / "model.safetensors", "r+b") as file:
            file.truncate((folder / "model.safetensors").stat().st_size - 9)
        self.refuses(folder, "a file that was cut short is to be copied or downloaded again")


if __name__ == "__main__":
    unittest.main()
