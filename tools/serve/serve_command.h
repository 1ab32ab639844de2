// keel serve, as asked for on the command line. Its flags are in serve_flags.cc, which needs no
// torch; its work is in the keel_torch module.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "parallel/launch_env.h"
#include "serve/http_service.h"

namespace keel::tools {

struct ServeArguments {
  std::string model, base, dtype;
  std::string run;      // instead of `model`: its newest checkpoint is served
  bool follow = false;  // and later ones, as they are published
  std::string device = "auto";
  std::string name;  // the model's for its clients; "": the last part of `model`
  serve::HttpOptions http;
  int64_t max_num_seqs = 256;
  int64_t max_waiting = 1024;  // samples beyond these that are taken
  int64_t max_model_len = 0;   // 0: the model's
  int64_t cache_megabytes = 0;
  bool enforce_eager = false;
  std::chrono::seconds request_timeout{600};
  std::chrono::seconds grace{30};  // for what runs when the end is asked for
  int64_t tp = 0;                  // ranks that share the model; 0: those of the launcher, or one
  parallel::LaunchEnv env;         // who this one is of them
  const std::atomic<bool>* stop = nullptr;  // set when the end is asked for
  // Set by Serve() once its weights are there: before, who asks for the end does not wait.
  std::atomic<bool>* loaded = nullptr;
};

// Answers requests until `stop`. Throws keel::Error.
void Serve(const ServeArguments& arguments);

}  // namespace keel::tools
