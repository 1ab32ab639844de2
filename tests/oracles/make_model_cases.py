"""Random small models of every family, as folders that people bring, with what transformers says of them.

    make_model_cases.py FOLDER FIRST COUNT [FAMILY]

writes FOLDER/<seed>/ for COUNT seeds from FIRST on: `hf`, a Hugging Face folder; rows.jsonl and prompts.jsonl with token
ids; case.json with what transformers makes of them in float32, or with why it refuses the folder. A seed's family is the
seed modulo the number of them, or FAMILY.

What is drawn: every size, with heads, key/value heads, widths and vocabularies that divide over nothing; windows, kinds of
layers, every way to stretch positions with numbers of its own, in the spellings of transformers 4 and 5 and in mixed
ones; biases, softcaps, multipliers, experts; keys that are left out. Texts are as long as the window, the
context and the original context, and longer by one. Folders have several files with an index, tied weights twice, weights of
several dtypes, frequencies of older files, and ids that end a text in either of two files.
"""

import copy
import json
import math
import os
import pathlib
import random
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import safetensors.torch
import torch
import transformers

import models

NEW_TOKENS = 10
FACTORED = ["linear", "dynamic", "yarn", "longrope", "llama3"]


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, part):
        return self.random.random() < part

    def pick(self, *choices):
        return self.random.choice(choices)

    def count(self, least, most):
        return self.random.randint(least, most)

    def number(self, least, most):
        """Between the two, even by its logarithm, of four digits."""
        return float(f"{math.exp(self.random.uniform(math.log(least), math.log(most))):.4g}")


