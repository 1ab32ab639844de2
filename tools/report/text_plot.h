// Curves in text: a line of blocks, or a chart of Braille dots. Pure, torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/report/report_data.h"

namespace keel::tools {

// `columns` blocks from ▁ to █, each the mean of an equal part of the steps from the first point to
// the last; a space where there is no finite value.
std::string Sparkline(std::span<const MetricPoint> points, int columns);

// `rows` lines of `columns`: the greatest and the least value at the left, the means of the parts
// as dots, two beside and four above each other in a character. No lines where there is no room, or
// no finite value.
std::vector<std::string> DotChart(std::span<const MetricPoint> points, int columns, int rows);

// Parts of a whole as a bar of `columns`, each part its own shade, in their order.
std::string ShareBar(std::span<const std::pair<std::string, double>> parts, int columns);

}  // namespace keel::tools
