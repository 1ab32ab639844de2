#include "tools/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "common/options/flat_values.h"
#include "common/text.h"
#include "trainer/metrics/step_parts.h"

namespace keel::tools {

namespace {

constexpr double kWidth = 560, kHeight = 220, kLeft = 64, kRight = 20, kTop = 8, kBottom = 24;
constexpr size_t kLongestText = 3000;  // of a prompt or a response
constexpr std::array<std::string_view, 8> kColours = {"#1f6feb", "#d1242f", "#1a7f37", "#9a6700",
                                                      "#8250df", "#bf3989", "#57606a", "#0598bc"};

struct Chart {
  std::string_view title;
  std::vector<std::string_view> metrics;  // those that are there are drawn
  bool stacked = false;                   // one above the other, of the first run
};

std::vector<Chart> Charts() {
  std::vector<std::string_view> parts;
  for (const trainer::StepPart& part : trainer::kStepParts) parts.push_back(part.metric);
  return {
      {"Loss",
       {"loss_metrics/global_avg_loss", "validation_metrics/global_avg_loss", "train/loss",
        "val/loss", "actor/pg_loss"}},
      {"Reward",
       {"critic/score/mean", "critic/rewards/mean", "val-core/all/reward/mean",
        "rewards/accuracies"}},
      {"Learning rate", {"lr", "train/lr", "actor/lr", "critic/lr"}},
      {"Gradient norm", {"grad_norm", "train/grad_norm", "actor/grad_norm", "critic/grad_norm"}},
      {"KL divergence", {"actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty"}},
      {"Entropy", {"actor/entropy", "actor/entropy_before"}},
      {"Ratio and clipping",
       {"actor/ratio_mean", "actor/pg_clipfrac", "actor/pg_clipfrac_lower",
        "training/rollout_probs_diff_mean"}},
      {"Response length",
       {"response_length/mean", "response_length/max", "response_length/min",
        "prompt_length/mean"}},
      {"Share of responses that were cut", {"response_length/clip_ratio"}},
      {"Tokens per second", {"throughput(tps)", "perf/throughput"}},
      {"Use of the device in percent", {"mfu(%)", "gemm_share(%)"}},
      {"Seconds of a step, by part", std::move(parts), true},
      {"Memory in GiB",
       {"memory/max_rss(GiB)", "memory/max_allocated(GiB)", "memory/max_reserved(GiB)",
        "perf/cpu_memory_used_gb", "perf/max_memory_allocated_gb"}},
  };
}

std::string Text(std::string_view text, size_t most = 200) {
  return EscapedHtml(Printable(text, most));
}

// Of several lines, for <pre>.
std::string Lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += Text(text.substr(0, end), std::string_view::npos) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string Number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{:.6g}", value);
}

// The points that are drawn: all, or the least and greatest of each part in their order.
std::vector<MetricPoint> Drawn(const std::vector<MetricPoint>& points) {
  if (points.size() <= kReportPoints) return points;
  constexpr size_t kParts = kReportPoints / 2;
  std::vector<MetricPoint> drawn;
  for (size_t part = 0; part < kParts; ++part) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(part * points.size() / kParts);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>((part + 1) * points.size() / kParts);
    const auto less = [](const MetricPoint& a, const MetricPoint& b) {
      // What is no number is neither.
      return !std::isnan(a.value) && (std::isnan(b.value) || a.value < b.value);
    };
    auto [low, high] =
        std::minmax_element(begin, end, [&](const auto& a, const auto& b) { return less(a, b); });
    if (high < low) std::swap(low, high);
    drawn.push_back(*low);
    if (high != low) drawn.push_back(*high);
  }
  return drawn;
}

struct Series {
  std::string name;
  std::vector<MetricPoint> points;
};

class Plot {
 public:
  explicit Plot(int64_t last_step) : last_(std::max<int64_t>(1, last_step)) {}

