#include "trainer/data/tokens/token_store.h"

#include <algorithm>
#include <utility>

namespace keel::trainer {

int64_t TokenStore::DocumentOf(int64_t place) const {
  int64_t low = 0, high = documents();  // Begin(low) <= place < Begin(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (Begin(middle) <= place ? low : high) = middle;
  }
  return low;
}

void MemoryTokens::Add(std::span<const int32_t> ids, std::span<const uint8_t> learn) {
  if (ids.empty()) return;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  learn_.insert(learn_.end(), learn.begin(), learn.end());
  begins_.push_back(static_cast<int64_t>(ids_.size()));
  learns_all_ = learns_all_ && std::find(learn.begin(), learn.end(), 0) == learn.end();
}

void MemoryTokens::LearnAll() {
  learn_.assign(learn_.size(), 1);
  learns_all_ = true;
}

Status MemoryTokens::Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const {
  std::copy_n(ids_.begin() + begin, ids.size(), ids.begin());
  std::copy_n(learn_.begin() + begin, learn.size(), learn.begin());
  return Status::Ok();
}

Digest128 MemoryTokens::digest() const {
  Hasher128 hasher;
  hasher.Update(std::as_bytes(std::span(ids_)));
  hasher.Update(std::as_bytes(std::span(learn_)));
  hasher.Update(std::as_bytes(std::span(begins_)));
  return hasher.Finish();
}

JoinedTokens::JoinedTokens(std::vector<std::shared_ptr<const TokenStore>> stores)
    : stores_(std::move(stores)), first_token_{0}, first_document_{0} {
  for (const auto& store : stores_) {
    first_token_.push_back(first_token_.back() + store->tokens());
    first_document_.push_back(first_document_.back() + store->documents());
  }
}

int64_t JoinedTokens::Begin(int64_t document) const {
  if (document == documents()) return first_token_.back();
  const auto after = std::upper_bound(first_document_.begin(), first_document_.end(), document);
  const auto store = static_cast<size_t>(after - first_document_.begin()) - 1;
  return first_token_[store] + stores_[store]->Begin(document - first_document_[store]);
}

Status JoinedTokens::Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const {
  const int64_t end = begin + static_cast<int64_t>(std::max(ids.size(), learn.size()));
  const auto after = std::upper_bound(first_token_.begin(), first_token_.end(), begin);
  auto store = static_cast<size_t>(after - first_token_.begin()) - 1;
  for (int64_t at = begin; at < end; ++store) {
    const auto offset = static_cast<size_t>(at - begin);
    const auto count = static_cast<size_t>(std::min(end, first_token_[store + 1]) - at);
    KEEL_RETURN_IF_ERROR(stores_[store]->Read(
        at - first_token_[store], ids.empty() ? ids : ids.subspan(offset, count),
        learn.empty() ? learn : learn.subspan(offset, count)));
    at += static_cast<int64_t>(count);
  }
  return Status::Ok();
}

bool JoinedTokens::learns_all() const {
  return std::all_of(stores_.begin(), stores_.end(),
                     [](const auto& store) { return store->learns_all(); });
}

Digest128 JoinedTokens::digest() const {
  Hasher128 hasher;
  for (const auto& store : stores_) {
    const Digest128 one = store->digest();
    hasher.Update(std::as_bytes(std::span(&one, 1)));
  }
  return hasher.Finish();
}

}  // namespace keel::trainer
