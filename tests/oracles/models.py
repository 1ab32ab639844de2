"""The tiny models that the fixtures are made of: one per family and per trap of the format.

Every model is small enough for a test and odd enough that a mistake shows: the vocabulary is a prime
(263, four more than the byte tokenizer has), norm weights differ from one, biases from zero, and each directory has a reason of its own.
"""

import json
import math
import pathlib
import random

import torch
from transformers import ArceeConfig, ArceeForCausalLM, Exaone4Config, Exaone4ForCausalLM
from transformers import Cohere2Config, Cohere2ForCausalLM, CohereConfig, CohereForCausalLM
from transformers import CwmConfig, CwmForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM
from transformers import Dots1Config, Dots1ForCausalLM
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig
from transformers import GemmaConfig, GemmaForCausalLM
from transformers import Glm4Config, Glm4ForCausalLM, GlmConfig, GlmForCausalLM
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM
from transformers import GPT2Config, GPT2LMHeadModel, GPTBigCodeConfig, GPTBigCodeForCausalLM, GPTNeoConfig, GPTNeoForCausalLM
from transformers import GPTJConfig, GPTJForCausalLM, PhiConfig, PhiForCausalLM
from transformers import GptOssConfig, GptOssForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM
from transformers import GraniteConfig, GraniteForCausalLM
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
from transformers import HeliumConfig, HeliumForCausalLM, Jais2Config, Jais2ForCausalLM
from transformers import HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM
from transformers import InternLM3Config
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import MiniMaxM2Config, MiniMaxM2ForCausalLM
from transformers import Ministral3Config, Ministral3ForCausalLM, MinistralConfig, MinistralForCausalLM
from transformers import MixtralConfig, MixtralForCausalLM
from transformers import NemotronConfig, NemotronForCausalLM
from transformers import Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM
from transformers import OlmoeConfig, OlmoeForCausalLM
from transformers import OPTConfig, OPTForCausalLM
from transformers import Phi3Config, Phi3ForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers import SeedOssConfig, SeedOssForCausalLM
from transformers import SmolLM3Config, SmolLM3ForCausalLM
from transformers import SolarOpenConfig, SolarOpenForCausalLM
from transformers import StableLmConfig, StableLmForCausalLM, Starcoder2Config, Starcoder2ForCausalLM
from transformers import VaultGemmaConfig, VaultGemmaForCausalLM
from transformers import YoutuConfig, YoutuForCausalLM

BASE = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=263,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Wavelengths of the 8 frequencies are 6 to 20,000 positions: with these numbers one is kept, two lie in
# the interpolated band and five are divided by the factor.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

UNEVEN = dict(num_hidden_layers=2, intermediate_size=97, vocab_size=259)

