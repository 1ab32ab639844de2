// A run, or two beside each other, as one page of HTML that needs nothing else: charts are inline
// SVG, there are no scripts, and no address is referred to. Pure, torch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tools/report/report_data.h"

namespace keel::tools {

// One or two runs. What comes from files is made printable and escaped. Of each metric that is
// drawn at most kReportPoints points are: the least and greatest of equal parts of it; the points
// are those of metrics.jsonl, and stand in the page as JSON, too (`<script type="application/json"
// id="data">`).
inline constexpr size_t kReportPoints = 200;
std::string ReportPage(std::span<const ReportRun> runs);

// The same of one run without its frame, settings and table of all metrics, for a page that shows
// it while it goes on: a piece of HTML.
std::string LiveReport(const ReportRun& run);
// Of what such pieces look like.
inline constexpr std::string_view kReportStyle =
    "body{font:14px/1.4 system-ui,sans-serif;margin:1em auto;max-width:1180px;padding:0 1em;"
    "color:#1f2328}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1em}\n"
    "figure{margin:0;min-width:0}svg{width:100%}text{font-size:10px;fill:#57606a}"
    ".y{text-anchor:end}.x{text-anchor:middle}\n"
    ".grid{stroke:#d0d7de;stroke-width:.5}.line{fill:none;stroke-width:1.3}"
    ".start{stroke:#d1242f;stroke-dasharray:3 2}.save{stroke:#1a7f37}"
    ".gone{stroke:#afb8c1}\n"
    "table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;"
    "border-bottom:1px solid #d0d7de}td:first-child,th:first-child{text-align:left}\n"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:.6em}"
    ".warn{color:#9a6700}i{font-style:normal;padding-right:1em;display:inline-block}\n";
// Text of unknown origin, made printable, cut and escaped.
std::string HtmlText(std::string_view text, size_t most = 200);

}  // namespace keel::tools
