#include "trainer/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/data/split.h"

namespace keel::trainer {

namespace {

// Stream of the draws that decide which samples are set apart.
constexpr uint64_t kSplitStream = 0x73706c6974;

}  // namespace

Result<Dataset> Dataset::Load(const std::vector<std::string>& files, const DatasetOptions& options,
                              const TextRules& rules) {
  Dataset data;
  const RowOptions rows{options.keys, rules, !options.sft};
  for (const std::string& path : files) {
    KEEL_RETURN_IF_ERROR(ReadRows(
        path, rows, &data.warnings_, [&](TokenRow row, const std::string& where) -> Status {
          const Status known = CheckTokens(row.tokens, options.vocab_size, where);
          if (!known.ok()) return known;
          if (options.sft) {
            const auto limit = static_cast<size_t>(options.max_length) + 1;
            if (row.tokens.size() > limit) {
              switch (options.truncation) {
                case Truncation::kError:
                  return Status(StatusCode::kInvalidData,
                                fmt::format("{}: {} tokens, more than data.max_length {}; raise "
                                            "it, or set data.truncation "
                                            "to right, left or skip",
                                            where, row.tokens.size() - 1, options.max_length));
                case Truncation::kSkip:
                  ++data.skipped_rows_;
                  return Status::Ok();
                case Truncation::kRight:
                  row.tokens.resize(limit);
                  row.learn.resize(limit);
                  break;
                case Truncation::kLeft: {
                  const auto extra = static_cast<std::ptrdiff_t>(row.tokens.size() - limit);
                  row.tokens.erase(row.tokens.begin(), row.tokens.begin() + extra);
                  row.learn.erase(row.learn.begin(), row.learn.begin() + extra);
                  break;
                }
              }
            }
            // A row that teaches nothing only costs time.
            if (row.tokens.size() < 2 ||
                std::find(row.learn.begin() + 1, row.learn.end(), 1) == row.learn.end()) {
              ++data.skipped_rows_;
              return Status::Ok();
            }
          }
          const auto begin = static_cast<int64_t>(data.tokens_.size());
          data.tokens_.insert(data.tokens_.end(), row.tokens.begin(), row.tokens.end());
          data.learn_.insert(data.learn_.end(), row.learn.begin(), row.learn.end());
          if (options.sft)
            data.Cut(begin, static_cast<int64_t>(data.tokens_.size()), options.max_length, true);
          return Status::Ok();
        }));
  }
  if (!options.sft) {
    std::fill(data.learn_.begin(), data.learn_.end(), uint8_t{1});
    data.Cut(0, static_cast<int64_t>(data.tokens_.size()), options.max_length, false);
  }
  if (data.samples_.empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("no sample to train on in {} ({} rows left out)",
                              fmt::join(files, ", "), data.skipped_rows_));
  }
  data.Seal();
  return data;
}

void Dataset::Cut(int64_t begin, int64_t end, int64_t max_length, bool sft) {
  const auto add = [&](int64_t first, int64_t length) {
    int64_t targets = 0;
    for (int64_t i = first + 1; i < first + length; ++i) targets += learn_[static_cast<size_t>(i)];
    samples_.push_back({first, length, targets, static_cast<int64_t>(samples_.size())});
  };
  if (sft) {
    add(begin, end - begin);
    return;
  }
  // Neighbours share one token: the last target of one is the first input of the next.
  for (int64_t first = begin; first + 1 < end; first += max_length)
    add(first, std::min(max_length + 1, end - first));
}

void Dataset::Seal() {
  Hasher128 hasher;
  hasher.Update(std::as_bytes(std::span(tokens_)));
  hasher.Update(std::as_bytes(std::span(learn_)));
  for (const Entry& entry : samples_) hasher.Update(std::as_bytes(std::span(&entry, 1)));
  digest_ = hasher.Finish();
}

Dataset Dataset::SplitOff(double share, uint64_t seed) {
  Dataset apart;
  apart.tokens_ = tokens_;
  apart.learn_ = learn_;
  apart.samples_ = keel::trainer::SplitOff(&samples_, share, seed, kSplitStream);
  Seal();
  apart.Seal();
  return apart;
}

Sample Dataset::Get(int64_t index) const {
  const Entry& entry = samples_[static_cast<size_t>(index)];
  const auto begin = static_cast<size_t>(entry.begin);
  const auto length = static_cast<size_t>(entry.length);
  return {std::span(tokens_).subspan(begin, length), std::span(learn_).subspan(begin, length),
          entry.id};
}

}  // namespace keel::trainer
