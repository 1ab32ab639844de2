#include "trainer/data/rows/ready_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr int64_t kNotLearnt = -100;

// A list of integers as long as the ids.
Result<std::vector<int64_t>> ReadIntegers(const Json& row, const std::string& key,
                                          const std::string& where) {
  const Json& list = row.at(key);
  if (!list.is_array())
    return Malformed(where, fmt::format("{}: expected a list of integers", key));
  std::vector<int64_t> values;
  values.reserve(list.size());
  for (const Json& item : list) {
    const bool fits = item.is_number_integer() &&
                      !(item.is_number_unsigned() &&
                        item.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    if (!fits) {
      const std::string found = item.dump(-1, ' ', false, Json::error_handler_t::replace);
      return Malformed(where,
                       fmt::format("{}: expected integers, found {}", key, Printable(found, 60)));
    }
    values.push_back(item.get<int64_t>());
  }
  return values;
}

// The same of a list that may be missing, and otherwise has an entry for each id.
Result<std::optional<std::vector<int64_t>>> ReadBeside(const Json& row, const std::string& key,
                                                       const std::string& ids, size_t count,
                                                       const std::string& where) {
  if (key.empty() || !row.contains(key) || row.at(key).is_null())
    return std::optional<std::vector<int64_t>>();
  KEEL_ASSIGN_OR_RETURN(std::vector<int64_t> values, ReadIntegers(row, key, where));
  if (values.size() != count) {
    return Malformed(where,
                     fmt::format("{}: {} entries for {} {}", key, values.size(), count, ids));
  }
  return std::optional<std::vector<int64_t>>(std::move(values));
}

struct Kept {
  size_t begin = 0;
  size_t end = 0;
};

// The run of ones of a mask.
Result<Kept> ReadMask(const std::vector<int64_t>& mask, const IdKeys& keys,
                      const std::string& where) {
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0 && mask[i] != 1) {
      return Malformed(where, fmt::format("{}: entry {} is {}, expected 0 (padding) or 1",
                                          keys.mask, i, mask[i]));
    }
  }
  const auto one = std::find(mask.begin(), mask.end(), 1);
  if (one == mask.end())
    return Malformed(where, fmt::format("{}: all entries are 0: no token is left", keys.mask));
  const auto zero = std::find(one, mask.end(), 0);
  if (const auto again = std::find(zero, mask.end(), 1); again != mask.end()) {
    return Malformed(
        where,
        fmt::format("{}: 0 at entry {}, between entries {} and {} that are 1; expected "
                    "padding at the ends alone: leave out the tokens that nothing "
                    "attends to, or give a row to each sequence",
                    keys.mask, zero - mask.begin(), one - mask.begin(), again - mask.begin()));
  }
  return Kept{static_cast<size_t>(one - mask.begin()), static_cast<size_t>(zero - mask.begin())};
}

}  // namespace

Status Malformed(const std::string& where, const std::string& text) {
  return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, text));
}

std::vector<std::string_view> IdKeys::All() const {
  std::vector<std::string_view> all;
  for (const std::string* key : {&ids, &mask, &labels, &positions})
    if (!key->empty()) all.push_back(*key);
  return all;
}

Result<TokenRow> ReadIds(const Json& object, const IdKeys& keys, const std::string& where) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ReadIntegers(object, keys.ids, where));
  const auto beside = [&](const std::string& key) {
    return ReadBeside(object, key, keys.ids, ids.size(), where);
  };
  KEEL_ASSIGN_OR_RETURN(const auto mask, beside(keys.mask));
  KEEL_ASSIGN_OR_RETURN(const auto labels, beside(keys.labels));
  KEEL_ASSIGN_OR_RETURN(const auto positions, beside(keys.positions));
  Kept kept{0, ids.size()};
  if (mask && !mask->empty()) {
    KEEL_ASSIGN_OR_RETURN(kept, ReadMask(*mask, keys, where));
  }
  TokenRow row;
  for (size_t i = kept.begin; i < kept.end; ++i) {
    if (ids[i] < 0 || ids[i] > std::numeric_limits<int32_t>::max())
      return Malformed(where, fmt::format("{}: {} is no token id", keys.ids, ids[i]));
    row.tokens.push_back(static_cast<int32_t>(ids[i]));
    if (labels && (*labels)[i] != kNotLearnt && (*labels)[i] != ids[i]) {
      return Malformed(where, fmt::format("{}: entry {} is {}, expected -100 or the token {}",
                                          keys.labels, i, (*labels)[i], ids[i]));
    }
    row.learn.push_back(labels && (*labels)[i] == kNotLearnt ? 0 : 1);
    const auto expected = static_cast<int64_t>(i - kept.begin);
    if (positions && (*positions)[i] != expected) {
      return Malformed(where,
                       fmt::format("{}: entry {} is {}, expected {}: a row's tokens count from 0, "
                                   "padding left out; give a row to each sequence",
                                   keys.positions, i, (*positions)[i], expected));
    }
  }
  return row;
}

bool IsIdList(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where) {
  for (const int32_t token : tokens) {
    if (token < vocab_size) continue;
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: token {} is outside the model's vocabulary of {}; choose the "
                              "model's tokenizer or a larger vocab_size",
                              where, token, vocab_size));
  }
  return Status::Ok();
}

}  // namespace keel::trainer
