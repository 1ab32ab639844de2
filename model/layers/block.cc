#include "model/layers/block.h"

#include "model/ops/decode_ops.h"
#include "parallel/tensor/regions.h"
#include "parallel/tensor/scale.h"

namespace keel::model {

namespace {

// `Way`: how each part is computed. Enter takes the stream, normed, for what comes next; Leave adds
// what came of it, normed and scaled, to the stream.
template <typename Way>
void RunInOrder(const Block& block, Way& way) {
  way.Enter(block.attention_in_norm);
  std::visit([&](const auto& mixer) { way.Mix(mixer); }, block.mixer);
  way.Leave(block.attention_out_norm);
  way.Enter(block.ffn_in_norm);
  std::visit([&](const auto& feed_forward) { way.Feed(feed_forward); }, block.feed_forward);
  way.Leave(block.ffn_out_norm);
}

class Training {
 public:
  Training(const Block& block, const TrainPass& pass, Block::Stream in)
      : block_(block), pass_(pass), stream_(std::move(in)) {}

  void Enter(parallel::Parameter* norm) {
    if (added_.defined() && norm != nullptr) {
      const AddedNorm both = AddRmsNorm(stream_.x, added_, *norm, block_.norm);
      stream_.x = both.sum;
      y_ = both.normed;
      added_.reset();
    } else {
      y_ = Normed(stream().x, norm);
    }
  }
  template <typename Mixer>
  void Mix(const Mixer& mixer) {
    y_ = mixer.Forward(pass_, y_);
  }
  template <typename Dense>
  void Feed(const Dense& dense) {
    y_ = dense.Forward(pass_, y_);
  }
  void Feed(const MoeFeedForward& experts) {
    y_ = experts.Forward(pass_.tp, y_, pass_.counted, stream_.load);
  }
  void Leave(parallel::Parameter* norm) {
    added_ = Normed(y_, norm);
    if (block_.residual_scale != 1) added_ = added_ * block_.residual_scale;
  }
  const Block::Stream& stream() {
    if (added_.defined()) stream_.x = stream_.x + added_;
    added_.reset();
    return stream_;
  }

 private:
  at::Tensor Normed(const at::Tensor& x, parallel::Parameter* norm) const {
    return norm != nullptr ? RmsNorm(x, *norm, block_.norm) : x;
  }

  const Block& block_;
  const TrainPass& pass_;
  Block::Stream stream_;
  at::Tensor
      added_;  // what is to be added to the stream: with the norm of the sum, if that is next
  at::Tensor y_;
};

class Decoding {
 public:
  Decoding(const Block& block, DecodePass& pass, int64_t layer)
      : block_(block), pass_(pass), layer_(layer) {}

  void Enter(const parallel::Parameter* norm) {
    if (norm != nullptr && pending_) {
      AddRmsNormInto(pass_.x, pass_.projected, norm->value, block_.norm, pass_.normed);
      pending_ = false;
    } else {
      Add();
      if (norm != nullptr) RmsNormInto(pass_.x, norm->value, block_.norm, pass_.normed);
    }
    input_ = norm != nullptr ? &pass_.normed : &pass_.x;
  }
  void Mix(const AttentionLayer& attention) {
    attention.Into(pass_, layer_, *input_, pass_.projected);
    Sum();
    if (attention.output_bias != nullptr) AddInto(pass_.projected, attention.output_bias->value);
  }
  void Mix(const DeltaMixer& mixer) {
    mixer.Into(pass_, layer_, *input_, pass_.projected);
    Sum();
  }
  template <typename Dense>
  void Feed(const Dense& dense) {
    dense.Into(pass_, *input_, pass_.projected);
    Sum();
    if (dense.down_bias != nullptr) AddInto(pass_.projected, dense.down_bias->value);
  }
  void Feed(const MoeFeedForward& experts) {
    experts.Into(*input_, pass_.projected, pass_.arithmetic);
    Sum();
  }
  void Leave(const parallel::Parameter* norm) {
    if (norm != nullptr) RmsNormInto(pass_.projected, norm->value, block_.norm, pass_.projected);
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
    parallel::SumOverRanks(pass_.projected, pass_.group,
                           pass_.arithmetic == parallel::Arithmetic::kBatchInvariant);
  }

  const Block& block_;
  DecodePass& pass_;
  const int64_t layer_;
  const at::Tensor* input_ = nullptr;
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
