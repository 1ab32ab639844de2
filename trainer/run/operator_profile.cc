#include "trainer/run/operator_profile.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>
#include <system_error>

namespace keel::trainer {

namespace {

namespace profiler = torch::autograd::profiler;

}  // namespace

OperatorProfile::OperatorProfile(const std::string& folder, const std::vector<int64_t>& steps,
                                 int rank, Logger& log)
    : directory_(folder + "/profile"), steps_(steps), rank_(rank), log_(log) {}

OperatorProfile::~OperatorProfile() {
  if (!running_) return;
  try {
    (void)profiler::disableProfiler();
  } catch (const std::exception& error) {
    log_.Warning("the profiler does not end: {}", error.what());
  }
}

void OperatorProfile::BeginStep(int64_t step) {
  if (std::ranges::count(steps_, step) == 0) return;
  try {
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> activities = {ActivityType::CPU};
    if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                       /*report_input_shapes=*/true);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
    running_ = true;
  } catch (const std::exception& error) {
    log_.Warning("step {} is not profiled: {}", step, error.what());
  }
}

void OperatorProfile::EndStep(int64_t step) {
  if (!running_) return;
  running_ = false;
  const std::string path = fmt::format("{}/step_{}.rank_{}.json", directory_, step, rank_);
  try {
    const auto result = profiler::disableProfiler();
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    result->save(path);
    const auto bytes = std::filesystem::file_size(path, error);
    if (error || bytes == 0) {
      log_.Warning("{}: the profile of step {} is not there: {}", path, step,
                   error ? error.message() : "libtorch wrote nothing");
    } else {
      log_.Info("{}: the operators of step {}, {} KiB", path, step, bytes >> 10);
    }
  } catch (const std::exception& error) {
    log_.Warning("{}: the profile of step {} is not written: {}", path, step, error.what());
  }
}

}  // namespace keel::trainer
