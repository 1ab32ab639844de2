// Vocabulary: tokens by id and ids by token. Movable; immutable once built, then thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace keel::model {

class Vocabulary {
 public:
  // Ids lie below this: no file makes a table of four thousand million entries.
  static constexpr int32_t kMaxId = 16 << 20;

  // How many tokens there will be: ids may leave some out, but not make a table that so few tokens
  // do not justify. Without it kMaxId alone is the limit.
  void Expect(size_t tokens);

  // kInvalidData for an id that is negative, too high or taken, and when the tokens have more than
  // 4 GiB in all.
  Status Add(std::string_view token, int64_t id);
  // After the last Add and before the first IdOf. kInvalidData for a token that has two ids.
  Status Index();

  std::optional<int32_t> IdOf(std::string_view token) const;
  // "" for an id that there is none of.
  std::string_view TokenOf(int32_t id) const;
  bool Has(int32_t id) const;
  // The highest id + 1.
  int32_t size() const { return static_cast<int32_t>(spans_.size()); }
  // How many tokens there are; fewer than size() when ids are left out.
  int32_t count() const { return count_; }

 private:
  struct Place {
    uint32_t begin = 0;
    uint32_t length = 0;
    bool used = false;
  };
  std::string bytes_;
  std::vector<Place> spans_;    // by id
  std::vector<int32_t> slots_;  // an open hash table of ids; -1 is free
  int32_t count_ = 0;
  int64_t limit_ = kMaxId;
};

}  // namespace keel::model