  void Include(double value) {
    if (!CanBeDrawn(value)) return;
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  // Once all is included.
  void Frame() {
    if (low_ > high_) low_ = high_ = 0;
    if (low_ == high_) {
      const double room = low_ == 0 ? 1 : std::abs(low_) / 10;
      low_ -= room;
      high_ += room;
    }
    for (int i = 0; i <= 4; ++i) {
      const double value = low_ + (high_ - low_) * i / 4;
      out_ += fmt::format(
          "<path class=grid d='M{:.0f} {:.1f}H{:.0f}'/><text x={:.0f} y={:.1f} class=y>{:.4g}"
          "</text>",
          kLeft, Y(value), kWidth - kRight, kLeft - 4, Y(value) + 4, value);
      const int64_t step = last_ * i / 4;
      out_ += fmt::format("<text x={:.1f} y={:.0f} class=x>{}</text>", X(step), kHeight - 6, step);
    }
  }
  void Line(const std::vector<MetricPoint>& points, std::string_view style) {
    std::string path;
    bool pen = false;  // on the paper
    for (const MetricPoint& point : points) {
      if (!CanBeDrawn(point.value)) {
        pen = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", X(point.step), Y(point.value));
      if (!pen) path += "h.1";  // a point by itself is seen
      pen = true;
    }
    out_ += fmt::format("<path class=line style='{}' d='{}'/>", style, path);
  }
  void Area(const std::vector<MetricPoint>& top, const std::vector<MetricPoint>& bottom,
            std::string_view colour) {
    std::string path;
    for (const MetricPoint& point : top)
      path +=
          fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", X(point.step), Y(point.value));
    for (auto it = bottom.rbegin(); it != bottom.rend(); ++it)
      path += fmt::format("L{:.1f} {:.1f}", X(it->step), Y(it->value));
    out_ += fmt::format("<path style='fill:{};opacity:.8' d='{}Z'/>", colour, path);
  }
  void Mark(int64_t step, std::string_view style, const std::string& title) {
    out_ += fmt::format("<path class={} d='M{:.1f} {:.0f}V{:.0f}'><title>{}</title></path>", style,
                        X(step), style == "start" ? kTop : kHeight - kBottom - 8, kHeight - kBottom,
                        title);
  }
  std::string Svg() const {
    return fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role=img>{}</svg>", kWidth, kHeight, out_);
  }

 private:
  double X(int64_t step) const {
    return kLeft +
           (kWidth - kLeft - kRight) * static_cast<double>(step) / static_cast<double>(last_);
  }
  double Y(double value) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * (value - low_) / (high_ - low_);
  }

  const int64_t last_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
  std::string out_;
};

class Page {
 public:
  explicit Page(std::span<const ReportRun> runs) : runs_(runs) {
    for (const ReportRun& run : runs) {
      last_step_ = std::max(last_step_, run.steps);
      data_.push_back({{"run", Printable(run.name)}, {"metrics", Json::object()}});
    }
  }

  // Curves, and below them warnings, checkpoints and answers.
  std::string Live() {
    Draw();
    return fmt::format("<div class=charts>{}</div>\n{}", charts_, body_);
  }

  std::string Make() {
    Draw();
    Summary();
    Configurations();
    std::string title;
    for (const ReportRun& run : runs_) title += (title.empty() ? "" : " and ") + Text(run.name);
    // In a script's text "<" could end it.
    std::string data = data_.dump(-1, ' ', true, Json::error_handler_t::replace);
    for (size_t at = 0; (at = data.find('<', at)) != std::string::npos;)
      data.replace(at, 1, "\\u003c");
    return fmt::format(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{0}</title><style>\n{5}"
        "</style></head><body><h1>{0}</h1>\n<p>{1} steps. Dashed lines: the run went on from a "
        "checkpoint. Short lines on the axis: checkpoints; grey ones are removed.</p>\n"
        "<div class=charts>{2}</div>\n{3}\n<script type=\"application/json\" id=\"data\">{4}"
        "</script></body></html>\n",
        title, last_step_, charts_, body_, data, kReportStyle);
  }

 private:
  void Draw() {
    for (const Chart& chart : Charts()) Draw(chart);
    for (const ReportRun& run : runs_) {
      Warnings(run);
      Checkpoints(run);
      Samples(run);
    }
  }

  // As a metric is drawn; noted for whoever reads the page by a program.
  std::vector<MetricPoint> Take(size_t run, const std::string& metric) {
    const auto& metrics = runs_[run].metrics;
    const auto found = metrics.find(metric);
    if (found == metrics.end()) return {};
    const std::vector<MetricPoint> drawn = Drawn(found->second);
    Json steps = Json::array(), values = Json::array();
    for (const MetricPoint& point : drawn) {
      steps.push_back(point.step);
      if (std::isfinite(point.value)) {
        values.push_back(point.value);
      } else {
        values.push_back(Number(point.value));
      }
    }
    data_[run]["metrics"][metric] = {{"steps", steps}, {"values", values}};
    return drawn;
  }

