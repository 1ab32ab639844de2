#include "trainer/metrics/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/text.h"

namespace keel::trainer {

namespace {

// "1:02:03"; below a minute "9.3 s".
std::string DurationText(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto s = static_cast<int64_t>(seconds);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

// As a shell takes it for one word.
std::string Quoted(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return IsLetter(c) || IsDigit(c) ||
           std::string_view("_./-+=:@%,").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string Row(std::string_view name, std::string_view text) {
  return fmt::format("\n{:<12}{}", name, text);
}

}  // namespace

template <size_t n>
void RunSummary::Judge(const std::array<Figure, n>& figures, int64_t step, const StepLine& line,
                       std::optional<Judged>* judged) {
  const auto found =
      std::ranges::find_if(figures, [&](const Figure& figure) { return line.Has(figure.metric); });
  if (found == figures.end()) return;
  const double value = line.Number(found->metric);
  if (!std::isfinite(value)) return;
  const std::pair<int64_t, double> now(step, value);
  if (!*judged) *judged = Judged{*found, now, now};
  Judged& all = **judged;
  all.last = now;
  const double gain = value - all.best.second;
  if (found->higher_is_better ? gain > 0 : gain < 0) all.best = now;
}

void RunSummary::AddStep(int64_t step, const StepLine& line) {
  step_ = step;
  Judge(kStepFigures, step, line, &stepped_);
  AddParts(line);
}

void RunSummary::AddValidation(int64_t step, const StepLine& line) {
  Judge(kValidationFigures, step, line, &validated_);
  AddParts(line);
}

void RunSummary::AddParts(const StepLine& line) {
  for (const StepPart& part : kStepParts)
    if (const double seconds = line.Number(part.metric); seconds > 0)
      AddSeconds(part.name, seconds);
}

void RunSummary::AddSeconds(std::string_view part, double seconds) {
  parts_[std::string(part)] += seconds;
}

void RunSummary::AddSave(bool ok, int64_t bytes, double lost_s) {
  if (!ok) {
    ++failed_;
    return;
  }
  ++saves_;
  bytes_ += bytes;
  lost_s_ += std::max(0.0, lost_s);
}

std::string RunSummary::StepsText(const RunPlaces& places, double seconds) const {
  if (step_ == 0) return "summary: no step was done";
  if (step_ == begin_step_) {
    return fmt::format("summary: no step was left of {}; the run's metrics tell of those before",
                       places.total_steps);
  }
  std::string text = begin_step_ + 1 == step_
                         ? fmt::format("summary: step {} of {}", step_, places.total_steps)
                         : fmt::format("summary: steps {} to {} of {}", begin_step_ + 1, step_,
                                       places.total_steps);
  text += " in " + DurationText(seconds);
  if (places.stopped) text += ", stopped";
  if (begin_step_ > 0)
    text += fmt::format("; of this start alone, which went on from step {}", begin_step_);
  return text;
}

std::string RunSummary::JudgedText() const {
  const bool validated = validated_.has_value();
  const std::optional<Judged>& judged = validated ? validated_ : stepped_;
  if (!judged) return "";
  const auto value = [](double number) { return fmt::format("{:.4f}", number); };
  // Of single steps, whose batches differ, the best one says little.
  if (!validated)
    return Row("last", fmt::format("{} {} at step {}", judged->figure.name,
                                   value(judged->last.second), judged->last.first));
  std::string text = fmt::format("{} {} at step {}", judged->figure.name,
                                 value(judged->best.second), judged->best.first);
  if (judged->last.first != judged->best.first)
    text +=
        fmt::format("; the last, at step {}, {}", judged->last.first, value(judged->last.second));
  return Row("best", text);
}

std::string RunSummary::TimeText(double seconds) const {
  std::vector<std::pair<std::string, double>> parts(parts_.begin(), parts_.end());
  double known = 0;
  for (const auto& [name, part_s] : parts) known += part_s;
  if (known == 0) return "";
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
  const double whole = std::max(known, seconds);
  if (whole > known) parts.emplace_back("other", whole - known);
  std::string text;
  for (const auto& [name, part_s] : parts) {
    text += fmt::format("{}{} {} ({:.0f} %)", text.empty() ? "" : " · ", name, DurationText(part_s),
                        100 * part_s / whole);
  }
  return Row("time", text);
}

std::string RunSummary::SavesText() const {
  if (saves_ + failed_ == 0) return "";
  std::string text = fmt::format("{} with {:.1f} MiB; training lost {:.2f} s to them", saves_,
                                 static_cast<double>(bytes_) / (1 << 20), lost_s_);
  if (failed_ > 0) text += fmt::format("; {} failed", failed_);
  return Row("saves", text);
}

std::string RunSummary::Text(const RunPlaces& places) const {
  const double seconds = Seconds(clock_->Monotonic() - begin_);
  std::string text = StepsText(places, seconds) + JudgedText();
  if (step_ != begin_step_) text += TimeText(seconds);
  text += SavesText();
  const std::string step =
      places.saved_step ? fmt::format("global_step_{}", *places.saved_step) : "";
  text += Row("folder", places.folder + (step.empty() ? "" : "; the newest checkpoint is " + step));
  for (size_t i = 0; i < places.metrics.size(); ++i)
    text += Row(i == 0 ? "metrics" : "", places.metrics[i]);
  // What can be typed.
  std::vector<std::string> next;
  const std::string folder = Quoted(places.folder);
  if (!places.metrics.empty())
    next.push_back(
        fmt::format("keel report {}      # makes {}/report.html", folder, places.folder));
  if (!step.empty()) next.push_back("keel ckpt ls " + folder);
  if (!step.empty() && places.has_model) {
    const std::string saved = Quoted(places.folder + "/" + step);
    next.push_back(places.answers ? "keel chat " + saved
                                  : fmt::format("keel ckpt export-hf {} {}", saved,
                                                Quoted(places.folder + "/exported")));
  }
  for (size_t i = 0; i < next.size(); ++i) text += Row(i == 0 ? "next" : "", next[i]);
  return text;
}

}  // namespace keel::trainer
