#include "model/tokenizer/pipeline/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "common/hash.h"
#include "common/text.h"

namespace keel::model {

void Vocabulary::Expect(size_t tokens) {
  constexpr size_t kRoom = 64 << 10;
  constexpr size_t kSpread = 16;
  limit_ = static_cast<int64_t>(
      std::min<size_t>(kMaxId, kRoom + kSpread * std::min<size_t>(tokens, kMaxId)));
}

Status Vocabulary::Add(std::string_view token, int64_t id) {
  const auto refuse = [&](std::string_view problem) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("token \"{}\" has the id {}: {}", Printable(token), id, problem));
  };
  if (id < 0 || id >= limit_) {
    return refuse(fmt::format("ids from 0 to {} are read{}", limit_ - 1,
                              limit_ < kMaxId ? " in a vocabulary of so many tokens" : ""));
  }
  if (bytes_.size() + token.size() > std::numeric_limits<uint32_t>::max()) {
    return refuse("the tokens have more than 4 GiB in all");
  }
  const auto index = static_cast<size_t>(id);
  if (index >= spans_.size()) spans_.resize(index + 1);
  if (spans_[index].used) {
    return refuse(fmt::format("so has \"{}\"", Printable(TokenOf(static_cast<int32_t>(id)))));
  }
  spans_[index] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(token.size()), true};
  bytes_ += token;
  ++count_;
  return Status::Ok();
}

Status Vocabulary::Index() {
  slots_.assign(std::bit_ceil(static_cast<size_t>(count_) * 2 + 2), -1);
  const size_t mask = slots_.size() - 1;
  for (int32_t id = 0; id < size(); ++id) {
    if (!Has(id)) continue;
    size_t slot = Hash64(TokenOf(id)) & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      if (TokenOf(slots_[slot]) != TokenOf(id)) continue;
      return {StatusCode::kInvalidData, fmt::format("token \"{}\" has two ids, {} and {}",
                                                    Printable(TokenOf(id)), slots_[slot], id)};
    }
    slots_[slot] = id;
  }
  return Status::Ok();
}

std::optional<int32_t> Vocabulary::IdOf(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = Hash64(token) & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (TokenOf(slots_[slot]) == token) return slots_[slot];
  }
  return std::nullopt;
}

bool Vocabulary::Has(int32_t id) const {
  return id >= 0 && id < size() && spans_[static_cast<size_t>(id)].used;
}

std::string_view Vocabulary::TokenOf(int32_t id) const {
  if (!Has(id)) return {};
  const Place& place = spans_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(place.begin, place.length);
}

}  // namespace keel::model
