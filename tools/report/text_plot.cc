#include "tools/report/text_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

namespace keel::tools {

namespace {

// The means of `count` equal parts of the steps; nothing where a part has no value that can be
// drawn.
std::vector<std::optional<double>> Means(std::span<const MetricPoint> points, int count) {
  std::vector<std::optional<double>> means(static_cast<size_t>(std::max(0, count)));
  if (points.empty() || count <= 0) return means;
  const int64_t first = points.front().step;
  const int64_t span = std::max<int64_t>(1, points.back().step - first + 1);
  std::vector<double> sums(means.size()), counts(means.size());
  for (const MetricPoint& point : points) {
    if (!CanBeDrawn(point.value)) continue;
    const auto at =
        static_cast<size_t>(std::clamp<int64_t>((point.step - first) * count / span, 0, count - 1));
    sums[at] += point.value;
    counts[at] += 1;
  }
  for (size_t i = 0; i < means.size(); ++i)
    if (counts[i] > 0) means[i] = sums[i] / counts[i];
  return means;
}

// Between two parts with values those without, as there are where steps are few, lie on a line.
std::vector<std::optional<double>> Joined(std::vector<std::optional<double>> means) {
  std::optional<size_t> last;
  for (size_t i = 0; i < means.size(); ++i) {
    if (!means[i]) continue;
    for (size_t gap = last.value_or(i) + 1; gap < i; ++gap) {
      const double share = static_cast<double>(gap - *last) / static_cast<double>(i - *last);
      means[gap] = *means[*last] + share * (*means[i] - *means[*last]);
    }
    last = i;
  }
  return means;
}

struct Range {
  double low = 0, high = 0;
  // 0 to 1; the middle where there is but one value.
  double Share(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

std::optional<Range> RangeOf(const std::vector<std::optional<double>>& values) {
  std::optional<Range> range;
  for (const auto& value : values) {
    if (!value) continue;
    if (!range) range = {*value, *value};
    range->low = std::min(range->low, *value);
    range->high = std::max(range->high, *value);
  }
  return range;
}

// U+2800 plus a bit a dot, as UTF-8.
std::string Braille(unsigned dots) {
  const unsigned code = 0x2800 + dots;
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

}  // namespace

std::string Sparkline(std::span<const MetricPoint> points, int columns) {
  constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  // Not wider than there are steps: it would be full of gaps.
  if (!points.empty())
    columns = static_cast<int>(std::min<int64_t>(columns, static_cast<int64_t>(points.size())));
  const auto means = Means(points, columns);
  const auto range = RangeOf(means);
  std::string line;
  for (const auto& mean : means)
    line += mean ? kBlocks[static_cast<size_t>(std::lround(range->Share(*mean) * 7))]
                 : std::string_view(" ");
  return line;
}

std::vector<std::string> DotChart(std::span<const MetricPoint> points, int columns, int rows) {
  constexpr int kLabel = 9;
  const int width = columns - kLabel - 1;
  if (width < 4 || rows < 2) return {};
  const auto means = Joined(Means(points, 2 * width));
  const auto range = RangeOf(means);
  if (!range) return {};
  // Bits of the dots of a character: rows from above, left and right.
  constexpr std::array<std::array<unsigned, 2>, 4> kBits = {
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  std::vector<std::vector<unsigned>> dots(static_cast<size_t>(rows),
                                          std::vector<unsigned>(static_cast<size_t>(width)));
  for (size_t x = 0; x < means.size(); ++x) {
    if (!means[x]) continue;
    const auto y = static_cast<size_t>(std::lround((1 - range->Share(*means[x])) * (4 * rows - 1)));
    dots[y / 4][x / 2] |= kBits[y % 4][x % 2];
  }
  std::vector<std::string> lines;
  for (size_t row = 0; row < dots.size(); ++row) {
    std::string label;
    if (row == 0) label = fmt::format("{:.4g}", range->high);
    if (row + 1 == dots.size()) label = fmt::format("{:.4g}", range->low);
    std::string line = fmt::format("{:>{}}│", label, kLabel);
    for (const unsigned character : dots[row]) line += Braille(character);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string ShareBar(std::span<const std::pair<std::string, double>> parts, int columns) {
  constexpr std::array<std::string_view, 4> kShades = {"█", "▒", "▓", "░"};
  double all = 0;
  for (const auto& [name, value] : parts) all += value;
  std::string bar;
  if (!(all > 0) || columns <= 0) return bar;
  double sum = 0;
  int drawn = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    sum += parts[i].second;
    const int end = static_cast<int>(std::lround(columns * sum / all));
    for (; drawn < end; ++drawn) bar += kShades[i % kShades.size()];
  }
  return bar;
}

}  // namespace keel::tools
