"""transformers sees the same model in two Hugging Face directories.

    check_hf_export.py HF_IN HF_OUT

HF_OUT loads without missing, unexpected or mismatched keys; its files hold no tensor that transformers
would not have written for this model (a tied lm_head, for one); configs agree in what shapes a
forward; state dicts are equal bit for bit; logits on random tokens are equal.
"""

import argparse
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors
import torch
from transformers import AutoModelForCausalLM

from check_dcp import differences

CONFIG_KEYS = [
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "hidden_act", "hidden_activation", "sliding_window", "layer_types", "no_rope_layers", "use_sliding_window",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "attention_out_bias", "attention_dropout", "residual_dropout", "embedding_multiplier", "attention_multiplier",
    "residual_multiplier", "logits_scaling",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "output_router_logits",
    "num_experts", "shared_expert_intermediate_size", "qkv_bias",
    "router_aux_loss_coef", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
]  # fmt: skip


def load(directory, dtype="auto"):
    model, info = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    problems = [f"{directory}: {what}: {sorted(keys)}" for what, keys in info.items() if keys]
    return model.eval(), problems


def stored_names(directory):
    """Names in the files; with an index, checks it against the files."""
    files = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as content:
            for name in content.keys():
                if name in files:
                    raise SystemExit(f"{name} is both in {files[name]} and {path.name}")
                files[name] = path.name
    index = directory / "model.safetensors.index.json"
    if index.exists():
        if json.loads(index.read_text())["weight_map"] != files:
            raise SystemExit(f"{index} does not describe the files beside it")
    elif set(files.values()) != {"model.safetensors"}:
        raise SystemExit(f"{directory}: without an index there must be model.safetensors alone")
    return set(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hf_in", type=pathlib.Path)
    parser.add_argument("hf_out", type=pathlib.Path)
    args = parser.parse_args()
    before, problems = load(args.hf_in)
    after, more = load(args.hf_out)
    problems += more

    for key in CONFIG_KEYS:
        want, have = getattr(before.config, key, None), getattr(after.config, key, None)
        if want != have:
            problems.append(f"config.json: {key} was {want}, is {have}")
    names_in, names_out = stored_names(args.hf_in), stored_names(args.hf_out)
    for name in sorted(names_in ^ names_out):
        problems.append(f"{name}: only in {args.hf_in if name in names_in else args.hf_out}")
    problems += differences(before.state_dict(), after.state_dict())
    if not problems:
        tokens = torch.randint(before.config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            if not torch.equal(before(tokens).logits, after(tokens).logits):
                problems.append("logits differ although all tensors are equal")
    if problems:
        print("\n".join(problems), file=sys.stderr)
        raise SystemExit(1)
    print(f"{len(names_out)} tensors, config and logits equal")


if __name__ == "__main__":
    main()
