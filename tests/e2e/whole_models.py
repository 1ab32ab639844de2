"""Tiny models of texts and images in the folders that people bring, by transformers: what Keel reads the text part of.

Of each one folder with the names that published files have, config.json as it was published (text_config without what is
its class's default, positions as transformers 4 spelled them), and one with the names and the config.json of transformers 5.
"""

import dataclasses
import json
import math
import random

import safetensors.torch
import torch
import transformers
from transformers import AutoConfig

VOCABULARY = 263
TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
VISION = {
    "hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", **VISION, "vocab_size": 32, "projection_dim": 8}
SIGLIP = {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False}
# As Gemma 3: two rotations, of which that of the whole layers is stretched, and a window.
GEMMA3 = {
    "model_type": "gemma3_text", **TEXT, "num_hidden_layers": 4, "num_key_value_heads": 1, "sliding_window": 9, "query_pre_attn_scalar": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}},
}  # fmt: skip
# As Qwen's: a rotation by three positions, which are one where there are no images.
THREE = {"rope_type": "default", "rope_theta": 3000.0, "mrope_section": [2, 3, 3]}
QWEN_TEXT = {key: value for key, value in TEXT.items() if key != "head_dim"}
QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 37, "num_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [1]}
# As Qwen3.5: two of three layers mix tokens by a state.
DELTA = {
    **TEXT, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 12, "linear_value_head_dim": 20,
    "rope_parameters": {**THREE, "mrope_section": [1, 1, 0], "mrope_interleaved": True, "partial_rotary_factor": 0.25},
}  # fmt: skip
QWEN35_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 37, "num_heads": 2, "out_hidden_size": 64}
QWEN_IDS = {"image_token_id": 262, "video_token_id": 261, "vision_start_token_id": 260, "vision_end_token_id": 259}


TEXT_TYPES = {
    "Gemma3ForCausalLM": "gemma3_text", "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", "Qwen3_5ForCausalLM": "qwen3_5_text", "Qwen3_5MoeForCausalLM": "qwen3_5_moe_text",
}  # fmt: skip


@dataclasses.dataclass
class Whole:
    model_type: str
    text: dict
    vision: dict
    text_class: str  # of an export
    outer: dict = dataclasses.field(default_factory=dict)


WHOLES = {
    "gemma3": Whole("gemma3", GEMMA3, SIGLIP, "Gemma3ForCausalLM",
                    {"mm_tokens_per_image": 4, "image_token_index": 262, "boi_token_index": 260, "eoi_token_index": 261}),
    "gemma3_untied": Whole("gemma3", GEMMA3, SIGLIP, "Gemma3ForCausalLM",
                           {"mm_tokens_per_image": 4, "image_token_index": 262, "tie_word_embeddings": False}),
    # Published ones say nothing of the tie, and have a head of their own.
    "mistral3": Whole("mistral3", {"model_type": "mistral", **TEXT, "sliding_window": None, "rope_parameters": PLAIN},
                      {"model_type": "pixtral", **VISION, "head_dim": 16}, "MistralForCausalLM",
                      {"image_token_index": 10, "spatial_merge_size": 1, "tie_word_embeddings": False}),
    "mistral3_tied": Whole("mistral3", {"model_type": "mistral", **TEXT, "sliding_window": 7, "rope_parameters": PLAIN},
                           {"model_type": "pixtral", **VISION, "head_dim": 16}, "MistralForCausalLM",
                           {"image_token_index": 10, "spatial_merge_size": 1}),
    "llava": Whole("llava", {"model_type": "llama", **TEXT, "rope_parameters": PLAIN}, CLIP, "LlamaForCausalLM",
                   {"image_token_index": 262}),
    "llava_next": Whole("llava_next", {"model_type": "mistral", **TEXT, "sliding_window": None, "rope_parameters": PLAIN}, CLIP,
                        "MistralForCausalLM", {"image_token_index": 262}),
    "llava_onevision": Whole("llava_onevision", {"model_type": "qwen2", **TEXT, "tie_word_embeddings": True, "rope_parameters": PLAIN},
                             SIGLIP, "Qwen2ForCausalLM", {"image_token_index": 262, "video_token_index": 261}),
    "internvl": Whole("internvl", {"model_type": "qwen3", **TEXT, "rope_parameters": PLAIN},
                      {"model_type": "internvl_vision", **VISION}, "Qwen3ForCausalLM",
                      {"image_token_id": 262, "tie_word_embeddings": False}),
    "qwen2_vl": Whole("qwen2_vl", {"model_type": "qwen2_vl_text", **QWEN_TEXT, "tie_word_embeddings": True, "rope_parameters": THREE},
                      {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}, "Qwen2ForCausalLM",
                      {**QWEN_IDS, "tie_word_embeddings": True}),
    "qwen2_5_vl": Whole("qwen2_5_vl", {"model_type": "qwen2_5_vl_text", **QWEN_TEXT, "rope_parameters": THREE}, QWEN_VISION,
                        "Qwen2ForCausalLM", {**QWEN_IDS, "tie_word_embeddings": False}),
    "qwen3_vl": Whole("qwen3_vl", {"model_type": "qwen3_vl_text", **TEXT, "rope_parameters": {**THREE, "mrope_interleaved": True}},
                      {"depth": 2, "hidden_size": 32, "intermediate_size": 37, "num_heads": 2, "out_hidden_size": 64,
                       "deepstack_visual_indexes": [0]}, "Qwen3ForCausalLM", {**QWEN_IDS, "tie_word_embeddings": False}),
    "qwen3_5": Whole("qwen3_5", {"model_type": "qwen3_5_text", **DELTA}, QWEN35_VISION, "Qwen3_5ForCausalLM",
                     {**QWEN_IDS, "tie_word_embeddings": True}),
    "qwen3_5_moe": Whole("qwen3_5_moe", {"model_type": "qwen3_5_moe_text", **DELTA, "num_experts": 5, "num_experts_per_tok": 2,
                                         "moe_intermediate_size": 24, "shared_expert_intermediate_size": 28},
                         QWEN35_VISION, "Qwen3_5MoeForCausalLM", {**QWEN_IDS, "tie_word_embeddings": False}),
}  # fmt: skip


