#include "trainer/rl/learn/batch_share.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/guarded.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

template <typename T>
void Append(std::span<const T> values, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Takes `count` values off the front of `bytes`.
template <typename T>
std::vector<T> TakeFront(size_t count, std::string_view* bytes) {
  if (bytes->size() / sizeof(T) < count) {
    throw Error(StatusCode::kInternal, fmt::format("a share of the batch ends {} bytes early",
                                                   count * sizeof(T) - bytes->size()));
  }
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return values;
}

void ExpectEnd(std::string_view bytes) {
  if (bytes.empty()) return;
  throw Error(StatusCode::kInternal,
              fmt::format("a share of the batch has {} bytes too many", bytes.size()));
}

// What each data-parallel rank looks at in any of `passes`.
std::vector<std::vector<int64_t>> SharesOf(const BatchOutline& outline,
                                           const std::vector<MiniBatch>& passes, int dp) {
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(dp));
  for (const MiniBatch& pass : passes) {
    const std::vector<std::vector<int64_t>> dealt = DealOut(outline, pass, dp);
    for (size_t d = 0; d < shares.size(); ++d)
      shares[d].insert(shares[d].end(), dealt[d].begin(), dealt[d].end());
  }
  for (std::vector<int64_t>& share : shares) {
    std::sort(share.begin(), share.end());
    share.erase(std::unique(share.begin(), share.end()), share.end());
  }
  return shares;
}

// Rank 0's parts[d], on every rank of data-parallel rank d: over the first ranks of all of them,
// then among the tensor-parallel ranks of the first stage, then from stage to stage.
std::string ToReplicas(parallel::ParallelContext& context, at::Device device,
                       std::vector<std::string> parts) {
  std::string mine;
  const bool first_stage = context.pp_rank() == 0;
  if (first_stage && context.tp_rank() == 0)
    mine = ScatterBytes(context.dp(), 0, std::move(parts), device);
  if (first_stage) mine = ShareBytes(context.tp(), mine, device).front();
  return RelayBytes(context.pp_forward(), std::move(mine), device);
}

}  // namespace

BatchShare::BatchShare(BatchOutline outline, std::vector<int64_t> held)
    : outline_(std::move(outline)), held_(std::move(held)) {
  boundaries_.push_back(0);
  for (const BatchOutline::Entry& one : outline_.responses)
    boundaries_.push_back(boundaries_.back() + one.tokens);
  ids_at_.assign(outline_.responses.size(), -1);
  tokens_at_ = ids_at_;
  int64_t ids = 0, tokens = 0;
  for (const int64_t i : held_) {
    const BatchOutline::Entry& one = outline_.responses[static_cast<size_t>(i)];
    ids_at_[static_cast<size_t>(i)] = ids;
    tokens_at_[static_cast<size_t>(i)] = tokens;
    ids += one.prompt_tokens + one.tokens;
    tokens += one.tokens;
  }
  ids_.resize(static_cast<size_t>(ids));
  mask_.resize(static_cast<size_t>(tokens));
}

BatchShare BatchShare::HandOut(parallel::ParallelContext& context, at::Device device,
                               const RolloutBatch& whole, const Passes& passes) {
  const bool rank0 = context.rank() == 0;
  const std::string outline =
      ShareBytes(context.world(), rank0 ? BatchOutline::Of(whole).Bytes() : std::string(), device)
          .front();
  BatchOutline all = ValueOrThrow(BatchOutline::FromBytes(outline));
  std::vector<std::vector<int64_t>> shares = SharesOf(all, passes(all), context.layout().dp());
  BatchShare share(std::move(all), shares[static_cast<size_t>(context.dp_rank())]);
  std::vector<std::string> parts;
  if (rank0) {
    share.shares_ = std::move(shares);
    for (const std::vector<int64_t>& one : share.shares_) parts.push_back(share.IdsOf(whole, one));
  }
  share.TakeIds(ToReplicas(context, device, std::move(parts)));
  return share;
}

BatchShare BatchShare::All(const RolloutBatch& whole) {
  std::vector<int64_t> every(whole.responses.size());
  std::iota(every.begin(), every.end(), int64_t{0});
  BatchShare share(BatchOutline::Of(whole), every);
  share.TakeIds(share.IdsOf(whole, every));
  return share;
}

