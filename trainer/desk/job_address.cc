#include "trainer/desk/job_address.h"

#include <fmt/format.h>

#include "common/json.h"
#include "parallel/store/sockets.h"

namespace keel::trainer::desk {

std::string JobAddressOf(const parallel::LaunchEnv& env) {
  return Json{{"master_addr", env.master_addr},
              {"master_port", env.master_port},
              {"store_host", static_cast<int>(env.store_host)},
              {"run_id", env.run_id},
              {"restart_count", env.restart_count}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<parallel::LaunchEnv> EnvOfJoined(const parallel::LaunchEnv& own, std::string_view address,
                                        int rank) {
  KEEL_ASSIGN_OR_RETURN(const Json job, ParseJson(std::string(address), "the job's address"));
  const auto number = [&](const char* key, int64_t most) {
    return job.contains(key) && job[key].is_number_integer() && job[key].get<int64_t>() >= 0 &&
           job[key].get<int64_t>() <= most;
  };
  const auto text = [&](const char* key) { return job.contains(key) && job[key].is_string(); };
  const auto last_host = static_cast<int64_t>(parallel::StoreHost::kAgent);
  if (!job.is_object() || !text("master_addr") || !text("run_id") ||
      !number("master_port", 65535) || !number("restart_count", INT32_MAX) ||
      !number("store_host", last_host))
    return Status(StatusCode::kInvalidData, "the desk's answer names no job");
  parallel::LaunchEnv env = own;
  env.rank = rank;
  env.world_size = rank + 1;  // no world's: never alone, and never the one that serves the store
  env.master_addr = job["master_addr"];
  env.master_port = job["master_port"];
  env.store_host = static_cast<parallel::StoreHost>(job["store_host"].get<int>());
  env.run_id = job["run_id"];
  env.restart_count = job["restart_count"];
  return env;
}

Result<std::pair<std::string, int>> ParseDeskAddress(const std::string& text) {
  if (auto parsed = parallel::ParseHostPort(text)) return *std::move(parsed);
  return Status(StatusCode::kUsage,
                fmt::format("--join {}: expected HOST:PORT, as the run's trainers say it", text));
}

}  // namespace keel::trainer::desk