  void Draw(const Chart& chart) {
    std::vector<Series> series;
    for (size_t run = 0; run < (chart.stacked ? 1 : runs_.size()); ++run) {
      for (const std::string_view metric : chart.metrics) {
        std::vector<MetricPoint> points = Take(run, std::string(metric));
        if (points.empty()) continue;
        const std::string of = runs_.size() > 1 ? Printable(runs_[run].name) + " " : "";
        series.push_back({of + std::string(metric), std::move(points)});
      }
    }
    if (series.empty()) return;
    Plot plot(last_step_);
    std::string legend;
    const auto name = [&](size_t i) {
      legend += fmt::format("<i style='color:{}'>{}</i>", kColours[i % kColours.size()],
                            EscapedHtml(series[i].name));
    };
    if (chart.stacked) {
      Stack(series, &plot, name);
    } else {
      for (const Series& one : series)
        for (const MetricPoint& point : one.points) plot.Include(point.value);
      plot.Frame();
      for (size_t i = 0; i < series.size(); ++i) {
        plot.Line(series[i].points, fmt::format("stroke:{}", kColours[i % kColours.size()]));
        name(i);
      }
    }
    for (const ReportRun& run : runs_) {
      for (const int64_t step : run.starts)
        plot.Mark(step, "start", fmt::format("{}: went on from step {}", Text(run.name), step));
      for (const CheckpointMark& mark : run.checkpoints) {
        if (mark.failed) continue;
        plot.Mark(mark.step, mark.removed ? "gone" : "save",
                  fmt::format("checkpoint of step {}", mark.step));
      }
    }
    charts_ += fmt::format("<figure><h3>{}</h3>{}<figcaption>{}</figcaption></figure>\n",
                           chart.title, plot.Svg(), legend);
  }

  // Means over the steps of equal parts of the run, one above the other, since parts of one step
  // are to be added. What a step does not have took none of its time.
  template <typename Name>
  void Stack(const std::vector<Series>& series, Plot* plot, const Name& name) {
    constexpr int64_t kParts = 80;
    const int64_t steps = std::max<int64_t>(1, last_step_);
    const int64_t parts = std::min(kParts, steps);
    const auto steps_before = [&](int64_t part) { return (part * steps + parts - 1) / parts; };
    std::vector<std::vector<MetricPoint>> tops;
    std::vector<MetricPoint> below;
    for (int64_t part = 0; part < parts; ++part)
      below.push_back({(steps_before(part) + 1 + steps_before(part + 1)) / 2, 0});
    plot->Include(0);
    const std::vector<double> none(static_cast<size_t>(parts), 0);
    std::vector<double> of_part = none;  // steps that any of them has
    std::vector<std::vector<double>> sums;
    for (const Series& one : series) {
      std::vector<double> counts = none;
      sums.push_back(none);
      for (const MetricPoint& point :
           runs_[0].metrics.at(one.name.substr(one.name.rfind(' ') + 1))) {
        if (!CanBeDrawn(point.value)) continue;
        const auto at = static_cast<size_t>(
            std::clamp<int64_t>((point.step - 1) * parts / steps, 0, parts - 1));
        sums.back()[at] += point.value;
        of_part[at] = std::max(of_part[at], counts[at] += 1);
      }
    }
    for (const std::vector<double>& one : sums) {
      tops.push_back(tops.empty() ? below : tops.back());
      for (size_t i = 0; i < one.size(); ++i) {
        tops.back()[i].value += one[i] / std::max(1.0, of_part[i]);
        plot->Include(tops.back()[i].value);
      }
    }
    plot->Frame();
    for (size_t i = 0; i < series.size(); ++i) {
      plot->Area(tops[i], i == 0 ? below : tops[i - 1], kColours[i % kColours.size()]);
      name(i);
    }
  }

  void Warnings(const ReportRun& run) {
    for (const std::string& one : RunWarnings(run))
      body_ += fmt::format("<p class=warn>{}: {}</p>\n", Text(run.name), one);
  }