LLAMA = (LlamaConfig, LlamaForCausalLM)
QWEN2 = (Qwen2Config, Qwen2ForCausalLM)
QWEN3 = (Qwen3Config, Qwen3ForCausalLM)
MISTRAL = (MistralConfig, MistralForCausalLM)
SMOLLM3 = (SmolLM3Config, SmolLM3ForCausalLM)
GEMMA = (GemmaConfig, GemmaForCausalLM)
GEMMA2 = (Gemma2Config, Gemma2ForCausalLM)
GEMMA3 = (Gemma3TextConfig, Gemma3ForCausalLM)
OLMO2 = (Olmo2Config, Olmo2ForCausalLM)
OLMO3 = (Olmo3Config, Olmo3ForCausalLM)
QWEN3_MOE = (Qwen3MoeConfig, Qwen3MoeForCausalLM)
ERNIE = (Ernie4_5Config, Ernie4_5ForCausalLM)
MINISTRAL = (MinistralConfig, MinistralForCausalLM)
CWM = (CwmConfig, CwmForCausalLM)
INTERNLM3 = (InternLM3Config, LlamaForCausalLM)
GLM4_MOE = (Glm4MoeConfig, Glm4MoeForCausalLM)
DOTS1 = (Dots1Config, Dots1ForCausalLM)
DEEPSEEK_V2 = (DeepseekV2Config, DeepseekV2ForCausalLM)
DEEPSEEK_V3 = (DeepseekV3Config, DeepseekV3ForCausalLM)
GLM4_MOE_LITE = (Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM)
YOUTU = (YoutuConfig, YoutuForCausalLM)
GPT_OSS = (GptOssConfig, GptOssForCausalLM)
QWEN3_NEXT = (Qwen3NextConfig, Qwen3NextForCausalLM)
QWEN3_5 = (Qwen3_5TextConfig, Qwen3_5ForCausalLM)
QWEN3_5_MOE = (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM)
MINIMAX_M2 = (MiniMaxM2Config, MiniMaxM2ForCausalLM)
HUNYUAN = (HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM)
GRANITE_HYBRID = (GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM)
OLMOE = (OlmoeConfig, OlmoeForCausalLM)
MIXTRAL = (MixtralConfig, MixtralForCausalLM)
PHI3 = (Phi3Config, Phi3ForCausalLM)
GLM = (GlmConfig, GlmForCausalLM)
GLM4 = (Glm4Config, Glm4ForCausalLM)
GRANITE = (GraniteConfig, GraniteForCausalLM)
SEED_OSS = (SeedOssConfig, SeedOssForCausalLM)
ARCEE = (ArceeConfig, ArceeForCausalLM)
QWEN2_MOE = (Qwen2MoeConfig, Qwen2MoeForCausalLM)
EXAONE4 = (Exaone4Config, Exaone4ForCausalLM)
COHERE = (CohereConfig, CohereForCausalLM)
COHERE2 = (Cohere2Config, Cohere2ForCausalLM)
STARCODER2 = (Starcoder2Config, Starcoder2ForCausalLM)
STABLELM = (StableLmConfig, StableLmForCausalLM)
NEMOTRON = (NemotronConfig, NemotronForCausalLM)
GPT_NEOX = (GPTNeoXConfig, GPTNeoXForCausalLM)
MINISTRAL3 = (Ministral3Config, Ministral3ForCausalLM)
HELIUM = (HeliumConfig, HeliumForCausalLM)
JAIS2 = (Jais2Config, Jais2ForCausalLM)
VAULTGEMMA = (VaultGemmaConfig, VaultGemmaForCausalLM)
SOLAR_OPEN = (SolarOpenConfig, SolarOpenForCausalLM)
GPT2 = (GPT2Config, GPT2LMHeadModel)
GPT_BIGCODE = (GPTBigCodeConfig, GPTBigCodeForCausalLM)
GPT_NEO = (GPTNeoConfig, GPTNeoForCausalLM)
PHI = (PhiConfig, PhiForCausalLM)
GPTJ = (GPTJConfig, GPTJForCausalLM)
OPT = (OPTConfig, OPTForCausalLM)


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def two_ropes(full, sliding):
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


# Granite 4 without experts and Mamba, whose sizes must be possible ones all the same.
GRANITE_DENSE = dict(
    num_hidden_layers=3,
    layer_types=["full_attention"] * 3,
    num_local_experts=0,
    num_experts_per_tok=0,
    shared_intermediate_size=88,
    mamba_n_heads=2,
    time_step_limit=None,  # infinite without, which JSON does not have
    embedding_multiplier=3.0,
    attention_multiplier=0.3,
    residual_multiplier=0.6,
    logits_scaling=2.0,
)
# name -> (family, what differs from BASE)
# Of DeepSeek-V3's router: three groups of three, of which a token takes two.
ROUTED = dict(
    n_routed_experts=9,
    num_experts_per_tok=3,
    n_group=3,
    topk_group=2,
    moe_intermediate_size=40,
    routed_scaling_factor=1.7,
    norm_topk_prob=True,
    first_k_dense_replace=1,
)
# Latent attention: of a head more dims in queries and keys than in values, or fewer.
LATENT = dict(
    num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12
)
# The gated delta rule.
DELTA = dict(
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=12,
    linear_value_head_dim=20,
    linear_conv_kernel_dim=4,
)
WIDE_VALUES = dict(LATENT, q_lora_rank=None, v_head_dim=22)

