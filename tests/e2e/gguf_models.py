"""Tiny random transformers models, and GGUF files of them as llama.cpp's converter would write them."""

import math
import sys

import numpy as np
import pypi
import torch
import transformers
from gguf_vocabulary import TOKENS, TYPES

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
POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
GEMMA_NORMS = POST_NORMS | {"ffn_norm": "pre_feedforward_layernorm"}
# Of a family's layers, beside those or in their place.
OWN_NAMES = {
    "gemma2": GEMMA_NORMS, "gemma3_text": GEMMA_NORMS, "olmo2": POST_NORMS, "olmo3": POST_NORMS, "exaone4": POST_NORMS,
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "qwen2_moe": {"ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
                  "ffn_down_shexp": "mlp.shared_expert.down_proj", "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
}  # fmt: skip
MIXED = ("llama", "mixtral", "smollm3", "granite", "arcee")  # rows of q and k
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
HIDDEN, HEADS, KV, HEAD, FFN, EXPERT_FFN, VOCABULARY, EXPERTS = 256, 8, 4, 32, 512, 768, len(TOKENS), 5
# 768: where a file of Qwen3-MoE has another width, the reader of transformers does not see it.
# Random bytes are blocks of these, which gguf-py reads and does not write.
RANDOM_BLOCKS = ("Q4_K", "Q5_K", "Q6_K")
ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "olmo3": "olmo2"}
QWEN_EXPERTS = ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"})
OF_EXPERTS = {
    "qwen2_moe": QWEN_EXPERTS, "qwen3_moe": QWEN_EXPERTS, "olmoe": QWEN_EXPERTS,
    "mixtral": ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
}


def hf_names(name, family):
    """Where a tensor of a GGUF file goes: one name, or one an expert."""
    stem, end = name.rsplit(".", 1)
    if stem in OUTSIDE:
        return [f"{OUTSIDE[stem]}.{end}"]
    _, layer, stem = stem.split(".")
    place = f"model.layers.{layer}"
    if family in OF_EXPERTS and stem == "ffn_gate_inp":
        return [f"{place}.{OF_EXPERTS[family][0]}.gate.weight"]
    if stem.endswith("_exps"):
        room, names = OF_EXPERTS[family]
        of_expert = names[stem.removeprefix("ffn_").removesuffix("_exps")]
        return [f"{place}.{room}.experts.{i}.{of_expert}.weight" for i in range(EXPERTS)]
    return [f"{place}.{(NAMES | OWN_NAMES.get(family, {}))[stem]}.{end}"]