  void Checkpoints(const ReportRun& run) {
    if (run.checkpoints.empty()) return;
    constexpr size_t kMost = 50;
    body_ += fmt::format(
        "<h2>Checkpoints of {}</h2><table><tr><th>step<th>MiB<th>lost seconds"
        "<th></tr>",
        Text(run.name));
    const size_t begin = run.checkpoints.size() - std::min(kMost, run.checkpoints.size());
    if (begin > 0) body_ += fmt::format("<tr><td colspan=4>{} earlier ones</tr>", begin);
    for (size_t i = begin; i < run.checkpoints.size(); ++i) {
      const CheckpointMark& mark = run.checkpoints[i];
      body_ += fmt::format("<tr><td>{}<td>{:.1f}<td>{:.3f}<td>{}</tr>", mark.step,
                           static_cast<double>(mark.bytes) / (1 << 20), mark.lost_s,
                           mark.failed    ? "failed"
                           : mark.removed ? "removed"
                                          : "");
    }
    body_ += "</table>\n";
  }

  void Samples(const ReportRun& run) {
    if (run.samples.empty() && run.samples_lost.empty()) return;
    body_ += fmt::format("<h2>Responses of {}</h2><p>{}</p>", Text(run.name),
                         run.samples.empty() ? "Not shown: " + Text(run.samples_lost, 600)
                                             : Text(run.samples_from, 400));
    for (const Json& sample : run.samples) {
      const auto output = sample.find("output");
      const bool text = output != sample.end() && output->is_string();
      body_ += fmt::format(
          "<h4>row {}, score {}</h4><pre>{}</pre>", Text(Dump(sample, "row")),
          Text(Dump(sample, "score")),
          Lines(text ? output->get<std::string>().substr(0, kLongestText) : "(no text)"));
    }
  }
  static std::string Dump(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() ? "?"
                                 : found->dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // First, last, least and greatest of every metric, over all its lines.
  void Summary() {
    constexpr size_t kMost = 400;
    std::set<std::string> names;
    for (const ReportRun& run : runs_)
      for (const auto& [name, points] : run.metrics) names.insert(name);
    body_ +=
        "<h2>All metrics</h2><details><summary>first, last, least and greatest</summary>"
        "<table><tr><th>metric<th>run<th>lines<th>first<th>last<th>least<th>greatest</tr>";
    size_t shown = 0;
    for (const std::string& name : names) {
      if (++shown > kMost) break;
      for (const ReportRun& run : runs_) {
        const auto found = run.metrics.find(name);
        if (found == run.metrics.end()) continue;
        const std::vector<MetricPoint>& points = found->second;
        double low = HUGE_VAL, high = -HUGE_VAL;
        for (const MetricPoint& point : points) {
          if (std::isnan(point.value)) continue;
          low = std::min(low, point.value);
          high = std::max(high, point.value);
        }
        if (low > high) low = high = std::nan("");
        body_ += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>", Text(name, 100),
                             Text(run.name), points.size(), Number(points.front().value),
                             Number(points.back().value), Number(low), Number(high));
      }
    }
    body_ += "</table></details>\n";
    if (names.size() > kMost)
      body_ += fmt::format("<p>{} metrics more are in metrics.jsonl</p>\n", names.size() - kMost);
  }

  void Configurations() {
    if (runs_.size() == 2) {
      body_ += fmt::format("<h2>Differences</h2><table><tr><th>key<th>{}<th>{}</tr>",
                           Text(runs_[0].name), Text(runs_[1].name));
      for (const options::ValueChange& change : options::Changes(runs_[0].config, runs_[1].config))
        body_ += fmt::format("<tr><td>{}<td>{}<td>{}</tr>", Text(change.path),
                             Text(change.before.value_or("-"), 400),
                             Text(change.after.value_or("-"), 400));
      body_ += "</table>\n";
    }
    for (const ReportRun& run : runs_) {
      if (run.config.empty()) continue;
      std::string lines;
      for (const auto& [key, value] : run.config)
        lines += fmt::format("{}: {}\n", Text(key), Text(value, 1000));
      body_ +=
          fmt::format("<details><summary>configuration of {}</summary><pre>{}</pre></details>\n",
                      Text(run.name), lines);
    }
  }

  const std::span<const ReportRun> runs_;
  int64_t last_step_ = 0;
  Json data_ = Json::array();
  std::string charts_, body_;
};

}  // namespace

std::string ReportPage(std::span<const ReportRun> runs) { return Page(runs).Make(); }

std::string LiveReport(const ReportRun& run) { return Page(std::span(&run, 1)).Live(); }

std::string HtmlText(std::string_view text, size_t most) { return Text(text, most); }

}  // namespace keel::tools
