// StepLine: what a step, or the validation after it, has to tell: names, each with a number or a
// text. The line of metrics.jsonl and that of the console are made from it. Torch-free.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/json.h"

namespace keel::trainer {

class StepLine {
 public:
  // A name keeps the progress at which it was set first. Counts stay whole numbers, also in JSON.
  void Set(std::string_view name, double number) { Put(name, number); }
  void Set(std::string_view name, std::string text) { Put(name, std::move(text)); }
  template <std::integral Count>
  void Set(std::string_view name, Count count) {
    Put(name, static_cast<int64_t>(count));
  }
  void Set(const std::map<std::string, double>& numbers) {
    for (const auto& [name, number] : numbers) Set(name, number);
  }
  // name/mean, name/max and name/min of `values`; nothing of none.
  void SetSpread(const std::string& name, const std::vector<double>& values);

  bool Has(std::string_view name) const { return IndexOf(name) < values_.size(); }
  // The number of that name; 0 where there is none.
  double Number(std::string_view name) const;

  // In order. What is not finite is named by MetricsFile, as in every line.
  Json ToJson() const;

 private:
  using Value = std::variant<int64_t, double, std::string>;
  void Put(std::string_view name, Value value);
  size_t IndexOf(std::string_view name) const;  // the number of values where there is none

  std::vector<std::pair<std::string, Value>> values_;
};

}  // namespace keel::trainer
