// A run, or two beside each other, as one page of HTML that needs nothing else: charts are inline
// SVG, there are no scripts, and no address is referred to. Pure, torch-free.
#pragma once

#include <span>
#include <string>

#include "tools/report_data.h"

namespace keel::tools {

// One or two runs. What comes from files is made printable and escaped. Of each metric that is
// drawn at most kReportPoints points are: the least and greatest of equal parts of it; the points
// are those of metrics.jsonl, and stand in the page as JSON, too (`<script type="application/json"
// id="data">`).
inline constexpr size_t kReportPoints = 200;
std::string ReportPage(std::span<const ReportRun> runs);

}  // namespace keel::tools
