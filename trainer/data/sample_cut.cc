#include "trainer/data/sample_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "trainer/data/rows/ready_ids.h"

namespace keel::trainer {

Result<SampleCut> SampleCut::Make(std::shared_ptr<const TokenStore> store,
                                  const CutOptions& options) {
  SampleCut cut;
  cut.store_ = std::move(store);
  cut.options_ = options;
  const int64_t length = options.max_length;
  switch (options.packing) {
    case Packing::kStream:
      cut.size_ = (std::max<int64_t>(0, cut.store_->tokens() - 1) + length - 1) / length;
      return cut;
    case Packing::kWrapped:
      cut.size_ = (cut.store_->tokens() - cut.store_->documents() + length - 1) / length;
      return cut;
    case Packing::kNone:
    case Packing::kBestFit:
      break;
  }
  KEEL_RETURN_IF_ERROR(cut.CutDocuments());
  cut.size_ = std::ssize(cut.pieces_);
  if (options.packing == Packing::kNone) return cut;
  if (std::ssize(cut.pieces_) > std::numeric_limits<int32_t>::max() ||
      length > std::numeric_limits<int32_t>::max()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {} documents are more than data.packing best_fit packs; use "
                              "wrapped",
                              options.name, cut.size_));
  }
  std::vector<int32_t> lengths;
  lengths.reserve(cut.pieces_.size());
  for (const Piece& piece : cut.pieces_) lengths.push_back(static_cast<int32_t>(piece.length - 1));
  cut.bins_ = PackBestFit(lengths, static_cast<int32_t>(length));
  cut.size_ = cut.bins_.size();
  return cut;
}

Result<bool> SampleCut::Teaches(const Piece& piece) const {
  if (store_->learns_all()) return true;
  std::vector<uint8_t> learn(static_cast<size_t>(piece.length) - 1);
  KEEL_RETURN_IF_ERROR(store_->Read(piece.begin + 1, {}, learn));
  return std::find(learn.begin(), learn.end(), 1) != learn.end();
}

Status SampleCut::CutDocuments() {
  const int64_t limit = options_.max_length + 1;
  int64_t end = 0;
  for (int64_t d = 0; d < store_->documents(); ++d) {
    Piece piece{end, 0};
    end = store_->Begin(d + 1);
    piece.length = end - piece.begin;
    if (options_.learns_all) {
      for (; piece.begin + 1 < end; piece.begin += options_.max_length)
        pieces_.push_back({piece.begin, std::min(limit, end - piece.begin)});
      continue;
    }
    if (piece.length > limit) {
      switch (options_.truncation) {
        case Truncation::kError:
          return Status(
              StatusCode::kInvalidData,
              fmt::format("{}: document {}: {} tokens, of which {} are inputs, more than "
                          "data.max_length {}; raise it, or set data.truncation to "
                          "right, left or skip",
                          options_.name, d, piece.length, piece.length - 1, options_.max_length));
        case Truncation::kSkip:
          ++skipped_;
          continue;
        case Truncation::kRight:
          break;
        case Truncation::kLeft:
          piece.begin = end - limit;
          break;
      }
      piece.length = limit;
      ++cut_;
    }
    // A document that teaches nothing only costs time.
    bool teaches = piece.length >= 2;
    if (teaches) {
      KEEL_ASSIGN_OR_RETURN(teaches, Teaches(piece));
    }
    if (teaches) {
      pieces_.push_back(piece);
    } else {
      ++skipped_;
      ++unlearnt_;
    }
  }
  return Status::Ok();
}

std::vector<SampleCut::Piece> SampleCut::Pieces(int64_t i) const {
  std::vector<Piece> pieces;
  const int64_t first = i * options_.max_length;
  switch (options_.packing) {
    case Packing::kNone:
      pieces.push_back(pieces_[static_cast<size_t>(i)]);
      break;
    case Packing::kBestFit:
      for (const int32_t item : bins_.Items(i))
        pieces.push_back(pieces_[static_cast<size_t>(item)]);
      break;
    case Packing::kStream:
      pieces.push_back({first, std::min(options_.max_length + 1, store_->tokens() - first)});
      break;
    case Packing::kWrapped: {
      // Document d has an input less than tokens, so its inputs begin d places before its tokens.
      const auto inputs_begin = [&](int64_t d) { return store_->Begin(d) - d; };
      int64_t low = 0, high = store_->documents();
      while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (inputs_begin(middle) <= first ? low : high) = middle;
      }
      int64_t at = first;
      const int64_t last = std::min(first + options_.max_length, inputs_begin(store_->documents()));
      for (int64_t d = low; at < last; ++d) {
        const int64_t count = std::min(last, inputs_begin(d + 1)) - at;
        if (count > 0) pieces.push_back({at + d, count + 1});
        at += count;
      }
      break;
    }
  }
  return pieces;
}

Result<Sample> SampleCut::Read(int64_t i) const {
  Sample sample;
  sample.id = i;
  sample.pieces.clear();
  for (const Piece& piece : Pieces(i)) {
    const size_t before = sample.tokens.size();
    sample.pieces.push_back(static_cast<int64_t>(before));
    sample.tokens.resize(before + static_cast<size_t>(piece.length));
    sample.learn.resize(sample.tokens.size());
    KEEL_RETURN_IF_ERROR(store_->Read(piece.begin, std::span(sample.tokens).subspan(before),
                                      std::span(sample.learn).subspan(before)));
  }
  if (options_.learns_all) std::fill(sample.learn.begin(), sample.learn.end(), uint8_t{1});
  KEEL_RETURN_IF_ERROR(CheckTokens(sample.tokens, options_.vocab_size, options_.name));
  return sample;
}

int64_t SampleCut::inputs(int64_t i) const {
  int64_t count = 0;
  for (const Piece& piece : Pieces(i)) count += piece.length - 1;
  return count;
}

Result<int64_t> SampleCut::targets(int64_t i) const {
  if (options_.learns_all || store_->learns_all()) return inputs(i);
  int64_t count = 0;
  std::vector<uint8_t> learn;
  for (const Piece& piece : Pieces(i)) {
    learn.resize(static_cast<size_t>(piece.length) - 1);
    KEEL_RETURN_IF_ERROR(store_->Read(piece.begin + 1, {}, learn));
    count += std::count(learn.begin(), learn.end(), 1);
  }
  return count;
}

}  // namespace keel::trainer