MODELS = {
    "llama": (LLAMA, {}),
    "llama_tied": (LLAMA, dict(tie_word_embeddings=True)),
    # Three layers do not divide over two stages; as many key-value heads as heads; another theta.
    "llama_3_layers": (
        LLAMA,
        dict(
            num_hidden_layers=3,
            num_key_value_heads=4,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        ),
    ),
    "llama_rope_scaled": (LLAMA, dict(rope_parameters=LLAMA3_ROPE)),
    # q, k, v, o, gate, up and down have a bias.
    "llama_attention_bias": (LLAMA, dict(attention_bias=True, mlp_bias=True)),
    # head_dim is not hidden_size / heads, so q_proj and o_proj are not square.
    "llama_head_dim": (LLAMA, dict(head_dim=24)),
    "qwen2": (QWEN2, dict(rms_norm_eps=1e-6)),
    "qwen2_tied": (QWEN2, dict(rms_norm_eps=1e-6, tie_word_embeddings=True)),
    "qwen3": (QWEN3, dict(num_attention_heads=8, head_dim=16, rms_norm_eps=1e-6)),
    "qwen3_tied": (
        QWEN3,
        dict(num_attention_heads=8, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True),
    ),
    # Nothing divides: neither heads nor key-value heads nor the feed-forward width.
    "llama_9_heads": (
        LLAMA,
        dict(num_attention_heads=9, num_key_value_heads=3, hidden_size=72, tie_word_embeddings=True, **UNEVEN),
    ),
    "llama_15_heads": (
        LLAMA,
        dict(num_attention_heads=15, num_key_value_heads=5, hidden_size=60, head_dim=8, attention_bias=True, **UNEVEN),
    ),
    # Fewer key-value heads than ranks; a group of seven heads divides over no number of them.
    "qwen2_14_heads": (
        QWEN2,
        dict(num_attention_heads=14, num_key_value_heads=2, hidden_size=112, rms_norm_eps=1e-6, **UNEVEN),
    ),
    "qwen3_6_heads": (
        QWEN3,
        dict(num_attention_heads=6, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, **UNEVEN),
    ),
    # Every way to stretch positions. The batch's sequences of 17 and 32 tokens are longer than the contexts
    # that these were made for, the one of 9 is not.
    "llama_rope_linear": (LLAMA, dict(num_hidden_layers=2, **rope("linear", factor=3.0))),
    "llama_rope_dynamic": (
        LLAMA,
        dict(num_hidden_layers=2, max_position_embeddings=12, **rope("dynamic", factor=2.0)),
    ),
    "llama_rope_yarn": (
        LLAMA,
        dict(num_hidden_layers=2, **rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    ),
    "llama_rope_yarn_mscale": (
        LLAMA,
        dict(
            num_hidden_layers=2,
            **rope(
                "yarn",
                factor=8.0,
                original_max_position_embeddings=32,
                beta_fast=20.0,
                beta_slow=2.0,
                mscale=0.8,
                mscale_all_dim=0.4,
                truncate=False,
            ),
        ),
    ),
    "llama_rope_longrope": (
        LLAMA,
        dict(
            num_hidden_layers=2,
            max_position_embeddings=64,
            **rope(
                "longrope",
                original_max_position_embeddings=12,
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.9, 2.0],
                long_factor=[1.5, 1.9, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
            ),
        ),
    ),
    "mistral": (MISTRAL, dict(num_hidden_layers=2, sliding_window=None)),
    "mistral_window": (MISTRAL, dict(num_hidden_layers=2, sliding_window=7)),
    "qwen2_window": (
        QWEN2,
        dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    ),
    "smollm3": (SMOLLM3, dict(no_rope_layers=[1, 0, 1, 0])),
    "gemma2": (
        GEMMA2,
        dict(
            head_dim=24,
            sliding_window=6,
            query_pre_attn_scalar=40,
            tie_word_embeddings=True,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=15.0,
        ),
    ),
    "gemma3": (
        GEMMA3,
        dict(
            head_dim=16,
            num_key_value_heads=1,
            sliding_window=9,
            sliding_window_pattern=3,
            query_pre_attn_scalar=32,
            **two_ropes(
                {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
                {"rope_type": "default", "rope_theta": 500.0},
            ),
        ),
    ),
    "olmo2": (OLMO2, dict(num_hidden_layers=2)),
    "olmo3": (
        OLMO3,
        dict(
            sliding_window=8,
            **two_ropes(
                {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
                {"rope_type": "default", "rope_theta": 10000.0},
            ),
        ),
    ),
    # Experts in all layers but one. Those of *_balance are trained with the load-balancing loss; 37 columns of
    # an expert divide over no number of ranks, and every other layer is dense.
    "qwen3_moe": (
        QWEN3_MOE,
        dict(
            num_hidden_layers=3,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            norm_topk_prob=True,
            mlp_only_layers=[1],
            rms_norm_eps=1e-6,
        ),
    ),
    "qwen3_moe_balance": (
        QWEN3_MOE,
        dict(
            head_dim=24,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=37,
            decoder_sparse_step=2,
            output_router_logits=True,
            router_aux_loss_coef=0.3,
        ),
    ),
    # head_dim is written out: transformers cannot stretch positions of a Mixtral that leaves it out.
    "mixtral": (MIXTRAL, dict(num_hidden_layers=2, num_local_experts=4, head_dim=16)),
    "mixtral_balance": (
        MIXTRAL,
        dict(
            num_hidden_layers=3,
            intermediate_size=56,
            num_local_experts=6,
            num_experts_per_tok=1,
            sliding_window=7,
            output_router_logits=True,
            router_aux_loss_coef=0.1,
        ),
    ),
    # A part of each head turns; every layer has the window.
    "phi3": (PHI3, dict(num_hidden_layers=2, sliding_window=7, **rope("default", partial_rotary_factor=0.5))),
    # As Phi-4-mini. Of the prompts one is longer than the original context, and one grows past it.
    "phi3_longrope": (
        PHI3,
        dict(
            num_hidden_layers=2,
            tie_word_embeddings=True,
            sliding_window=200,
            original_max_position_embeddings=24,
            **rope(
                "longrope",
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
                long_factor=[1.5, 1.9, 2.5, 3.0, 4.0, 6.0],
            ),
        ),
    ),
    "phi3_9_heads": (PHI3, dict(num_attention_heads=9, num_key_value_heads=3, hidden_size=72, **UNEVEN)),
    # None of the four factors is one, and that of scores is not what a head's size would make it.
    "granite": (
        GRANITE,
        dict(
            num_hidden_layers=3,
            tie_word_embeddings=True,
            embedding_multiplier=3.0,
            attention_multiplier=0.3,
            residual_multiplier=1.4,
            logits_scaling=1.7,
            rms_norm_eps=1e-6,
        ),
    ),
    # q, k and v have a bias and o has none, and the other way round.
    "seed_oss": (SEED_OSS, dict(num_hidden_layers=3, head_dim=24, rms_norm_eps=1e-6)),
    "seed_oss_out_bias": (
        SEED_OSS,
        dict(num_hidden_layers=2, head_dim=16, attention_bias=False, attention_out_bias=True, rms_norm_eps=1e-6),
    ),
    "arcee": (ARCEE, dict(num_hidden_layers=3, mlp_bias=True)),
    # A shared expert beside the others, of another width than they; the second layer has no experts.
    "qwen2_moe": (
        QWEN2_MOE,
        dict(
            num_hidden_layers=3,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=40,
            mlp_only_layers=[1],
            rms_norm_eps=1e-6,
        ),
    ),
    # Every other one of the first layers has the window; no width divides over any number of ranks.
    "qwen2_moe_balance": (
        QWEN2_MOE,
        dict(
            head_dim=24,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=29,
            shared_expert_intermediate_size=37,
            norm_topk_prob=True,
            qkv_bias=False,
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=2,
            output_router_logits=True,
            router_aux_loss_coef=0.2,
        ),
    ),
    # Three layers of four have the window, and the fourth is not turned.
    "exaone4": (EXAONE4, dict(head_dim=24, sliding_window=7, sliding_window_pattern=4)),
    # As the small ones: no window, and all layers are turned.
    "exaone4_whole": (
        EXAONE4,
        dict(
            num_hidden_layers=2,
            tie_word_embeddings=True,
            sliding_window=None,
            sliding_window_pattern=None,
            layer_types=["full_attention"] * 2,
        ),
    ),
    # Tied it would say the same token again and again.
    "gemma": (GEMMA, dict(num_hidden_layers=3, head_dim=24, num_key_value_heads=1)),
    # Half of each head turns, dims with their neighbours.
    "glm": (
        GLM,
        dict(
            num_hidden_layers=2,
            head_dim=24,
            attention_bias=False,
            eos_token_id=257,  # null would be the family's, beyond this vocabulary
            **rope("default", partial_rotary_factor=0.25),
        ),
    ),
    "glm4": (GLM4, dict(num_hidden_layers=3, head_dim=16, eos_token_id=257)),
    "olmoe": (OLMOE, dict(num_hidden_layers=2, num_experts=6, num_experts_per_tok=3, intermediate_size=56)),
    "olmoe_balance": (
        OLMOE,
        dict(
            num_hidden_layers=3,
            num_experts=5,
            num_experts_per_tok=2,
            intermediate_size=37,
            norm_topk_prob=True,
            output_router_logits=True,
            router_aux_loss_coef=0.2,
        ),
    ),
    "ernie4_5": (ERNIE, dict(num_hidden_layers=3, head_dim=24, use_bias=True)),
    "ministral": (MINISTRAL, dict(num_hidden_layers=3, head_dim=16, sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "cwm": (
        CWM,
        dict(
            num_hidden_layers=5,
            sliding_window=5,
            mlp_bias=True,
            eos_token_id=257,
            bos_token_id=256,
            **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
        ),
    ),
    "internlm3": (INTERNLM3, dict(num_hidden_layers=2, head_dim=24, attention_bias=True, mlp_bias=True)),
    "granite_hybrid": (GRANITE_HYBRID, dict(GRANITE_DENSE, position_embedding_type="rope", attention_bias=True)),
    "granite_hybrid_nope": (GRANITE_HYBRID, GRANITE_DENSE),
    "hunyuan": (HUNYUAN, dict(num_hidden_layers=3, head_dim=16, **rope("dynamic", factor=1.0, alpha=50.0))),
    "glm4_moe": (
        GLM4_MOE,
        dict(ROUTED, num_hidden_layers=3, head_dim=24, n_shared_experts=1, use_qk_norm=True, attention_bias=True),
    ),
    "glm4_moe_plain": (
        GLM4_MOE,
        dict(ROUTED, num_hidden_layers=2, head_dim=16, n_shared_experts=2, n_group=1, topk_group=1, norm_topk_prob=False, moe_intermediate_size=37),
    ),
    "dots1": (
        DOTS1,
        dict(
            ROUTED,
            num_hidden_layers=4,
            head_dim=16,
            n_shared_experts=2,
            sliding_window=6,
            max_window_layers=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
        ),
    ),
    "minimax_m2": (
        MINIMAX_M2,
        dict(
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=40,
            num_local_experts=6,
            num_experts_per_tok=2,
            output_router_logits=True,
            router_aux_loss_coef=0.2,
            rope_parameters={**PLAIN_ROPE, "partial_rotary_factor": 0.5},
        ),
    ),
    "deepseek_v2": (
        DEEPSEEK_V2,
        dict(
            LATENT,
            **{**ROUTED, "norm_topk_prob": False},
            num_hidden_layers=3,
            n_shared_experts=2,
            topk_method="group_limited_greedy",
            attention_bias=True,
            **rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=0.707, mscale_all_dim=0.707),
        ),
    ),
    "deepseek_v2_lite": (
        DEEPSEEK_V2,
        dict(
            WIDE_VALUES,
            num_hidden_layers=2,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=1,
            moe_intermediate_size=37,
        ),
    ),
    "deepseek_v3": (
        DEEPSEEK_V3,
        dict(
            LATENT,
            **ROUTED,
            num_hidden_layers=3,
            n_shared_experts=1,
            attention_bias=True,
            **rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.5),
        ),
    ),
    "deepseek_v3_plain": (
        DEEPSEEK_V3,
        dict(
            WIDE_VALUES,
            **{**ROUTED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
            num_hidden_layers=2,
            n_shared_experts=2,
            rope_interleave=False,
        ),
    ),
    "glm4_moe_lite": (
        GLM4_MOE_LITE,
        dict(
            {**LATENT, "v_head_dim": 16},
            **{key: value for key, value in ROUTED.items() if key != "first_k_dense_replace"},
            num_hidden_layers=3,
            n_shared_experts=1,
            mlp_layer_types=["sparse", "dense", "sparse"],
        ),
    ),
    "youtu": (YOUTU, dict(LATENT, num_hidden_layers=3, tie_word_embeddings=True, attention_bias=True)),
    # Limits that cut many gates and ups, sinks in layers with a window and without.
    "gpt_oss": (
        GPT_OSS,
        dict(
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=37,
            num_local_experts=6,
            num_experts_per_tok=2,
            sliding_window=7,
            swiglu_alpha=1.3,
            swiglu_limit=0.4,
            **rope("yarn", factor=8.0, original_max_position_embeddings=32, truncate=False),
        ),
    ),
    "gpt_oss_balance": (
        GPT_OSS,
        dict(
            num_hidden_layers=2,
            head_dim=16,
            intermediate_size=40,
            num_local_experts=4,
            num_experts_per_tok=3,
            sliding_window=64,
            attention_bias=False,
            output_router_logits=True,
            router_aux_loss_coef=0.2,
        ),
    ),
    # States whose sides are no multiples of what is computed together; tensors of the first have a key head's parts
    # beside each other, those of the others each kind.
    "qwen3_next": (
        QWEN3_NEXT,
        dict(
            DELTA,
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=40,
            mlp_only_layers=[1],
        ),
    ),
    "qwen3_5": (
        QWEN3_5,
        dict(
            DELTA,
            num_hidden_layers=3,
            head_dim=24,
            linear_num_key_heads=5,
            linear_num_value_heads=5,
            linear_value_head_dim=37,
            linear_conv_kernel_dim=3,
            attention_bias=True,
            tie_word_embeddings=True,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
    ),
    "qwen3_5_moe": (
        QWEN3_5_MOE,
        dict(
            DELTA,
            num_hidden_layers=2,
            head_dim=16,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=29,
            shared_expert_intermediate_size=37,
            output_router_logits=True,
            router_aux_loss_coef=0.2,
            layer_types=["full_attention", "linear_attention"],
        ),
    ),
    # Norms by mean and variance. Attention and feed-forward stand beside each other behind one norm, or each behind
    # its own, or one after the other.
    "cohere": (COHERE, dict(num_hidden_layers=3, tie_word_embeddings=True, logit_scale=0.7, attention_bias=True)),
    "cohere2": (COHERE2, dict(sliding_window=6, logit_scale=0.0625, layer_types=None)),
    "starcoder2": (STARCODER2, dict(num_hidden_layers=3, sliding_window=7, tie_word_embeddings=False, norm_epsilon=1e-3)),
    "starcoder2_plain": (STARCODER2, dict(num_hidden_layers=2, use_bias=False, hidden_act="gelu", tie_word_embeddings=False)),
    "stablelm": (STABLELM, dict(num_hidden_layers=2, use_qkv_bias=True, rope_parameters={**PLAIN_ROPE, "partial_rotary_factor": 0.5})),
    "stablelm_parallel": (STABLELM, dict(num_hidden_layers=3, use_parallel_residual=True, layer_norm_eps=1e-3)),
    "nemotron": (NEMOTRON, dict(num_hidden_layers=3, head_dim=24, attention_bias=True, mlp_bias=True, norm_eps=1e-3)),
    "gpt_neox": (GPT_NEOX, dict(num_hidden_layers=3, num_key_value_heads=4, **rope("linear", factor=2.0, partial_rotary_factor=0.25))),
    "gpt_neox_serial": (
        GPT_NEOX,
        dict(
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=6,
            hidden_size=72,
            intermediate_size=97,
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=False,
            hidden_act="gelu_fast",
            rope_parameters={**PLAIN_ROPE, "partial_rotary_factor": 0.5},
        ),
    ),
    # Texts are some times as long as the original context, by which queries are multiplied.
    "ministral3": (
        MINISTRAL3,
        dict(
            num_hidden_layers=2,
            head_dim=16,
            **rope("yarn", factor=16.0, original_max_position_embeddings=7, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3),
        ),
    ),
    "ministral3_window": (
        MINISTRAL3,
        dict(
            num_hidden_layers=2,
            head_dim=24,
            sliding_window=6,
            **rope("default", original_max_position_embeddings=5, llama_4_scaling_beta=0.1),
        ),
    ),
    "helium": (HELIUM, dict(num_hidden_layers=2, head_dim=16, attention_bias=True, mlp_bias=True)),
    "jais2": (JAIS2, dict(num_hidden_layers=3, layer_norm_eps=1e-3)),
    "vaultgemma": (
        VAULTGEMMA,
        dict(
            num_hidden_layers=3,
            head_dim=24,
            sliding_window=6,
            query_pre_attn_scalar=40,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=15.0,
        ),
    ),
    "solar_open": (
        SOLAR_OPEN,
        dict(
            {key: value for key, value in ROUTED.items() if key != "first_k_dense_replace"},
            num_hidden_layers=2,
            head_dim=24,
            n_shared_experts=2,
            attention_bias=True,
        ),
    ),
    # Learned positions. Of GPT-2's matrices rows are of inputs, and q, k and v stand in one.
    "gpt2": (
        GPT2,
        dict(
            num_hidden_layers=3,
            num_key_value_heads=4,
            n_inner=97,
            scale_attn_by_inverse_layer_idx=True,
            tie_word_embeddings=True,
        ),
    ),
    "gpt2_untied": (
        GPT2,
        dict(num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=6, hidden_size=72, scale_attn_weights=False, activation_function="relu"),
    ),
    "gpt_neo": (
        GPT_NEO,
        dict(
            num_hidden_layers=3,
            num_key_value_heads=4,
            attention_types=[[["global", "local"], 1], [["local"], 1]],
            window_size=6,
            layer_norm_epsilon=1e-3,
            tie_word_embeddings=True,
        ),
    ),
    "opt": (OPT, dict(num_hidden_layers=3, num_key_value_heads=4, ffn_dim=97)),
    "opt_bare": (
        OPT,
        dict(num_hidden_layers=4, num_key_value_heads=4, ffn_dim=96, enable_bias=False, activation_function="gelu", tie_word_embeddings=True),
    ),
    # One key head for all, or q, k and v of each head together.
    "gpt_bigcode": (GPT_BIGCODE, dict(num_hidden_layers=3, num_key_value_heads=1, n_inner=97, tie_word_embeddings=True)),
    "gpt_bigcode_heads": (GPT_BIGCODE, dict(num_hidden_layers=2, num_key_value_heads=4, multi_query=False)),
    # A bias on logits.
    "phi": (PHI, dict(num_hidden_layers=3, layer_norm_eps=1e-3, rope_parameters={**PLAIN_ROPE, "partial_rotary_factor": 0.5})),
    "phi_tied": (
        PHI,
        dict(
            num_hidden_layers=2,
            tie_word_embeddings=True,
            hidden_act="gelu",
            **rope("linear", factor=2.0, partial_rotary_factor=0.25),
        ),
    ),
    "gptj": (GPTJ, dict(num_hidden_layers=3, num_key_value_heads=4, n_inner=97, rotary_dim=6)),
}
# Their keys in a cache turn as the text stood when they were written, other than in a forward of the whole
# text: generation is no reference for them.
BY_LENGTH = ["llama_rope_dynamic", "llama_rope_longrope"]
# Families whose files fuse matrices, rows of one behind those of another: (fused, parts).
FUSED = {
    "phi3": [
        ("self_attn.qkv_proj", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]),
    ],
    "glm": [("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"])],
    "glm4": [("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"])],
    "granitemoehybrid": [
        ("shared_mlp.input_linear", ["mlp.gate_proj", "mlp.up_proj"]),
        ("shared_mlp.output_linear", ["mlp.down_proj"]),
    ],
    "hunyuan_v1_dense": [
        ("self_attn.query_layernorm", ["self_attn.q_norm"]),
        ("self_attn.key_layernorm", ["self_attn.k_norm"]),
    ],
}
# Names in files, and Keel's.
RENAMED = {
    "gpt_neox": [
        ("gpt_neox.", "model."),
        ("embed_in.", "embed_tokens."),
        ("attention.query_key_value.", "self_attn.query_key_value."),
        ("attention.dense.", "self_attn.o_proj."),
        ("dense_h_to_4h.", "up_proj."),
        ("dense_4h_to_h.", "down_proj."),
        ("final_layer_norm.", "norm."),
        ("embed_out.", "lm_head."),
    ],
    "gpt2": [
        ("transformer.", "model."),
        ("wte.", "embed_tokens."),
        ("wpe.", "embed_positions."),
        (".h.", ".layers."),
        ("ln_1.", "input_layernorm."),
        ("attn.c_attn.", "self_attn.query_key_value."),
        ("attn.c_proj.", "self_attn.o_proj."),
        ("ln_2.", "post_attention_layernorm."),
        ("c_fc.", "up_proj."),
        ("mlp.c_proj.", "mlp.down_proj."),
        ("ln_f.", "norm."),
    ],
    "gpt_neo": [
        ("transformer.", "model."),
        ("wte.", "embed_tokens."),
        ("wpe.", "embed_positions."),
        (".h.", ".layers."),
        ("ln_1.", "input_layernorm."),
        ("attn.attention.", "self_attn."),
        ("out_proj.", "o_proj."),
        ("ln_2.", "post_attention_layernorm."),
        ("c_fc.", "up_proj."),
        ("mlp.c_proj.", "mlp.down_proj."),
        ("ln_f.", "norm."),
    ],
    "gptj": [
        ("transformer.", "model."),
        ("wte.", "embed_tokens."),
        (".h.", ".layers."),
        ("ln_1.", "input_layernorm."),
        ("attn.", "self_attn."),
        ("out_proj.", "o_proj."),
        ("fc_in.", "up_proj."),
        ("fc_out.", "down_proj."),
        ("ln_f.", "norm."),
    ],
    "opt": [
        ("decoder.final_layer_norm.", "norm."),
        ("decoder.", ""),
        ("self_attn_layer_norm.", "input_layernorm."),
        ("out_proj.", "o_proj."),
        ("final_layer_norm.", "post_attention_layernorm."),
        ("fc1.", "mlp.up_proj."),
        ("fc2.", "mlp.down_proj."),
    ],
    "phi": [
        ("self_attn.dense.", "self_attn.o_proj."),
        ("mlp.fc1.", "mlp.up_proj."),
        ("mlp.fc2.", "mlp.down_proj."),
        ("final_layernorm.", "norm."),
    ],
    "starcoder2": [("c_fc.", "up_proj."), ("c_proj.", "down_proj.")],
    "vaultgemma": [("pre_feedforward_layernorm.", "post_attention_layernorm.")],
}
RENAMED["gpt_bigcode"] = RENAMED["gpt2"]
# transformers computes scores with a softcap, and sinks, and GPT-Neo's, in one way alone.
EAGER_ONLY = ["gemma2", "vaultgemma", "gpt_oss", "gpt_oss_balance", "gpt_neo", "gptj"]
DELTA_MODELS = [name for name in MODELS if name.startswith(("qwen3_next", "qwen3_5"))]
UNEVEN_MODELS = [name for name, (_, changes) in MODELS.items() if "vocab_size" in changes]
# How the names of norms' weights, of embeddings and of learned positions end.
NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")
EMBEDDINGS = ("embed_tokens.weight", "embed_in.weight", "wte.weight")
POSITIONS = ("wpe.weight", "embed_positions.weight")
# Written in several files with an index, as models above a few gigabytes are.
SHARDED = "qwen3"
# The same weights once more, with config.json spelled as transformers 4 wrote it.
# With all experts of a layer in two tensors, as save_pretrained(save_original_format=False) writes them.
STACKED = {"qwen3_moe_stacked": "qwen3_moe", "mixtral_stacked": "mixtral", "minimax_m2_stacked": "minimax_m2", "qwen3_5_moe_stacked": "qwen3_5_moe"}
V4_SPELLING = {"llama_rope_scaled_v4": "llama_rope_scaled", "qwen2_v4": "qwen2"}


def build(name):
    """The model `name` with its random weights, in float32 and evaluation mode."""
    (config_class, model_class), changes = MODELS[name]
    settings = {**BASE, "rope_parameters": dict(PLAIN_ROPE), **changes}
    config = config_class(
        **settings, dtype="float32", attn_implementation="eager", experts_implementation="eager"
    )
    model = model_class(config).float().eval()
    generator = torch.Generator().manual_seed(1 + list(MODELS).index(name))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter_name.endswith(NORMS):
                # Gemma and Nemotron add one to them, and Qwen3-Next to all but one.
                of_one = name.startswith(("gemma", "nemotron", "vaultgemma")) or name in DELTA_MODELS and "linear_attn" not in parameter_name
                parameter.copy_((0.0 if of_one else 1.0) + 0.2 * noise)
            elif parameter_name.endswith("A_log"):
                parameter.copy_(noise - 2)  # of what was said earlier much is kept
            elif parameter_name.endswith(".bias"):
                parameter.copy_(0.1 * noise)
            elif parameter_name.endswith(EMBEDDINGS):
                size = 0.07 if config.tie_word_embeddings else 0.5
                parameter.copy_((0.4 * size if "gemma" in name else size) * noise)  # it scales them
            elif parameter_name.endswith(POSITIONS):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(0.9 / math.sqrt(parameter.shape[-1]) * noise)
        for buffer in constants(model).values():
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    return model


def constants(model):
    """What is saved with the weights and never trained, by the model's names."""
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}


def canonical(model, tensors):
    """`tensors`, by the names of the model's parameters, under those by which Keel has them: as save_pretrained names
    them, experts one by one, and no two weights in one."""
    mixtral = model.config.model_type in ["mixtral", "minimax_m2"]
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    saved = {}
    for name, tensor in tensors.items():
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        stem, _, last = name.rpartition(".")
        together = model.config.model_type == "gpt_oss"
        experts = tensor.dim() == 3 and not together and last != "weight"
        for expert, part in enumerate(tensor if experts else []):
            if last == "down_proj":
                saved[f"{stem}.{expert}.{down}.weight"] = part
            else:
                saved[f"{stem}.{expert}.{gate}.weight"], saved[f"{stem}.{expert}.{up}.weight"] = part.chunk(2)
        if not experts:
            saved[name] = tensor
    return unfused(model.config, saved)


def renamed(config, name):
    """A tensor's name in files as Keel has it."""
    for theirs, ours in RENAMED.get(config.model_type, []):
        name = name.replace(theirs, ours)
    return name


def unfused(config, tensors):
    """The tensors with those taken apart that a family's files fuse."""
    result = {renamed(config, name): tensor for name, tensor in tensors.items()}
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = getattr(config, "shared_intermediate_size", config.intermediate_size)
    rows = {
        "self_attn.q_proj": config.num_attention_heads * head,
        "self_attn.k_proj": config.num_key_value_heads * head,
        "self_attn.v_proj": config.num_key_value_heads * head,
        "mlp.gate_proj": width,
        "mlp.up_proj": width,
        "mlp.down_proj": config.hidden_size,
        "self_attn.q_norm": head,
        "self_attn.k_norm": head,
    }
    for fused, parts in FUSED.get(config.model_type, []):
        for name in [name for name in tensors if fused in name]:
            pieces = result.pop(name).split([rows[part] for part in parts])
            result.update({name.replace(fused, part): piece for part, piece in zip(parts, pieces)})
    return result


def other_attention(name):
    return "eager" if name in EAGER_ONLY else "sdpa"


def save(name, model, directory):
    """Writes config.json and safetensors."""
    model.save_pretrained(directory, max_shard_size="150KB" if name == SHARDED else "1GB")


def spell_as_v4(directory):
    """Rewrites config.json in place: rope_theta, rope_scaling and torch_dtype."""
    path = pathlib.Path(directory) / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def tokens(name, count):
    """`count` token ids that depend on `name` alone; its first word is the model's."""
    draw = random.Random("tokens of " + name)
    most = UNEVEN["vocab_size"] if name.split()[0] in UNEVEN_MODELS else BASE["vocab_size"]
    return [draw.randrange(most) for _ in range(count)]
