#include "trainer/metrics/step_line.h"

#include <algorithm>
#include <numeric>

namespace keel::trainer {

void StepLine::SetSpread(const std::string& name, const std::vector<double>& values) {
  if (values.empty()) return;
  const auto n = static_cast<double>(values.size());
  Set(name + "/mean", std::accumulate(values.begin(), values.end(), 0.0) / n);
  Set(name + "/max", *std::max_element(values.begin(), values.end()));
  Set(name + "/min", *std::min_element(values.begin(), values.end()));
}

void StepLine::Put(std::string_view name, Value value) {
  if (const auto at = IndexOf(name); at < values_.size()) {
    values_[at].second = std::move(value);
  } else {
    values_.emplace_back(name, std::move(value));
  }
}

size_t StepLine::IndexOf(std::string_view name) const {
  const auto found = std::find_if(values_.begin(), values_.end(),
                                  [&](const auto& one) { return one.first == name; });
  return static_cast<size_t>(found - values_.begin());
}

double StepLine::Number(std::string_view name) const {
  if (!Has(name)) return 0;
  const Value& value = values_[IndexOf(name)].second;
  if (const auto* const count = std::get_if<int64_t>(&value)) return static_cast<double>(*count);
  const auto* const number = std::get_if<double>(&value);
  return number != nullptr ? *number : 0;
}

Json StepLine::ToJson() const {
  Json json = Json::object();
  for (const auto& [name, value] : values_)
    std::visit([&, &key = name](const auto& one) { json[key] = one; }, value);
  return json;
}

}  // namespace keel::trainer