def mix(tensor, heads):
    """Rows of Llama's q and k as llama.cpp's converter orders them."""
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def unmix(tensor, heads):
    return tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def random_blocks(kind, shape, random):
    """Any bytes are blocks, but for the scales, which must be finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    places = (208,) if kind == gguf.GGMLQuantizationType.Q6_K else (0, 2)
    for at in places:
        scale = random.uniform(-0.01, 0.01, blocks.shape[:-1] + (1,)).astype(np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


# What is not as in the others; a window that is shorter than the texts, a layer without it, numbers that no default is.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FACTORS = {"long_factor": [1 + 0.37 * i for i in range(12)], "short_factor": [1 + 0.01 * i for i in range(12)]}
GEMMA = {"sliding_window": 4, "query_pre_attn_scalar": HEAD, "final_logit_softcapping": 3.0}
CONFIGS = {
    "llama": {"tie_word_embeddings": False},
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": EXPERT_FFN,
                "tie_word_embeddings": False},
    "qwen2_moe": {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_FFN,
                  "shared_expert_intermediate_size": 256},
    "qwen3_moe": {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_FFN, "norm_topk_prob": True},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA | {"num_hidden_layers": 7, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                            "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "phi3": {"sliding_window": 9, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.75,
             "rope_scaling": {"type": "longrope"} | FACTORS},
    "smollm3": {"num_hidden_layers": 4, "rope_theta": 5000000.0},
    "olmo3": {"num_hidden_layers": 3, "sliding_window": 4,
              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
              "rope_parameters": {"full_attention": YARN | {"attention_factor": 1.25, "rope_theta": 10000.0},
                                  "sliding_attention": {"rope_type": "default", "rope_theta": 50000.0}}},
    "granite": {"embedding_multiplier": 12.0, "attention_multiplier": 0.0625, "residual_multiplier": 0.22, "logits_scaling": 8.0},
    "seed_oss": {"attention_bias": True, "attention_out_bias": True},
    "arcee": {"tie_word_embeddings": False, "rope_scaling": YARN},
    "exaone4": {"num_hidden_layers": 4, "sliding_window": 4},
    "olmoe": {"num_experts": EXPERTS, "num_experts_per_tok": 2, "tie_word_embeddings": False},
}  # fmt: skip


def tiny_model(family, **more):
    """A random transformers model, float32."""
    config = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD, "max_position_embeddings": 128,
        "tie_word_embeddings": True, "rope_theta": 10000.0, "bos_token_id": None, "eos_token_id": 257, "pad_token_id": None,
    }  # fmt: skip
    config |= CONFIGS.get(family, {}) | more
    if "rope_parameters" in config:  # which says the bases itself
        del config["rope_theta"]
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.float().eval()


def write_settings(writer, config):
    """What llama.cpp's converter writes of this model."""
    family = config.model_type
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if family not in ("phi3", "granite"):  # hidden_size / num_attention_heads of these
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
    if family in (*MIXED, "exaone4"):
        writer.add_vocab_size(VOCABULARY)
    if family in MIXED:
        writer.add_rope_dimension_count(HEAD)
    write_rotation(writer, config.rope_parameters, family)
    write_windows(writer, config)
    if family in ("gemma2", "gemma3_text"):
        writer.add_final_logit_softcapping(3.0)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
    if family in OF_EXPERTS:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
    if family in ("qwen2_moe", "qwen3_moe"):
        writer.add_expert_feed_forward_length(EXPERT_FFN)
    if family == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if family == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def write_rotation(writer, rope, family):
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    if family not in ("gemma", "gemma2"):
        writer.add_rope_freq_base(rope["rope_theta"])
    if family in ("gemma3_text", "olmo3"):
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if family == "phi3":
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * HEAD))
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(128 / 32) / math.log(32)))
        for which in ("long", "short"):
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], dtype=np.float32))
    elif rope["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if "attention_factor" in rope:
                writer.add_float32(f"{writer.arch}.rope.scaling.yarn_attn_factor", rope["attention_factor"])


def write_windows(writer, config):
    window = getattr(config, "sliding_window", None)
    if config.model_type in ("gemma2", "gemma3_text", "phi3", "olmo3", "exaone4"):
        writer.add_sliding_window(window)
    if config.model_type in ("olmo3", "exaone4"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def write_vocabulary(writer):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(257)
    writer.add_chat_template("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}")


def arrays(model):
    """The model's weights by the names of a GGUF file, in its order of rows."""
    family = model.config.model_type
    back = {hf: stem for names in (NAMES, OWN_NAMES.get(family, {})) for stem, hf in names.items()}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = value.numpy()
        stem, end = name.rsplit(".", 1) if not name.endswith("_proj") else (name, "weight")
        if not stem.startswith("model.layers."):
            outside = next(here for here, there in OUTSIDE.items() if there == stem)
            yield f"{outside}.{end}", array + 1 if "gemma" in family and "norm" in stem else array
            continue
        layer, place = stem.removeprefix("model.layers.").split(".", 1)
        block = f"blk.{layer}"
        if place == "mlp.experts.gate_up_proj":
            for which, part in zip(("gate", "up"), np.split(array, 2, axis=1)):
                yield f"{block}.ffn_{which}_exps.weight", part
        elif place == "mlp.experts.down_proj":
            yield f"{block}.ffn_down_exps.weight", array
        elif place == "mlp.gate":
            yield f"{block}.ffn_gate_inp.weight", array
        else:
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV}.get(place)
            if family in MIXED and heads:
                array = mix(array, heads)
            yield f"{block}.{back[place]}.{end}", array + 1 if "gemma" in family and "norm" in place else array


def write(model, file, kind="F32", seed=1, stacked=True):
    """Returns `file`. Not `stacked`: each expert's matrices by themselves, as files once were."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(file, ARCHITECTURES.get(model.config.model_type, model.config.model_type))
    write_settings(writer, model.config)
    write_vocabulary(writer)
    wanted = gguf.GGMLQuantizationType[kind]

    def add(name, array):
        array = np.ascontiguousarray(array)
        if array.ndim < 2 or kind == "F32" or "ffn_gate_inp" in name:
            writer.add_tensor(name, array)
        elif kind in RANDOM_BLOCKS:
            writer.add_tensor(name, random_blocks(wanted, array.shape, random), raw_dtype=wanted)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, wanted), raw_dtype=wanted)

    for name, array in arrays(model):
        if stacked or "_exps" not in name:
            add(name, array)
            continue
        for expert, matrix in enumerate(array):
            add(name.replace("_exps", f".{expert}"), matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
