#include "model/layers/block.h"

#include "model/ops/decode_ops.h"
#include "parallel/tensor/regions.h"
#include "parallel/tensor/scale.h"

namespace keel::model {

namespace {

// `Way`: how each part is computed. Enter takes the stream, normed, for what comes next; Leave adds
// what came of it, normed and scaled, to the stream. Beside keeps what came of the mixer for Join,
// which adds what came of the feed-forward, of the same stream.
template <typename Way>
void RunInOrder(const Block& block, Way& way) {
  way.Enter(block.attention_in_norm);
  std::visit([&](const auto& mixer) { way.Mix(mixer); }, block.mixer);
  if (block.parallel) {
    way.Beside(block.ffn_in_norm);
  } else {
    way.Leave(block.attention_out_norm);
    way.Enter(block.ffn_in_norm);
  }
  std::visit([&](const auto& feed_forward) { way.Feed(feed_forward); }, block.feed_forward);
  if (block.parallel) way.Join();
  way.Leave(block.ffn_out_norm);
}

class Training {
 public:
  Training(const Block& block, const TrainPass& pass, Block::Stream in)
      : block_(block), pass_(pass), stream_(std::move(in)) {}

  void Enter(const Norm& norm) {
    if (added_.defined() && norm.used()) {
      const AddedNorm both = norm.ForwardSum(stream_.x, added_);
      stream_.x = both.sum;
      y_ = both.normed;
      added_.reset();
    } else {
      y_ = Normed(stream().x, norm);
    }
    input_ = y_;
  }
  template <typename Mixer>
  void Mix(const Mixer& mixer) {
    y_ = mixer.Forward(pass_, y_);
  }
  void Beside(const Norm& norm) {
    mixed_ = y_;
    y_ = norm.used() ? norm.Forward(stream_.x) : input_;
  }
  template <typename Dense>
  void Feed(const Dense& dense) {
    y_ = dense.Forward(pass_, y_);
  }
  void Feed(const MoeFeedForward& experts) {
    y_ = experts.Forward(pass_.tp, y_, pass_.counted, stream_.load);
  }
  void Join() { y_ = mixed_ + y_; }
  void Leave(const Norm& norm) {
    added_ = Normed(y_, norm);
    if (block_.residual_scale != 1) added_ = added_ * block_.residual_scale;
  }
  const Block::Stream& stream() {
    if (added_.defined()) stream_.x = stream_.x + added_;
    added_.reset();
    return stream_;
  }

 private:
  static at::Tensor Normed(const at::Tensor& x, const Norm& norm) {
    return norm.used() ? norm.Forward(x) : x;
  }

  const Block& block_;
  const TrainPass& pass_;
  Block::Stream stream_;
  at::Tensor
      added_;  // what is to be added to the stream: with the norm of the sum, if that is next
  at::Tensor y_;
  at::Tensor input_, mixed_;  // of a block whose parts stand beside each other
};

class Decoding {
 public:
  Decoding(const Block& block, DecodePass& pass, int64_t layer)
      : block_(block), pass_(pass), layer_(layer), out_(&pass.projected) {}

  void Enter(const Norm& norm) {
    if (norm.used() && pending_) {
      norm.SumInto(pass_.x, pass_.projected, pass_.normed);
      pending_ = false;
    } else {
      Add();
      if (norm.used()) norm.Into(pass_.x, pass_.normed);
    }
    input_ = norm.used() ? &pass_.normed : &pass_.x;
  }
  void Mix(const AttentionLayer& attention) {
    attention.Into(pass_, layer_, *input_, *out_);
    Sum();
    if (attention.output_bias != nullptr) AddInto(*out_, attention.output_bias->value);
  }
  void Mix(const DeltaMixer& mixer) {
    mixer.Into(pass_, layer_, *input_, *out_);
    Sum();
  }
  void Beside(const Norm& norm) {
    if (norm.used()) norm.Into(pass_.x, pass_.normed);
    out_ = &pass_.beside;
  }
  template <typename Dense>
  void Feed(const Dense& dense) {
    dense.Into(pass_, *input_, *out_);
    Sum();
    if (dense.down_bias != nullptr) AddInto(*out_, dense.down_bias->value);
  }
  void Feed(const MoeFeedForward& experts) {
    experts.Into(*input_, *out_, pass_.arithmetic);
    Sum();
  }
  void Join() {
    AddInto(pass_.projected, pass_.beside);
    out_ = &pass_.projected;
  }
  void Leave(const Norm& norm) {
    if (norm.used()) norm.Into(pass_.projected, pass_.projected);
    if (block_.residual_scale != 1) parallel::ScaleInPlace(pass_.projected, block_.residual_scale);
    pending_ = true;
  }
  // What has not been added yet.
  void Add() {
    if (pending_) AddInto(pass_.x, pass_.projected);
    pending_ = false;
  }

 private:
  void Sum() {
    parallel::SumOverRanks(*out_, pass_.group,
                           pass_.arithmetic == parallel::Arithmetic::kBatchInvariant);
  }

  const Block& block_;
  DecodePass& pass_;
  const int64_t layer_;
  const at::Tensor* input_ = nullptr;
  at::Tensor* out_;       // what mixer or feed-forward give
  bool pending_ = false;  // pass_.projected is to be added to the stream
};

}  // namespace

Block::Stream Block::Forward(const TrainPass& pass, const Stream& in) const {
  Training way(*this, pass, in);
  RunInOrder(*this, way);
  return way.stream();
}

void Block::Decode(DecodePass& pass, int64_t layer) const {
  Decoding way(*this, pass, layer);
  RunInOrder(*this, way);
  way.Add();
}

bool Block::DecodesWithoutHost() const {
  if (!std::holds_alternative<AttentionLayer>(mixer)) return false;
  const auto* const experts = std::get_if<MoeFeedForward>(&feed_forward);
  return experts == nullptr || experts->SortsInPlace();
}

}  // namespace keel::model