def build(name):
    """The model `name` with random weights, in float32 and evaluation mode."""
    whole = WHOLES[name]
    config = AutoConfig.for_model(whole.model_type, text_config=dict(whole.text), vision_config=dict(whole.vision), **whole.outer)
    torch.manual_seed(1 + list(WHOLES).index(name))
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    of_one = lambda name: whole.model_type == "gemma3" or whole.model_type.startswith("qwen3_5") and "linear_attn" not in name
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if not is_text(parameter_name):
                continue
            noise = torch.randn(parameter.shape)
            if parameter_name.endswith("norm.weight"):
                parameter.copy_((0.0 if of_one(parameter_name) else 1.0) + 0.2 * noise)  # Gemma adds one to them, and Qwen3.5
            elif parameter_name.endswith(".bias"):
                parameter.copy_(0.1 * noise)
            elif parameter_name.endswith("embed_tokens.weight"):
                size = 0.07 if model.config.tie_word_embeddings else 0.5
                parameter.copy_((0.4 * size if whole.model_type == "gemma3" else size) * noise)  # which Gemma scales
            else:
                parameter.copy_(0.9 / math.sqrt(parameter.shape[-1]) * noise)
    return model


def is_text(parameter_name):
    beginnings = ("mtp", "lm_head", "model.embed_tokens", "model.layers", "model.norm")
    return "language_model" in parameter_name or parameter_name.startswith(beginnings)


def save(name, model, directory, published):
    """As it was published, or as transformers 5 writes it where it is told not to keep to that."""
    model.save_pretrained(directory, save_original_format=published)
    if published:
        path = directory / "config.json"
        path.write_text(json.dumps(as_published(name, json.loads(path.read_text())), indent=2) + "\n")
    if published and name.startswith("qwen3_5"):  # whose files have a layer that predicts further tokens, too
        file = directory / "model.safetensors"
        tensors = safetensors.torch.load_file(file)
        safetensors.torch.save_file({**tensors, "mtp.fc.weight": torch.zeros(64, 128)}, file, {"format": "pt"})


def as_published(name, config):
    config = dict(config, text_config=dict(config["text_config"]))
    text = config["text_config"]
    if name.startswith("qwen3_5"):  # published since version 5
        text["mtp_num_hidden_layers"] = 1
        return config
    rope = text.pop("rope_parameters")
    if "full_attention" in rope:
        text["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    text["rope_theta"] = rope.pop("rope_theta")
    if "mrope_section" in rope:
        interleaved = "mrope_interleaved" in rope
        text["rope_scaling"] = {**rope, "rope_type": "default"} if interleaved else {"type": "mrope", "mrope_section": rope["mrope_section"]}
    elif rope["rope_type"] != "default":
        text["rope_scaling"] = rope
    defaults = AutoConfig.for_model(text["model_type"]).to_dict()
    for key in [key for key in text if key in defaults and text[key] == defaults[key] and key != "model_type"]:
        del text[key]
    # Of the time before version 5, in which the text model knew it alone.
    if WHOLES[name].model_type in ("gemma3", "mistral3") and "untied" not in name:
        config.pop("tie_word_embeddings", None)
    config["torch_dtype"] = config.pop("dtype")
    text.pop("dtype", None)
    config["transformers_version"] = "4.50.0"
    if WHOLES[name].model_type in ("qwen2_vl", "qwen2_5_vl"):  # whose text has no place of its own
        del config["text_config"], text["model_type"]
        config.update(text)
    return config


def rows(name, lengths):
    draw = random.Random("rows of " + name)
    return [[draw.randrange(256) for _ in range(length)] for length in lengths]


def load(directory):
    """The whole model, as transformers reads the folder."""
    return transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
