"""What transformers computes when one key of a config.json is changed and the weights are not.

For each family's model make_model_fixtures.py calls `write`:

    OUT/<model>/keys.json          [{"key", "value", "outcome"}], in order; outcome is "logits" or the name of
                                   the exception that transformers raised (other shapes, or values it refuses)
    OUT/<model>/keys.safetensors   logits.<i> of the 32 tokens of `ids`, where there are some

Keel may refuse a change by the key's name; where it reads the file, its logits must be these.
"""

import copy
import json

import safetensors.torch
import torch
import transformers
from transformers.initialization import no_init_weights

import models

FAMILIES = ["llama", "qwen2_window", "qwen3", "mistral_window", "smollm3", "gemma2", "gemma3", "olmo2", "olmo3",
            "qwen3_moe", "mixtral", "phi3", "phi3_longrope", "granite", "seed_oss", "arcee",
            "qwen2_moe", "exaone4", "exaone4_whole", "gemma", "olmoe", "glm", "glm4", "ernie4_5", "ministral",
            "cwm", "internlm3", "granite_hybrid", "hunyuan", "glm4_moe", "dots1", "minimax_m2",
            "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "gpt_oss", "qwen3_next", "qwen3_5", "qwen3_5_moe",
            "cohere", "cohere2", "starcoder2", "stablelm", "stablelm_parallel", "nemotron", "gpt_neox", "ministral3",
            "helium", "jais2", "vaultgemma", "solar_open", "gpt2", "gpt_neo", "opt", "gpt_bigcode", "phi", "gptj"]  # fmt: skip
LENGTH = 32

# Each is tried on every family, whether its config.json has the key or not.
VALUES = {
    "activation_function": ["gelu", "silu"],
    "attention_bias": [True],
    "attention_multiplier": [0.9],
    "attention_out_bias": [True],
    "bias": [True],
    "attn_logit_softcapping": [None, 1.5],
    "clip_qkv": [0.01],
    "decoder_sparse_step": [2],
    "embedding_multiplier": [3.0],
    "final_logit_softcapping": [None, 2.5],
    "first_k_dense_replace": [0, 2],
    "head_dim": [8],
    "hidden_act": ["gelu_pytorch_tanh", "gelu", "gelu_fast", "relu", "relu2", "silu"],
    "hidden_dropout": [0.3],
    "hidden_activation": ["silu", "gelu"],
    "intermediate_size": [48],
    "is_causal": [False, True],
    "layer_norm_eps": [0.1],
    "layer_types": [["sliding_attention"], ["full_attention"], ["sliding_attention", "full_attention"]],
    "logit_scale": [2.5],
    "logits_scaling": [2.5],
    "max_position_embeddings": [12],
    "max_window_layers": [0, 2],
    "mlp_bias": [True],
    "mlp_only_layers": [[0], [5], None],
    "moe_intermediate_size": [20],
    "n_group": [1, 2, 9],
    "n_routed_experts": [6],
    "n_shared_experts": [3],
    "no_rope_layer_interval": [2],
    "norm_eps": [0.1],
    "norm_epsilon": [0.1],
    "no_rope_layers": [[0, 1, 1, 0], None],
    "norm_topk_prob": [True, False],
    "num_attention_heads": [2],
    "num_experts": [2],
    "num_experts_per_tok": [1, 99],
    "num_hidden_layers": [1],
    "num_key_value_heads": [1],
    "num_local_experts": [2],
    "linear_conv_kernel_dim": [3],
    "linear_key_head_dim": [8],
    "linear_num_key_heads": [2],
    "linear_num_value_heads": [4],
    "linear_value_head_dim": [16],
    "num_nextn_predict_layers": [0, 2],
    "output_router_logits": [True],
    "partial_rotary_factor": [0.5],
    "position_embedding_type": ["rope", "nope", None, "alibi"],
    "per_layer_config": [{"0": {"rms_norm_eps": 0.5}}],
    "pretraining_tp": [2],
    "qk_layernorm": [True, False],
    "qkv_bias": [False, True],
    "query_pre_attn_scalar": [9],
    "residual_dropout": [0.3],
    "residual_multiplier": [0.4],
    "rms_norm_eps": [0.1],
    "router_aux_loss_coef": [0.5],
    "router_jitter_noise": [0.1],
    "rope_local_base_freq": [77.0],
    "rope_theta": [123.0],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}],
    "rotary_dim": [8],
    "rotary_emb_base": [321.0],
    "rotary_pct": [0.5, 1.0],
    "routed_scaling_factor": [0.3],
    "shared_expert_intermediate_size": [20],
    "shared_intermediate_size": [40],
    "sliding_window": [3, None],
    "sliding_window_pattern": [2],
    "tie_word_embeddings": [True, False],
    "topk_group": [1, 3],
    "use_bias": [True, False],
    "use_bidirectional_attention": [True],
    "use_parallel_residual": [True, False],
    "use_qk_norm": [True, False],
    "use_qkv_bias": [True, False],
    "use_sliding_window": [True, False],
    "vocab_size": [200],
}
ROPES = [
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
     "attention_factor": 1.3},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},  # stretched from max_position_embeddings
    {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "default", "rope_theta": 321.0},
    {"rope_type": "default", "rope_theta": 321.0, "alpha": 3.0},
    {"rope_type": "dynamic", "rope_theta": 321.0, "factor": 2.0, "alpha": 3.0},
    {"rope_type": "dynamic", "rope_theta": 321.0, "factor": 2.0, "alpha": 0},
    {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
]  # fmt: skip


FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [2.0, 2.5, 3.0, 4.0]}  # of half of 16 dims
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, **FACTORS}
SHARPENED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LATENT = {
    "q_lora_rank": [None, 8],
    "kv_lora_rank": [8],
    "qk_nope_head_dim": [4],
    "qk_rope_head_dim": [4],
    "v_head_dim": [8],
    "rope_interleave": [True, False, None],
    "rope_parameters": [
        {**SHARPENED, "mscale": 0.8, "mscale_all_dim": 0.9}, {**SHARPENED, "mscale_all_dim": 2.0},
        {**SHARPENED, "mscale": 0.8}, {**SHARPENED, "mscale_all_dim": 2.0, "attention_factor": 1.2},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0, "mscale_all_dim": 2.0},
        {"rope_type": "default", "rope_theta": 1e4, "factor": 4.0, "mscale_all_dim": 2.0},
    ],
}  # fmt: skip
# On one family's models alone.
OWN_VALUES = {
    "ministral3": {
        "rope_parameters": [
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 9, "llama_4_scaling_beta": 0.5},
            {"type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.0},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.2},
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.5},
        ],
    },
    "deepseek_v2": {**LATENT, "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"]},
    "deepseek_v3": {**LATENT, "topk_method": ["noaux_tc"]},
    "gpt2": {
        "n_embd": [32], "n_head": [2, 5], "n_inner": [48, None], "n_layer": [1], "n_positions": [40, 12], "layer_norm_epsilon": [0.1],
        "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [False, True], "reorder_and_upcast_attn": [True],
        "add_cross_attention": [True], "summary_type": ["last"], "n_ctx": [7],
    },
    "gpt_bigcode": {
        "n_head": [2], "n_inner": [48, None], "n_positions": [40], "layer_norm_epsilon": [0.1], "scale_attn_weights": [False], "multi_query": [False],
        "attention_softmax_in_fp32": [False], "scale_attention_softmax_in_fp32": [False],
    },
    "gpt_neo": {
        "num_layers": [1, 2], "num_heads": [2], "window_size": [1, 40], "layer_norm_epsilon": [0.1],
        "attention_types": [[[["global"], 3]], [[["local"], 3]], [[["local", "global"], 1]], [[["strided"], 3]], None, "global"],
    },
    "gptj": {
        "n_embd": [32], "n_head": [2], "n_inner": [48, None], "n_layer": [1], "n_positions": [40], "layer_norm_epsilon": [0.1],
        "rotary_dim": [2, 16, 7, 40, None], "rotary": [False], "scale_attn_weights": [False], "summary_type": ["last"],
    },
    "opt": {
        "ffn_dim": [48], "do_layer_norm_before": [False], "enable_bias": [False], "layer_norm_elementwise_affine": [False],
        "word_embed_proj_dim": [32, 64], "_remove_final_layer_norm": [True], "layerdrop": [0.1], "init_std": [0.5],
    },
    "glm4_moe_lite": {**LATENT, "mlp_layer_types": [["dense"] * 3, ["sparse"] * 3, ["dense", "sparse", "sparse"], None]},
    "youtu": LATENT,
    "gpt_oss": {"swiglu_alpha": [0.5, 0.0], "swiglu_limit": [0.2, 7.0], "experts_per_token": [1], "initial_context_length": [8]},
    "qwen3_next": {"full_attention_interval": [2], "mtp_num_hidden_layers": [1]},
    "qwen3_5": {
        "attn_output_gate": [True],
        "full_attention_interval": [2],
        "layer_types": [["linear_attention", "linear_attention", "full_attention"], None],
        "mtp_num_hidden_layers": [1],
        "rope_parameters": [
            {"rope_type": "default", "rope_theta": 321.0, "mrope_section": [1, 1, 1], "mrope_interleaved": True},
            {"rope_type": "default", "rope_theta": 321.0, "partial_rotary_factor": 0.5},
        ],
    },
    "phi3": {
        "embd_pdrop": [0.5],
        "original_max_position_embeddings": [8, 40],
        "resid_pdrop": [0.5],
        "rope_parameters": [
            LONG, {**LONG, "attention_factor": 1.4}, {**LONG, "factor": 3.0},
            {**LONG, "rope_type": "su", "original_max_position_embeddings": 9},
            {**LONG, "rope_theta": 55.0, "original_max_position_embeddings": 9}, {**LONG, "rope_type": "yarn"},
            {**LONG, "partial_rotary_factor": 0.75}, {"type": "longrope", "partial_rotary_factor": 0.5, **FACTORS},
        ],
        "rope_scaling": [LONG],
    },
}  # fmt: skip


