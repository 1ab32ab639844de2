#include "trainer/foreign/shell_flow.h"

#include <algorithm>
#include <utility>

namespace keel::trainer::foreign {

ShellDone Not(ShellDone done) { return static_cast<ShellDone>(2 - static_cast<int>(done)); }

ShellOutcome ShellOutcome::Of(std::optional<bool> said) {
  const ShellDone then = !said ? ShellDone::kMaybe : *said ? ShellDone::kYes : ShellDone::kNo;
  return {then, Not(then)};
}

void ShellFlow::Elif() {
  Block& block = blocks_.back();
  block.runs = std::min(block.around, Not(block.earlier));
}

void ShellFlow::BeginCase(ShellWord subject, bool patterns) {
  blocks_.back().subject = std::move(subject);
  blocks_.back().patterns = patterns;
}

void ShellFlow::EndPatterns(ShellDone matches) {
  Block& block = blocks_.back();
  block.patterns = false;
  if (!block.goes_on) return Branch(matches);
  block.earlier = ShellDone::kNo;
  Branch(ShellDone::kMaybe);
}

void ShellFlow::EndCommand() {
  last_guard_ = guard_;
  guard_ = ShellDone::kYes;
}

void ShellFlow::Branch(ShellDone condition) {
  Block& block = blocks_.back();
  const ShellDone reached = Not(block.earlier);
  block.runs = std::min({block.around, reached, condition});
  block.earlier = std::max(block.earlier, condition);
  if (condition != ShellDone::kYes) block.why = why_;
}

void ShellFlow::Open(std::string kind, ShellDone runs) {
  const ShellDone around =
      std::min(blocks_.empty() ? ShellDone::kYes : blocks_.back().runs, guard_);
  blocks_.push_back(
      {std::move(kind), around, std::min(around, runs), ShellDone::kNo, guard_, outcome_});
  guard_ = ShellDone::kYes;
}

void ShellFlow::Close() {
  if (blocks_.empty()) return;
  const Block block = std::move(blocks_.back());
  blocks_.pop_back();
  const ShellOutcome inner = block.kind == "{" ? outcome_ : ShellOutcome();
  outcome_ = block.before;
  guard_ = block.guard;
  Ended(inner);
  guard_ = ShellDone::kYes;
}

bool ShellFlow::Within(const char* kind) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [&](const Block& block) { return block.kind == kind; });
}

ShellDone ShellFlow::Runs() const {
  return std::min(guard_, blocks_.empty() ? ShellDone::kYes : blocks_.back().runs);
}

std::string ShellFlow::Why() const {
  if (guard_ == ShellDone::kMaybe) return why_;
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    if (!block->why.empty()) return block->why;
  }
  return "";
}

void ShellFlow::Because(const ShellWord& word) {
  if (!word.not_known.empty()) why_ = word.not_known.front();
}

void ShellFlow::Ended(ShellOutcome outcome) {
  if (negated_) std::swap(outcome.then, outcome.otherwise);
  if (negated_ && outcome.Truth() == ShellDone::kMaybe) outcome = ShellOutcome::Of(std::nullopt);
  negated_ = false;
  if (guard_ == ShellDone::kYes) outcome_ = outcome;
  if (guard_ != ShellDone::kMaybe) return;
  if (outcome.then != outcome_.then) outcome_.then = ShellDone::kMaybe;
  if (outcome.otherwise != outcome_.otherwise) outcome_.otherwise = ShellDone::kMaybe;
}

}  // namespace keel::trainer::foreign
