#include "trainer/metrics/metrics_file.h"

#include <cmath>
#include <utility>

namespace keel::trainer {

namespace {

void NameWhatIsNotFinite(Json* json) {
  if (json->is_number_float()) {
    const double value = json->get<double>();
    if (!std::isfinite(value)) *json = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  } else if (json->is_structured()) {
    for (Json& item : *json) NameWhatIsNotFinite(&item);
  }
}

}  // namespace

Result<MetricsFile> MetricsFile::Open(const FileSystem& fs, Logger& log) {
  MetricsFile file(fs.Describe(kMetricsName), log);
  const Status opened = file.file_.Open();
  if (!opened.ok() && opened.code() != StatusCode::kNoSpace) return opened;
  return file;
}

void MetricsFile::Write(int64_t step, Json data, std::optional<int64_t> total_steps) {
  NameWhatIsNotFinite(&data);
  Json line = {{"step", step}, {"data", std::move(data)}};
  if (total_steps) line["total_steps"] = *total_steps;
  file_.Write(step, line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace keel::trainer
