"""A model whose weights are quantized as published ones are, and what they are worth.

    make_quantized.py KIND OUT EXPECTED

KIND is mxfp4 (gpt-oss's experts, in two files), fp8 (DeepSeek-V3's blocks, with scales of activations beside them), fp8_rows (a scale a
row, as compressed-tensors has them), fp8_blocks (blocks of these, in one file that an index names), or fp8_one (one a matrix). OUT gets the folder, EXPECTED a safetensors file of all its tensors in
bfloat16: MXFP4's by transformers' own convert_moe_packed_tensors, others as torch multiplies in float32.
"""

import json
import pathlib
import sys

import safetensors.torch
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

BLOCK = [16, 24]  # divides no matrix of the model
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             vocab_size=263, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)  # fmt: skip


def build(kind):
    torch.manual_seed(3)
    if kind == "mxfp4":
        config = GptOssConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
        return GptOssForCausalLM(config)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=False))


def experts_of(weights, expected):
    """Their values and scales at random: every pattern of bits is a number."""
    made = {}
    for name, weight in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            made[name] = expected[name] = weight
            continue
        experts, columns, rows = weight.shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(110, 124, (experts, rows, columns // 32), dtype=torch.uint8)
        scales[0, 0, 0] = 1  # the least that is no denormal
        made[name + "_blocks"], made[name + "_scales"] = blocks, scales
        expected[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).contiguous()
        assert expected[name].shape == weight.shape
    return made


def matrices_of(weights, expected, kind):
    made = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            made[name] = expected[name] = weight
            continue
        rows, columns = weight.shape
        eighths = torch.randint(0, 256, weight.shape, dtype=torch.uint8)
        eighths[(eighths & 0x7F) == 0x7F] = 0x3A  # which are no numbers
        quantized = eighths.view(torch.float8_e4m3fn)
        in_blocks = (-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
        grid = {"fp8": in_blocks, "fp8_blocks": in_blocks, "fp8_rows": (rows, 1), "fp8_one": ()}[kind]
        scales = torch.rand(grid) * 0.01 + 1e-4
        if kind == "fp8_rows":
            scales = scales.bfloat16()
        whole = scales.float()
        if grid == in_blocks:
            whole = whole.repeat_interleave(BLOCK[0], 0)[:rows].repeat_interleave(BLOCK[1], 1)[:, :columns]
        made[name] = quantized
        made[name + ("_scale" if kind in ("fp8_rows", "fp8_blocks") else "_scale_inv")] = scales
        if kind == "fp8":
            made[name.replace(".weight", ".input_scale")] = torch.ones(())
        expected[name] = (quantized.float() * whole).bfloat16()
    return made


def main():
    kind, out, expected_file = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    model = build(kind).bfloat16()
    model.save_pretrained(out)
    weights = safetensors.torch.load_file(out / "model.safetensors")
    expected = {}
    made = experts_of(weights, expected) if kind == "mxfp4" else matrices_of(weights, expected, kind)
    settings = {
        "fp8_blocks": {"quant_method": "compressed-tensors", "format": "float-quantized",
                       "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "block", "block_structure": BLOCK}}}},
        "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static", "weight_block_size": BLOCK},
        "fp8_rows": {"quant_method": "compressed-tensors", "format": "float-quantized"},
        "fp8_one": {"quant_method": "fp8", "weight_block_size": None},
    }[kind]
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    (out / "LICENSE").write_text("as it is\n")
    if kind == "mxfp4":  # values and scales of one tensor in two files
        (out / "model.safetensors").unlink()
        names = {name: f"model-{1 + ('_scales' in name)}.safetensors" for name in made}
        for file in sorted(set(names.values())):
            safetensors.torch.save_file({n: t for n, t in made.items() if names[n] == file}, out / file, {"format": "pt"})
        (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    else:
        name = "model-00001-of-00001.safetensors" if kind == "fp8_blocks" else "model.safetensors"
        (out / "model.safetensors").unlink()
        safetensors.torch.save_file(made, out / name, {"format": "pt"})
        if kind == "fp8_blocks":
            (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(made, name)}))
    safetensors.torch.save_file(expected, expected_file)


if __name__ == "__main__":
    main()