BatchShare::Held BatchShare::Of(int64_t response) const {
  const auto i = static_cast<size_t>(response);
  if (i >= ids_at_.size() || ids_at_[i] < 0) {
    throw Error(StatusCode::kInternal,
                fmt::format("response {} of the step's {} is not of this rank's share", response,
                            ids_at_.size()));
  }
  const BatchOutline::Entry& one = outline_.responses[i];
  const auto prompt = static_cast<size_t>(one.prompt_tokens);
  const auto tokens = static_cast<size_t>(one.tokens);
  const std::span<const int32_t> ids =
      std::span(ids_).subspan(static_cast<size_t>(ids_at_[i]), prompt + tokens);
  return {ids.first(prompt), ids.subspan(prompt),
          std::span(mask_).subspan(static_cast<size_t>(tokens_at_[i]), tokens), boundaries_[i],
          tokens_at_[i]};
}

// The values of the tokens of `responses`, of those of all.
template <typename T>
void BatchShare::AppendTokens(std::span<const T> values, std::span<const int64_t> responses,
                              std::string* bytes) const {
  for (const int64_t i : responses) {
    const auto s = static_cast<size_t>(i);
    Append(values.subspan(static_cast<size_t>(boundaries_[s]),
                          static_cast<size_t>(boundaries_[s + 1] - boundaries_[s])),
           bytes);
  }
}

// Of each response its prompt, its tokens and their mask: how many these are the outline says.
std::string BatchShare::IdsOf(const RolloutBatch& whole, std::span<const int64_t> responses) const {
  std::string bytes;
  for (const int64_t i : responses) {
    const Response& r = whole.responses[static_cast<size_t>(i)];
    Append<int32_t>(r.prompt, &bytes);
    Append<int32_t>(r.tokens, &bytes);
  }
  AppendTokens<uint8_t>(whole.mask, responses, &bytes);
  return bytes;
}

void BatchShare::TakeIds(std::string_view bytes) {
  ids_ = TakeFront<int32_t>(ids_.size(), &bytes);
  mask_ = TakeFront<uint8_t>(mask_.size(), &bytes);
  ExpectEnd(bytes);
}

// Which columns there are, and of these the values of the tokens of what a rank holds.
void BatchShare::HandOutValues(parallel::ParallelContext& context, at::Device device,
                               std::span<std::vector<float>* const> columns) const {
  std::vector<std::string> parts;
  for (const std::vector<int64_t>& responses : shares_) {
    std::string& bytes = parts.emplace_back();
    for (const std::vector<float>* const column : columns) {
      bytes.push_back(column->empty() ? '\0' : '\1');
      if (!column->empty()) AppendTokens<float>(*column, responses, &bytes);
    }
  }
  const std::string mine = ToReplicas(context, device, std::move(parts));
  std::string_view rest = mine;
  for (std::vector<float>* const column : columns) {
    const bool there = TakeFront<uint8_t>(1, &rest).front() != 0;
    *column = TakeFront<float>(there ? mask_.size() : 0, &rest);
  }
  ExpectEnd(rest);
}

// How much is learnt from each response of all, then the mask of those that a rank holds.
void BatchShare::HandOutMask(parallel::ParallelContext& context, at::Device device,
                             const RolloutBatch& whole) {
  std::vector<std::string> parts;
  if (!shares_.empty()) {
    const PackedView view = whole.packed();
    std::vector<int64_t> policy;
    for (size_t s = 0; s < view.sequences(); ++s) policy.push_back(PolicyTokens(view, s));
    for (const std::vector<int64_t>& responses : shares_) {
      Append<int64_t>(policy, &parts.emplace_back());
      AppendTokens<uint8_t>(whole.mask, responses, &parts.back());
    }
  }
  const std::string mine = ToReplicas(context, device, std::move(parts));
  std::string_view rest = mine;
  const std::vector<int64_t> policy = TakeFront<int64_t>(outline_.responses.size(), &rest);
  for (size_t s = 0; s < policy.size(); ++s) outline_.responses[s].policy_tokens = policy[s];
  mask_ = TakeFront<uint8_t>(mask_.size(), &rest);
  ExpectEnd(rest);
}

}  // namespace keel::trainer::rl