def draw_rope(draw, sizes, kinds, dims, one=True):
    """The keys of one rotation, of all layers or of some, without the theta."""
    kind = draw.pick("default", *kinds)
    rope = {"rope_type": kind}
    positions = sizes["max_position_embeddings"]
    if kind in ["linear", "dynamic", "llama3"] or kind == "yarn":
        rope["factor"] = draw.pick(draw.number(1.0, 40.0), float(draw.count(1, 16)), draw.count(1, 8))
    if kind in ["yarn", "longrope", "llama3"]:
        rope["original_max_position_embeddings"] = draw.count(4, max(5, positions))
    if kind == "llama3":
        rope["low_freq_factor"] = draw.number(0.5, 2.0)
        rope["high_freq_factor"] = rope["low_freq_factor"] * draw.number(1.5, 8.0)
    if kind == "yarn":
        if draw.chance(0.3):
            rope["beta_fast"], rope["beta_slow"] = draw.pick(32, 16.5, 4.0), draw.pick(1, 0.5, 2.0)
        if draw.chance(0.3):
            rope["mscale"], rope["mscale_all_dim"] = draw.pick(1.0, 0.707, 0), draw.pick(1.0, 0.5, 0)
        if draw.chance(0.3):
            rope["attention_factor"] = draw.number(0.5, 2.0)
        if one and draw.chance(0.3):  # transformers looks for it outside the map of a kind of layers
            rope["truncate"] = draw.chance(0.5)
    if kind == "longrope":
        steps = lambda most: [draw.number(1.0, most) for _ in range(dims // 2)]
        rope["short_factor"], rope["long_factor"] = steps(2.0), steps(10.0)
        if draw.chance(0.3):
            rope["factor"] = draw.number(1.0, 32.0)
        if draw.chance(0.3):
            rope["attention_factor"] = draw.number(0.5, 2.0)
    return rope


def draw_sizes(draw, family):
    latent = family in LATENT
    groups, kv = 1 if latent else draw.pick(1, 2, 3, 4, 5, 7), draw.pick(1, 1, 2, 2, 3, 4)
    if latent:
        kv = draw.count(2, 6)
    if groups * kv > 15 or groups * kv == 1:
        groups = 2
    heads, head = groups * kv, (8 if family in DELTA else 4 if family.startswith("glm") else 2) * draw.count(2, 5 if family in DELTA else 14)
    sizes = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_size": heads * head,
        "intermediate_size": draw.count(8, 120),
        "num_hidden_layers": draw.count(1, 5),
        "vocab_size": draw.count(60, 420),
        "max_position_embeddings": draw.count(12, 130),
        "rms_norm_eps": draw.pick(1e-6, 1e-5, 1e-3, 0.05),
    }
    if latent:
        head = 2 * draw.count(1, 7)
        plain, values = 2 * draw.count(1, 8), draw.count(1, 24)  # transformers turns deepseek_v2's pairs where they lie
        sizes |= {"hidden_size": heads * draw.count(2, 14), "q_lora_rank": draw.pick(None, draw.count(1, 40)),
                  "kv_lora_rank": 2 * draw.count(1, 20), "qk_nope_head_dim": plain, "qk_rope_head_dim": head, "v_head_dim": values}  # fmt: skip
        if draw.chance(0.2):
            sizes["head_dim"] = head
        return sizes, head
    if family in EPS:
        sizes[EPS[family]] = sizes.pop("rms_norm_eps")
    if family in LEARNED:
        del sizes["num_key_value_heads"]
        return sizes, head
    if family in QUARTERS:
        sizes["hidden_size"] = heads * (head := 4 * draw.count(2, 7))
    if family == "gpt_neox":
        sizes["num_key_value_heads"] = heads
    if family == "gptj":
        del sizes["num_key_value_heads"]
        return sizes, head
    if family == "helium":
        sizes["head_dim"] = head
    if family in WHOLE_HEADS + ["helium"]:
        return sizes, head
    if draw.chance(0.6) and family not in ("phi3", "olmoe"):
        # Several classes of transformers want a hidden size that divides over the heads.
        sizes["hidden_size"] = heads * draw.count(max(2, 16 // heads), max(3, 90 // heads))
        sizes["head_dim"] = head
    elif draw.chance(0.5):
        sizes["head_dim"] = head
    if "head_dim" not in sizes and family in ["qwen3", "gemma", "gemma2", "gemma3_text", "seed_oss", "glm", "glm4", "ernie4_5", "ministral", "cwm", "internlm3", "minimax_m2", "gpt_oss", "ministral3", "vaultgemma", "solar_open", "helium", *DELTA]:
        sizes["head_dim"] = head
    return sizes, head


def kinds_of_layers(draw, layers):
    return [draw.pick("full_attention", "sliding_attention") for _ in range(layers)]


def draw_own(draw, family, sizes, config):
    """The keys that are the family's own."""
    layers = sizes["num_hidden_layers"]
    window = draw.count(1, 40)
    if family in ["llama", "olmo2", "arcee", "granite", "qwen3", "smollm3", "gemma2", "gemma3_text", "olmo3", "qwen3_moe", "gemma", "olmoe", "glm", "glm4", "granitemoehybrid", "hunyuan_v1_dense", "glm4_moe", "dots1", "gpt_oss", *LATENT, *DELTA]:
        config["attention_bias"] = draw.chance(0.4)
    if family in ["llama", "arcee", "granite", "smollm3", "seed_oss"] and draw.chance(0.3):
        config["mlp_bias"] = True
    if family in ["llama", "olmo2", "arcee", "granite", "seed_oss"] and draw.chance(0.2):
        config["layer_types"] = ["full_attention"] * layers
    if family in ["ernie4_5", "starcoder2"]:
        config["use_bias"] = draw.chance(0.4)
    if family in ["cohere", "cohere2", "nemotron", "gpt_neox", "helium", "jais2", "vaultgemma", "solar_open"]:
        config["attention_bias"] = draw.chance(0.4)
    if family in ["nemotron", "helium", "jais2"]:
        config["mlp_bias"] = draw.chance(0.4)
    if family in ["cohere", "cohere2"]:
        config["logit_scale"] = draw.pick(0.0625, draw.number(0.1, 3))
    if family == "cohere2":
        config["sliding_window"] = window
        if draw.chance(0.5):
            config["layer_types"] = kinds_of_layers(draw, layers)
        elif draw.chance(0.5):
            config["sliding_window_pattern"] = draw.count(1, 5)
    if family == "gptj":
        config["rotary_dim"] = 2 * draw.count(1, sizes["hidden_size"] // sizes["num_attention_heads"] // 2)
    if family == "gpt2":
        config["scale_attn_weights"], config["scale_attn_by_inverse_layer_idx"] = draw.chance(0.7), draw.chance(0.4)
    if family == "gpt_bigcode":
        config["scale_attn_weights"], config["multi_query"] = draw.chance(0.7), draw.chance(0.6)
    if family == "gpt_neo":
        config["window_size"] = window
        kinds = [draw.pick("global", "local") for _ in range(layers)]
        config["attention_types"] = [[kinds, 1]] if draw.chance(0.5) else [[[kind], 1] for kind in kinds]
        if draw.chance(0.5):
            config["attention_layers"] = kinds
    if family == "opt":
        config["enable_bias"] = draw.chance(0.6)
        config["word_embed_proj_dim"] = sizes["hidden_size"]
        del config["layer_norm_eps"]  # which it has not
    if family in ["stablelm", "gpt_neox"]:
        config["use_parallel_residual"] = draw.chance(0.5)
    if family == "stablelm":
        config["use_qkv_bias"] = draw.chance(0.5)
    if family == "internlm3":
        config["qkv_bias"] = config["bias"] = draw.chance(0.4)
    if family in ["ministral", "cwm"]:
        config["sliding_window"] = window
        if draw.chance(0.6):
            config["layer_types"] = kinds_of_layers(draw, layers)
        if family == "cwm":
            config["mlp_bias"] = draw.chance(0.4)
    if family in ["qwen2", "qwen3", "smollm3", "qwen2_moe", "qwen3_moe"]:
        config["use_sliding_window"] = draw.chance(0.6)
        config["sliding_window"] = window
        config["max_window_layers"] = draw.count(0, layers)
        if family != "qwen3_moe" and draw.chance(0.3):
            config["layer_types"] = kinds_of_layers(draw, layers) if config["use_sliding_window"] else ["full_attention"] * layers
        if not config["use_sliding_window"] and draw.chance(0.3):
            config["sliding_window"] = None
    if family in ["mistral", "mixtral", "phi3", "starcoder2", "ministral3"]:
        config["sliding_window"] = draw.pick(None, window)
    if family in ["gemma2", "gemma3_text", "olmo3", "vaultgemma"]:
        config["sliding_window"] = window
        if draw.chance(0.4):
            config["layer_types"] = kinds_of_layers(draw, layers)
    if family in ["gemma2", "gemma3_text", "vaultgemma"]:
        config["query_pre_attn_scalar"] = draw.pick(256, draw.count(4, 200))
        config["final_logit_softcapping"] = draw.pick(None, 30.0, draw.number(2, 60))
        config["attn_logit_softcapping"] = None if family == "gemma3_text" else draw.pick(None, 50.0, draw.number(1, 60))
    if family == "gemma3_text" and "layer_types" not in config:
        config["sliding_window_pattern"] = draw.count(1, 6)
    if family == "smollm3":
        if draw.chance(0.5):
            config["no_rope_layers"] = [draw.count(0, 1) for _ in range(layers)]
        else:
            config["no_rope_layer_interval"] = draw.count(1, 5)
    if family == "granitemoehybrid":
        config["layer_types"] = [draw.pick("attention", "full_attention")] * layers
        config["num_local_experts"] = config["num_experts_per_tok"] = 0
        config["shared_intermediate_size"], config["mamba_n_heads"] = draw.count(8, 120), 2
        config["position_embedding_type"] = draw.pick("rope", "rope", "rope", "nope", None)
    if family in ["granite", "granitemoehybrid"]:
        for key, least, most in [("embedding_multiplier", 0.5, 12), ("attention_multiplier", 0.01, 1),
                                 ("residual_multiplier", 0.2, 2), ("logits_scaling", 0.5, 8)]:
            config[key] = draw.pick(1.0, draw.number(least, most), draw.number(least, most))
    if family == "seed_oss":
        config["attention_bias"], config["attention_out_bias"] = draw.chance(0.5), draw.chance(0.5)
    if family == "exaone4":
        config["sliding_window"] = draw.pick(None, window, window)
        if config["sliding_window"] is None or draw.chance(0.3):
            config["layer_types"] = ["full_attention"] * layers if config["sliding_window"] is None else kinds_of_layers(draw, layers)
        config["sliding_window_pattern"] = draw.count(1, 5) if config["sliding_window"] else draw.pick(None, 4)
    if family in ["qwen2_moe", "qwen3_moe"]:
        experts = draw.count(2, 9)
        config["num_experts"], config["num_experts_per_tok"] = experts, draw.count(1, experts)
        config["moe_intermediate_size"] = draw.count(4, 40)
        config["norm_topk_prob"] = draw.chance(0.5)
        config["decoder_sparse_step"] = draw.pick(1, 1, 2, 3)
        config["mlp_only_layers"] = [i for i in range(layers + 1) if draw.chance(0.2)]
    if family == "qwen2_moe":
        config["shared_expert_intermediate_size"] = draw.count(4, 60)
        config["qkv_bias"] = draw.chance(0.5)
    if family == "olmoe":
        experts = draw.count(2, 9)
        config["num_experts"], config["num_experts_per_tok"] = experts, draw.count(1, experts)
        config["norm_topk_prob"] = draw.chance(0.5)
    if family in ["deepseek_v3", "glm4_moe_lite", "youtu"]:
        config["rope_interleave"] = draw.chance(0.6)
    if family in ["glm4_moe", "dots1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "solar_open"]:
        groups, each = draw.pick(1, 1, 2, 3), draw.count(2, 4)
        best = draw.count(1, groups)
        config["n_routed_experts"], config["n_group"], config["topk_group"] = groups * each, groups, best
        config["num_experts_per_tok"] = draw.count(1, best * each)
        config["moe_intermediate_size"], config["n_shared_experts"] = draw.count(4, 40), draw.count(1, 3)
        config["norm_topk_prob"] = draw.chance(0.5)
        config["routed_scaling_factor"] = draw.pick(1.0, draw.number(0.3, 3))
        config["first_k_dense_replace"] = draw.count(0, 2)
    if family == "deepseek_v2":
        config["norm_topk_prob"], config["topk_method"] = False, draw.pick("greedy", "group_limited_greedy")
    if family == "glm4_moe_lite":
        config["mlp_layer_types"] = [draw.pick("dense", "sparse") for _ in range(layers)]
        del config["first_k_dense_replace"]
    if family == "solar_open":
        del config["first_k_dense_replace"]
    if family == "glm4_moe":
        config["use_qk_norm"] = draw.chance(0.5)
    if family == "dots1":
        config["sliding_window"], config["max_window_layers"] = draw.pick(None, window, window), draw.count(0, layers)
        if config["sliding_window"] and draw.chance(0.3):
            config["layer_types"] = kinds_of_layers(draw, layers)
    if family in DELTA:
        keys = draw.count(4, 7)  # no rank of a layout goes without one
        config["linear_num_key_heads"], config["linear_num_value_heads"] = keys, keys * draw.count(1, 3)
        config["linear_key_head_dim"], config["linear_value_head_dim"] = draw.count(2, 40), draw.count(2, 70)
        config["linear_conv_kernel_dim"] = draw.count(1, 5)
        kinds = [draw.pick("linear_attention", "linear_attention", "full_attention") for _ in range(layers)]
        kinds[draw.count(0, layers - 1)] = "full_attention"
        config["layer_types"] = kinds
        if layers > 3 and draw.chance(0.3):
            del config["layer_types"]
            config["full_attention_interval"] = draw.count(2, 4)
    if family in ["qwen3_next", "qwen3_5_moe_text"]:
        experts = draw.count(2, 9)
        config["num_experts"], config["num_experts_per_tok"] = experts, draw.count(1, experts)
        config["moe_intermediate_size"], config["shared_expert_intermediate_size"] = draw.count(4, 40), draw.count(4, 60)
    if family == "qwen3_next":
        config["norm_topk_prob"], config["decoder_sparse_step"] = draw.chance(0.5), draw.pick(1, 1, 2)
        config["mlp_only_layers"] = [i for i in range(layers + 1) if draw.chance(0.2)]
    if family == "minimax_m2" and draw.chance(0.5):
        config["rotary_dim"] = 2 * draw.count(1, sizes["head_dim"] // 2)
    if family == "gpt_oss":
        config["sliding_window"] = window
        config["swiglu_alpha"], config["swiglu_limit"] = draw.number(0.5, 2), draw.pick(draw.number(0.1, 1), 7.0)
        if draw.chance(0.5):
            config["layer_types"] = kinds_of_layers(draw, layers)
    if family in ["mixtral", "minimax_m2", "gpt_oss"]:
        experts = draw.count(2, 9)
        config["num_local_experts"], config["num_experts_per_tok"] = experts, draw.count(1, experts)
    if family in ["qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "minimax_m2", "gpt_oss", "qwen3_next", "qwen3_5_moe_text"] and draw.chance(0.5):
        config["output_router_logits"], config["router_aux_loss_coef"] = True, draw.number(0.001, 1)
    return config


def spell_rope(draw, family, config, rope, local):
    """`rope` (of layers with a window `local`, where the family has two) as transformers 4 or 5 write it, or mixed."""
    theta = draw.number(50, 2e6)
    # Of cwm, no map is not the plain rotation.
    how = draw.pick("v5", "mixed") if family in ["cwm", "gpt_oss", "ministral3", *DELTA] else draw.pick("v4", "v4", "v5", "v5", "mixed")
    partial = rope.pop("partial_rotary_factor", None)
    if family == "gpt_neox":
        # Its own names, for the stretched and the plain; or the map of version 5.
        if rope["rope_type"] == "default" or how != "v5":
            config["rotary_emb_base"] = theta
            if partial is not None:
                config["rotary_pct"] = partial
            if rope["rope_type"] != "default":
                config["rope_scaling"] = rope
            return
        how = "v5"
    if local is not None and how != "v4":
        maps = {"full_attention": {"rope_theta": theta, **rope}, "sliding_attention": {"rope_theta": draw.number(50, 2e6), **local}}
        if how == "mixed":
            key = draw.pick(*maps)
            outside = maps[key].pop("rope_theta")
            if draw.chance(0.7):
                config["rope_theta"] = outside
        config["rope_parameters"] = maps
        return
    if local is not None:
        if family == "gemma3_text":
            config["rope_local_base_freq"] = draw.number(50, 2e6)
        else:
            theta = 500000.0  # another is refused: layers with a window would not have it
    if how == "v5":
        config["rope_parameters"] = {"rope_theta": theta, **rope}
        if partial is not None:
            config["rope_parameters"]["partial_rotary_factor"] = partial
        return
    config["rope_theta"] = theta
    if partial is not None:
        config["partial_rotary_factor"] = partial
    if how == "mixed":
        config["rope_parameters"] = rope
        return
    if rope["rope_type"] == "default":
        if draw.chance(0.5):
            config["rope_scaling"] = None
        return
    kind = rope.pop("rope_type")
    # Where there are two rotations, transformers 5 leaves a type that is named in the old way at default; 4 did not.
    names = ["rope_type"] if local is not None else draw.pick(["type"], ["rope_type"], ["type", "rope_type"])
    config["rope_scaling"] = {**rope, **{name: kind for name in names}}


MODELS = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM", "phi3": "Phi3ForCausalLM", "granite": "GraniteForCausalLM",
    "seed_oss": "SeedOssForCausalLM", "arcee": "ArceeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM", "gemma": "GemmaForCausalLM", "olmoe": "OlmoeForCausalLM", "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM", "ministral": "MinistralForCausalLM", "cwm": "CwmForCausalLM",
    "internlm3": "InternLM3ForCausalLM", "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "dots1": "Dots1ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM", "youtu": "YoutuForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
    "stablelm": "StableLmForCausalLM", "nemotron": "NemotronForCausalLM", "gpt_neox": "GPTNeoXForCausalLM", "ministral3": "Ministral3ForCausalLM",
    "helium": "HeliumForCausalLM", "jais2": "Jais2ForCausalLM", "vaultgemma": "VaultGemmaForCausalLM",
    "solar_open": "SolarOpenForCausalLM", "gpt2": "GPT2LMHeadModel", "gpt_neo": "GPTNeoForCausalLM", "opt": "OPTForCausalLM", "gpt_bigcode": "GPTBigCodeForCausalLM",
    "phi": "PhiForCausalLM", "gptj": "GPTJForCausalLM",
}  # fmt: skip
EPS = {"jais2": "layer_norm_eps", "cohere": "layer_norm_eps", "cohere2": "layer_norm_eps", "stablelm": "layer_norm_eps", "gpt_neox": "layer_norm_eps",
       "starcoder2": "norm_epsilon", "nemotron": "norm_eps", "gpt2": "layer_norm_epsilon", "gpt_neo": "layer_norm_epsilon",
       "opt": "layer_norm_eps", "gpt_bigcode": "layer_norm_epsilon", "phi": "layer_norm_eps", "gptj": "layer_norm_epsilon"}  # fmt: skip
QUARTERS = ["stablelm", "nemotron", "gpt_neox", "phi", "gptj"]  # a part of each head turns
WHOLE_HEADS = ["cohere2", "stablelm", "gpt_neox", "jais2", "phi"]  # hidden_size / num_attention_heads, whatever a file says
LEARNED = ["gpt2", "gpt_neo", "opt", "gpt_bigcode"]  # positions
OF_OTHER_KEYS = [*LEARNED, "gptj"]
PLAIN = ["arcee", "starcoder2", "nemotron", "gpt_neox", "jais2", "phi", *OF_OTHER_KEYS]  # feed-forwards without a gate
# What families call keys that have another name elsewhere.
OWN_KEYS = {
    "gpt2": {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"},
    "gpt_neo": {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    "opt": {},
}
OWN_KEYS["gpt_bigcode"] = OWN_KEYS["gptj"] = OWN_KEYS["gpt2"]  # fmt: skip
WIDTHS = {"gpt2": "n_inner", "gptj": "n_inner", "gpt_bigcode": "n_inner", "gpt_neo": "intermediate_size", "opt": "ffn_dim"}
TIED = [*LEARNED, "vaultgemma", "smollm3", "ernie4_5", "gemma", "gemma2", "gemma3_text"]
LATENT = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"]
DELTA = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"]
TWO_ROPES = ["gemma3_text", "olmo3"]
# Where the file does not say them, transformers has values that a small model can have.
MAY_LACK = [
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "attention_bias",
    "use_sliding_window", "max_window_layers", "query_pre_attn_scalar", "final_logit_softcapping",
    "attn_logit_softcapping", "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling",
    "attention_out_bias", "sliding_window_pattern", "num_experts_per_tok", "norm_topk_prob", "decoder_sparse_step",
    "mlp_only_layers", "qkv_bias", "router_aux_loss_coef", "sliding_window", "num_experts", "num_local_experts",
    "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace", "use_qk_norm", "rope_interleave", "topk_method",
    "layer_norm_eps", "norm_epsilon", "norm_eps", "logit_scale", "use_bias", "use_parallel_residual", "use_qkv_bias", "mlp_bias",
    "layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "enable_bias", "word_embed_proj_dim", "window_size", "multi_query",
    "n_positions", "mlp_layer_types", "swiglu_alpha", "swiglu_limit", "linear_conv_kernel_dim",
]  # fmt: skip


def draw_config(draw, family):
    sizes, head = draw_sizes(draw, family)
    config = {"architectures": [MODELS[family]], "model_type": family, **sizes}
    config["tie_word_embeddings"] = draw.chance(0.7 if family in TIED else 0.3)
    act = "hidden_activation" if family in ("gemma2", "gemma3_text", "vaultgemma") else "activation_function" if family in OF_OTHER_KEYS else "hidden_act"
    if family in PLAIN:
        if draw.chance(0.7):
            config[act] = draw.pick("relu", "relu2", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast")
    elif family not in DELTA and draw.chance(0.7):
        config[act] = draw.pick("silu", "gelu_pytorch_tanh", "gelu_new", "swish")
    draw_own(draw, family, sizes, config)

    if family in OF_OTHER_KEYS:
        spell_own(draw, family, config)
    else:
        draw_rotations(draw, family, sizes, head, config)

    for key in MAY_LACK:
        if key in config and draw.chance(0.06) and not (family in LATENT and key == "num_experts_per_tok"):
            del config[key]
    config["pad_token_id"] = draw.pick(None, 0)  # that of many families is outside a small vocabulary
    if family == "youtu":
        config["pad_token_id"] = None  # whose row transformers makes 0 of a model that it has loaded
    for key, values in {"bos_token_id": [None, 1], "eos_token_id": [None, 2, [3, 4]], "use_cache": [True],
                        "initializer_range": [0.02], "attention_dropout": [0.0], "transformers_version": ["4.45.0", "5.3.0"],
                        "_name_or_path": ["somewhere/else"]}.items():  # fmt: skip
        if draw.chance(0.5):
            config[key] = draw.pick(*values)
    if draw.chance(0.8):
        config[draw.pick("torch_dtype", "dtype")] = draw.pick("float32", "bfloat16", "float16")
    return config


def spell_own(draw, family, config):
    """Keys by the family's own names, or by the usual ones."""
    for usual, own in OWN_KEYS[family].items():
        if draw.chance(0.8):
            config[own] = config.pop(usual)
    config[WIDTHS[family]] = config.pop("intermediate_size")
    if family != "opt" and draw.chance(0.4):
        config[WIDTHS[family]] = None


def draw_rotations(draw, family, sizes, head, config):
    kinds, dims, partial = FACTORED, head, None
    if family == "phi3":
        kinds = ["longrope", "longrope"]
        if draw.chance(0.7):
            dims = 2 * draw.count(1, head // 2)
            partial = dims / head
            dims = int(head * partial)  # which may be a rounding below
            dims -= dims % 2
    if family in DELTA:
        partial = draw.pick(0.25, 0.25, 0.5, 1.0)
        dims = int(head * partial)
    if family in QUARTERS:
        partial = draw.pick(0.25, 0.5, 1.0)
        dims = int(head * partial)
        dims -= dims % 2
        partial = dims / head
    if family == "minimax_m2":
        dims = config.get("rotary_dim", head)
    if family == "ministral3":
        kinds = ["yarn", "yarn", "linear", "llama3"]
    rope = draw_rope(draw, sizes, kinds, dims, family not in TWO_ROPES)
    if family == "ministral3":
        rope["llama_4_scaling_beta"] = draw.pick(0.0, 0.1, draw.number(0.01, 1))
        rope.setdefault("original_max_position_embeddings", draw.count(4, 40))
    if family == "hunyuan_v1_dense" and draw.chance(0.5):
        rope |= {"rope_type": "dynamic", "factor": 1.0, "alpha": draw.number(0.5, 1000)}
    if family == "phi3":
        original = rope.pop("original_max_position_embeddings", None)
        if original is not None:
            config["original_max_position_embeddings"] = original
        if partial is not None:
            rope["partial_rotary_factor"] = partial
    if family in QUARTERS:
        rope["partial_rotary_factor"] = partial
    if family in DELTA and (partial != 0.25 or draw.chance(0.5)):
        rope["partial_rotary_factor"] = partial
    local = draw_rope(draw, sizes, ["linear", "yarn", "llama3"], dims, False) if family in TWO_ROPES else None
    spell_rope(draw, family, config, rope, local)


def fill(model, draw):
    """Weights from which every part of the model can be told."""
    config = model.config
    generator = torch.Generator().manual_seed(draw.count(0, 1 << 30))
    gemma = "gemma" in config.model_type
    plus_one = gemma or config.model_type == "nemotron"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(models.NORMS):
                of_one = plus_one or config.model_type in DELTA and "linear_attn" not in name
                parameter.copy_((0.0 if of_one else 1.0) + 0.2 * noise)
            elif name.endswith("A_log"):
                parameter.copy_(noise - 2)
            elif name.endswith(".bias"):
                parameter.copy_(0.1 * noise)
            elif name.endswith(models.EMBEDDINGS):
                size = 0.3 if config.tie_word_embeddings else 0.7
                scale = math.sqrt(config.hidden_size) if gemma else getattr(config, "embedding_multiplier", 1.0)
                parameter.copy_(size / scale * noise)
            elif name.endswith(models.POSITIONS):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(0.9 / math.sqrt(parameter.shape[-1]) * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    return model


def dress(draw, folder):
    """Makes of a folder that save_pretrained wrote one of those that people have; returns what was done."""
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    parts = {file: safetensors.torch.load_file(folder / file) for file in files}
    done = []
    names = {name for part in parts.values() for name in part}
    embeddings = next(name for name in names if name.endswith(models.EMBEDDINGS))
    head = "embed_out.weight" if embeddings.endswith("embed_in.weight") else "lm_head.weight"
    last = parts[files[-1]]
    if draw.chance(0.3):
        done.append("frequencies of older files")
        last["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    if embeddings.startswith("gpt_neox.") and draw.chance(0.5):
        done.append("masks of published files")
        last["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
        last["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    if embeddings.startswith("transformer.") and draw.chance(0.5):
        done.append("masks of published files")
        attention = "attn.attention" if "transformer.h.0.attn.attention.q_proj.weight" in names else "attn"
        last[f"transformer.h.0.{attention}.bias"] = torch.ones(1, 1, 8, 8).tril()
        last[f"transformer.h.0.{attention}.masked_bias"] = torch.tensor(-1e4)
    if head not in names and draw.chance(0.4):
        done.append("tied weights twice")
        last[head] = next(part[embeddings] for part in parts.values() if embeddings in part).clone()
    narrow = draw.pick(None, None, torch.bfloat16, torch.float16, torch.float64, "several")
    if narrow is not None:
        done.append(f"dtype {narrow}")
        for part in parts.values():
            for name in part:
                to = draw.pick(torch.bfloat16, torch.float16, torch.float32) if narrow == "several" else narrow
                if head not in names and name in [head, embeddings]:
                    to = torch.bfloat16  # both copies of it
                part[name] = part[name].to(to)
    if embeddings.startswith("transformer.") and head not in names and draw.chance(0.3):
        done.append("a base model saved alone")
        parts = {file: {name.removeprefix("transformer."): tensor for name, tensor in part.items() if name != head} for file, part in parts.items()}
    for file, part in parts.items():
        safetensors.torch.save_file(part, folder / file, draw.pick({"format": "pt"}, {"format": "pt"}, None))
    if index.exists():
        done.append(f"{len(files)} files")
        total = sum(tensor.nbytes for part in parts.values() for tensor in part.values())
        index.write_text(json.dumps({"metadata": {"total_size": total},
                                     "weight_map": {name: file for file, part in parts.items() for name in part}}))
    return done


def texts(draw, config, marks, most):
    """Token ids; lengths are the marks, one more and one less, or anything up to `most`."""
    lengths = [2, min(most, draw.count(3, 70)), most - draw.pick(0, 1)]
    for mark in marks:
        lengths += [mark + draw.pick(-1, 0, 1)]
    lengths = [length for length in lengths if 2 <= length <= most]
    return [[draw.count(0, config["vocab_size"] - 1) for _ in range(length)] for length in lengths]


class Reference:
    """transformers' model of a folder. Its rotation may remember the longest text: each is asked anew."""

    def __init__(self, folder, dtype=torch.float32):
        self.model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
        )
        self.missing = sorted(info["missing_keys"])
        self.model.eval()
        # Embeddings of pad_token_id would have no gradient; texts here hold that id as any other.
        self.model.get_input_embeddings().padding_idx = None
        self.rotation = copy.deepcopy(getattr(self.model.base_model, "rotary_emb", None))

    def __call__(self, ids, counted=None):
        """Of `counted` tokens the experts' load."""
        if self.rotation is not None:
            self.model.base_model.rotary_emb = copy.deepcopy(self.rotation)
        mask = None if counted is None else torch.tensor([[1] * counted + [0] * (len(ids) - counted)])
        return self.model(torch.tensor([ids]), attention_mask=mask, use_cache=False)

    @torch.no_grad()
    def logits(self, ids):
        return self(ids).logits[0]

    def score(self, ids):
        return self.logits(ids)[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    def generate(self, ids, count, ends):
        """By the likeliest token of a forward of the whole text; no further than a tie."""
        made, log_probs, tie = [], [], False
        for _ in range(count):
            last = self.logits(ids + made)[-1].log_softmax(-1)
            best = last.topk(2)
            tie = (best.values[0] - best.values[1]).item() < 1e-3
            if tie:
                break
            made.append(best.indices[0].item())
            log_probs.append(best.values[0].item())
            if made[-1] in ends:
                break
        return {"input_ids": ids, "output_ids": made, "log_probs": log_probs, "tie": tie}

    def train(self, rows):
        """The mean loss over the rows and its gradient's norm, before it is clipped; a row is a micro-batch."""
        self.model.zero_grad()
        config, count = self.model.config, sum(len(row) - 1 for row in rows)
        total, balance = 0.0, 0.0
        for row in rows:
            # A text turns by the length of all of it, of which the last token is no input and has no load.
            logits = self(row).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")
            if getattr(config, "output_router_logits", False):
                balance = balance + (len(row) - 1) * self(row, counted=len(row) - 1).aux_loss
        loss = (total + getattr(config, "router_aux_loss_coef", 0.0) * balance) / count
        loss.backward()
        squares = sum(p.grad.double().square().sum() for p in self.model.parameters() if p.grad is not None)
        return {"loss": loss.item(), "grad_norm": math.sqrt(squares)}


def ends_of(folder):
    ends = set()
    for name in ["config.json", "generation_config.json"]:
        if (folder / name).exists():
            given = json.loads((folder / name).read_text()).get("eos_token_id")
            ends |= set(given if isinstance(given, list) else [] if given is None else [given])
    return ends


def make(seed, folder, family=None):
    draw = Draw(seed)
    family = family or list(MODELS)[seed % len(MODELS)]
    shutil.rmtree(folder, ignore_errors=True)
    hf = folder / "hf"
    hf.mkdir(parents=True)
    config = draw_config(draw, family)
    text = json.dumps(config, indent=1)
    (hf / "config.json").write_text(text)
    case = {"seed": seed, "family": family, "config": config}
    try:
        made = transformers.AutoConfig.from_pretrained(hf)
        made._attn_implementation = "eager"
        made._experts_implementation = "eager"
        model = fill(transformers.AutoModelForCausalLM.from_config(made).float(), draw)
        model.save_pretrained(hf, max_shard_size=draw.pick("1GB", "1GB", "60KB"))
        (hf / "config.json").write_text(text)
        (hf / "generation_config.json").unlink(missing_ok=True)
        if draw.chance(0.3):
            ends = draw.pick([5], [6, 7, 8], 9)
            (hf / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "do_sample": True, "top_p": 0.8}))
        case["folder"] = dress(draw, hf)
        reference = Reference(hf)
        if reference.missing:
            raise RuntimeError(f"missing {reference.missing}")
        case["sizes"] = {"heads": made.num_attention_heads, "layers": made.num_hidden_layers, "positions": made.max_position_embeddings}
        most = min(made.max_position_embeddings, 130)
        window = config.get("sliding_window") or config.get("window_size")
        marks = [window] if window else []
        for rope in [config.get("rope_parameters"), config.get("rope_scaling"), config]:
            marks += [value for value in [(rope or {}).get("original_max_position_embeddings")] if value]
        rows = texts(draw, config, marks, most)
        case["scores"] = [reference.score(row) for row in rows]
        prompts = [row[: max(1, min(len(row) - draw.count(0, 8), made.max_position_embeddings - 1))] for row in rows]
        # Positions of a table end.
        counts = [min(NEW_TOKENS, made.max_position_embeddings - len(row)) if family in OF_OTHER_KEYS else NEW_TOKENS for row in prompts]
        case["texts"] = [reference.generate(row, count, ends_of(hf)) for row, count in zip(prompts, counts)]
        # An even number of them: two halves of a batch.
        learnt = [row for row in rows if len(row) > 2]
        case["learnt"] = learnt[: len(learnt) // 2 * 2]
        case["training"] = reference.train(case["learnt"])
        exact = Reference(hf, torch.float64)
        case["spread"] = max(abs(a - b) for row, known in zip(rows, case["scores"])
                             for a, b in zip(exact.score(row), known))
        write = lambda name, lines: (folder / name).write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in lines))
        write("rows.jsonl", rows)
        write("prompts.jsonl", prompts)
        write("learnt.jsonl", case["learnt"])
    except Exception as error:  # whatever transformers raises is its answer
        case["refused"] = f"{type(error).__name__}: {error}"[:600]
    (folder / "case.json").write_text(json.dumps(case) + "\n")
    return case


def main():
    folder, first, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        case = make(seed, folder / str(seed), sys.argv[4] if len(sys.argv) > 4 else None)
        print(seed, case["family"], case.get("refused", "made"), flush=True)


if __name__ == "__main__":
    main()
