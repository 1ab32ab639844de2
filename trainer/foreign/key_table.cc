#include "trainer/foreign/key_table.h"

#include <algorithm>

namespace keel::trainer::foreign {

namespace {

void Expand(std::string_view keys, const std::string& before, std::vector<std::string>* all) {
  const size_t open = keys.find('{');
  if (open == std::string_view::npos) {
    all->push_back(before + std::string(keys));
    return;
  }
  const size_t close = keys.find('}', open);
  std::string_view choices = keys.substr(open + 1, close - open - 1);
  while (true) {
    const size_t comma = choices.find(',');
    Expand(keys.substr(close + 1),
           before + std::string(keys.substr(0, open)) + std::string(choices.substr(0, comma)), all);
    if (comma == std::string_view::npos) return;
    choices.remove_prefix(comma + 1);
  }
}

bool Fits(std::string_view pattern, std::string_view key) {
  if (pattern.empty()) return key.empty();
  if (pattern == ".**") return key.empty() || key[0] == '.';
  if (pattern.starts_with("**."))
    return key.ends_with(pattern.substr(2)) || key == pattern.substr(3);
  if (pattern[0] == '*') {
    for (size_t n = 0;; ++n) {
      if (Fits(pattern.substr(1), key.substr(n))) return true;
      if (n == key.size() || key[n] == '.') return false;
    }
  }
  return !key.empty() && pattern[0] == key[0] && Fits(pattern.substr(1), key.substr(1));
}

}  // namespace

KeyTable::KeyTable(std::span<const Row> rows) : rows_(rows) {
  for (const Row& row : rows) {
    std::vector<std::string> all;
    Expand(row.keys, "", &all);
    for (std::string& text : all) {
      const auto stars = std::count(text.begin(), text.end(), '*');
      if (stars == 0) {
        ++times_[text];
        exact_[text] = &row;
      } else {
        const size_t literal = text.size() - static_cast<size_t>(stars);
        patterns_.push_back({std::move(text), literal, &row});
      }
    }
  }
}

bool KeyTable::IsKey(std::string_view path) const {
  const auto found = exact_.find(path);
  return found != exact_.end() &&
         (found->second->answer == Answer::kTaken || found->second->answer == Answer::kRenamed);
}

KeyTable::Found KeyTable::Find(std::string_view key) const {
  if (const auto exact = exact_.find(key); exact != exact_.end())
    return {exact->second, exact->first, ""};
  for (size_t dot = key.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = key.rfind('.', dot - 1)) {
    if (const std::string_view path = key.substr(0, dot); IsKey(path))
      return {exact_.find(path)->second, std::string(path), std::string(key.substr(dot + 1))};
  }
  const Pattern* best = nullptr;
  for (const Pattern& pattern : patterns_) {
    if ((best == nullptr || pattern.literal > best->literal) && Fits(pattern.text, key))
      best = &pattern;
  }
  return best == nullptr ? Found{} : Found{best->row, "", ""};
}

int KeyTable::Answers(std::string_view key) const {
  if (const auto exact = times_.find(key); exact != times_.end()) return exact->second;
  if (const Found found = Find(key); !found.path.empty()) return times_.find(found.path)->second;
  size_t most = 0;
  int count = 0;
  for (const Pattern& pattern : patterns_) {
    if (!Fits(pattern.text, key) || pattern.literal < most) continue;
    count = pattern.literal > most ? 1 : count + 1;
    most = pattern.literal;
  }
  return count;
}

}  // namespace keel::trainer::foreign
