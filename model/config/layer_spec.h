// LayerSpec: what one block of a decoder is, as data. Torch-free.
//
// A family (model/families/) gives one for each of its layers, and the decoder's forward and its
// paged decode are both driven by it. Every block is attention, or what mixes tokens in its place,
// and then a feed-forward, or several of which each token takes a few, each added to the stream
// that runs through the blocks; the spec says what stands around and in them.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/config/moe_spec.h"

namespace keel::model {

// Where the norms of attention and feed-forward stand: before what is normalised goes in, after it
// comes out (before it is added), or both.
enum class NormPlacement { kPre, kPost, kSandwich };

// By the root of the mean of squares, or by mean and variance.
enum class NormKind { kRms, kLayer };

// How q, k and v of a layer stand in files: each in a tensor of its own, or in one, either one
// behind the other or those of each head together.
enum class QkvTensors { kApart, kJoined, kByHead };

// Of queries and keys: every head by itself with one weight for all, or all heads of a token
// together, before they are turned by their positions; or every head by itself after that.
enum class QkNorm { kNone, kPerHead, kFullWidth, kPerTurnedHead };

// Of the feed-forward's gate (the first two), or in a feed-forward without one (but the first).
enum class Activation { kSilu, kGeluTanh, kRelu2, kGelu, kRelu };

// Which of HfConfig's tables turns queries and keys.
enum class RopeChoice { kNone, kMain, kLocal };

// One gated feed-forward for all tokens, experts behind a router, or one without a gate: down of
// the activation of up.
enum class FfnKind { kDense, kMoe, kPlain };

// Multi-head latent attention (DeepSeek-V2, 2024, 2.1): queries, keys and values come of a few dims
// that all heads share, and of a head's query and key only the last dims turn, of keys the same for
// all heads. A head's dims in attention are `head_dim` of HfConfig, whichever is more of queries'
// and values'; what is left over is 0.
struct LatentSpec {
  int64_t q_rank = 0;  // dims that queries come of; 0: of the stream itself
  int64_t kv_rank = 0;
  int64_t plain_dims = 0;   // of a head's query and key, that do not turn
  int64_t turned_dims = 0;  // and that do
  int64_t value_dims = 0;   // of a head
  friend bool operator==(const LatentSpec& a, const LatentSpec& b) = default;

  bool used() const { return kv_rank > 0; }
  int64_t key_dims() const { return plain_dims + turned_dims; }
  int64_t kv_dims() const { return plain_dims + value_dims; }  // that come of kv_rank, of a head
};

// What mixes the tokens of a text: attention, or a state that each token changes.
enum class Mixer { kAttention, kDeltaRule };

// The gated delta rule (model/ops/delta_rule.h) as Qwen3-Next (Qwen, 2025) has it: queries, keys
// and values, of which each key head serves as many value heads, after a short convolution; and its
// results, normed by head, times the silu of a gate.
struct DeltaSpec {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;  // of a head
  int64_t value_dim = 0;
  int64_t taps = 0;  // tokens that the convolution sees
  // All that belongs to a key head stands together in files, in two tensors; else each kind does.
  bool by_key_head = false;
  friend bool operator==(const DeltaSpec& a, const DeltaSpec& b) = default;

  int64_t per_key() const { return key_heads > 0 ? value_heads / key_heads : 0; }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
};

// Of the norms behind attention and around the feed-forward, in a block that has one behind them.
struct NormNames {
  std::string_view attention_out = "post_attention_layernorm";
  std::string_view ffn_in = "pre_feedforward_layernorm";
  std::string_view ffn_out = "post_feedforward_layernorm";
  friend bool operator==(const NormNames& a, const NormNames& b) = default;
};

struct LayerSpec {
  Mixer mixer = Mixer::kAttention;
  NormPlacement norms = NormPlacement::kPre;
  NormNames norm_names = {};
  NormKind norm_kind = NormKind::kRms;
  bool norm_bias = false;  // what norms add
  // Norms multiply by 1 + weight in place of the weight.
  bool norm_plus_one = false;
  // Attention and feed-forward both read what comes into the block, and are added to it together
  // (Wang & Komatsuzaki 2021); with `one_norm` behind the same norm.
  bool parallel = false;
  bool one_norm = false;
  QkNorm qk_norm = QkNorm::kNone;
  Activation activation = Activation::kSilu;
  RopeChoice rope = RopeChoice::kMain;
  int64_t window = 0;        // tokens that a token sees, itself among them; 0: all before it
  double score_scale = 0;    // of q k^T; 0: 1 / sqrt(head_dim)
  double score_softcap = 0;  // scores are softcap * tanh(score / softcap); 0: not
  bool sinks = false;        // each head has one score more (model/ops/attention_sinks.h)
  QkvTensors qkv = QkvTensors::kApart;
  bool input_rows = false;    // matrices of files have a row for each input, not for each output
  bool gated = false;         // what a head's attention gives is multiplied by a sigmoid of its own
  double residual_scale = 1;  // of what attention and feed-forward add to the stream
  FfnKind ffn = FfnKind::kDense;
  MoeSpec moe = {};  // with kMoe
  friend bool operator==(const LayerSpec& a, const LayerSpec& b) = default;

  bool norm_in() const { return norms != NormPlacement::kPost; }
  bool norm_of_ffn() const { return norm_in() && !(parallel && one_norm); }
  bool norm_out() const { return norms != NormPlacement::kPre; }
  // The name of the norm on the feed-forward's input; a block of kPre has no norm behind attention
  // and gives that norm's name to this one.
  std::string_view ffn_in_norm() const {
    return norms == NormPlacement::kPre ? "post_attention_layernorm" : norm_names.ffn_in;
  }
};

}  // namespace keel::model
