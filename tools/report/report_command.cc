// keel report: a run, or two beside each other, as one page of HTML that opens without a net.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "common/files/may_replace.h"
#include "common/text.h"
#include "tools/command.h"
#include "tools/report/report_data.h"
#include "tools/report/report_page.h"

namespace keel::tools {

namespace {

// "120 steps", or of two runs "a 120 steps, b 80 steps".
std::string StepsOf(const std::vector<ReportRun>& runs) {
  std::vector<std::string> all;
  for (const ReportRun& run : runs) {
    const std::string name = runs.size() > 1 ? Printable(run.name) + " " : "";
    all.push_back(fmt::format("{}{} steps", name, run.steps));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace

void AddReportCommand(CLI::App& app, CommandContext& /*context*/) {
  auto folders = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>();
  CLI::App* report =
      app.add_subcommand("report", "A page of a run: its curves, checkpoints, answers, settings");
  report->add_option("RUN", *folders, "Folders of one run, or of two to compare")
      ->required()
      ->expected(1, 2);
  report->add_option("--output,-o", *output, "The file; report.html in the first run's folder");
  report->footer(
      "Examples:\n"
      "  keel report runs/quickstart\n"
      "  keel report runs/quickstart --output quickstart.html\n"
      "  keel report runs/quickstart runs/quickstart -o both.html");
  report->callback([folders, output] {
    std::vector<ReportRun> runs;
    for (const std::string& folder : *folders) runs.push_back(ValueOrThrow(ReadReportRun(folder)));
    if (runs.size() == 2 && runs[0].name == runs[1].name) {
      for (size_t i = 0; i < runs.size(); ++i)
        runs[i].name = std::filesystem::absolute((*folders)[i]).lexically_normal().string();
    }
    const std::filesystem::path path = output->empty()
                                           ? std::filesystem::path(folders->front()) / "report.html"
                                           : std::filesystem::path(*output);
    const std::filesystem::path parent = path.parent_path();
    const auto files = ValueOrThrow(
        OpenPosixFileSystem(parent.empty() ? "." : parent.string(), false, LinkPolicy::kFollow));
    const std::string page = ReportPage(runs);
    Status written = MayReplace(path.string(), page.substr(0, page.find('<', 1)));
    if (written.ok()) written = ReplaceFileDurably(*files, path.filename().string(), page);
    ThrowIfError(output->empty() ? written.WithContext("the report goes into the run's folder, or "
                                                       "where --output says")
                                 : written);
    fmt::print("{}: {}, {} KiB\n", path.string(), StepsOf(runs), page.size() >> 10);
  });
}

}  // namespace keel::tools