def changes(config):
    for key, values in OWN_VALUES.get(config["model_type"], {}).items():
        for value in values:
            yield key, value
    for key, values in VALUES.items():
        for value in values:
            if key == "layer_types":
                layers = config.get("num_hidden_layers") or config.get("num_layers") or config["n_layer"]
                value = (value * layers)[:layers]
            yield key, value
    kinds = config["rope_parameters"]
    for rope in ROPES:
        yield "rope_parameters", rope
        if "full_attention" in kinds:
            yield "rope_parameters", {**kinds, "full_attention": rope}
            yield "rope_parameters", {**kinds, "sliding_attention": rope}


@torch.no_grad()
def logits_of(config, state, ids):
    made = transformers.AutoConfig.for_model(**copy.deepcopy(config))  # which it writes to
    made._attn_implementation = made._experts_implementation = "eager"
    with no_init_weights():  # all are replaced
        model = transformers.AutoModelForCausalLM.from_config(made).float().eval()
    # As from_pretrained would, but with what is missing, or too much, said.
    model.load_state_dict(state, strict=True)
    return model(ids[None]).logits[0]


def write(name, directory):
    config = json.loads((directory / "hf" / "config.json").read_text())
    state = transformers.AutoModelForCausalLM.from_pretrained(directory / "hf", dtype=torch.float32).state_dict()
    ids = torch.tensor(models.tokens(name + " keys", LENGTH)) % 200
    tensors, outcomes = {"ids": ids.int()}, []
    for key, value in changes(config):
        changed = {**config, key: value}
        try:
            tensors[f"logits.{len(outcomes)}"] = logits_of(changed, state, ids).contiguous()
            outcome = "logits"
        except Exception as error:  # whatever it raises is an answer
            outcome = type(error).__name__
        outcomes.append({"key": key, "value": value, "outcome": outcome})
    (directory / "keys.json").write_text(json.dumps(outcomes) + "\n")
    safetensors.torch.save_file(tensors, directory / "keys.safetensors")
