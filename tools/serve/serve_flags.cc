// The flags of keel serve.

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <string_view>

#include "common/process/signal_handler.h"
#include "parallel/launch_env.h"
#include "tools/command.h"
#include "tools/inference/device_flag.h"
#include "tools/launch/local_ranks.h"
#include "tools/number_check.h"
#include "tools/serve/serve_command.h"
#include "tools/torch_module.h"
#include "trainer/config/choices.h"

namespace keel::tools {

namespace {

std::atomic<bool> stop_requested{false};
std::atomic<bool> loaded{false};

// Nobody is served yet, and nothing has been written: there is nothing to be ended in order.
void EndWhileLoading() {
  if (loaded) return;
  constexpr std::string_view kSaid = "keel: ended before its weights were there\n";
  (void)!::write(STDERR_FILENO, kSaid.data(), kSaid.size());
  ::_exit(0);
}

// A second one ends the process at once.
extern "C" void OnServeSignal(int number) {
  EndWhileLoading();
  if (stop_requested.exchange(true)) ::_exit(128 + number);
}

// A launcher's signal, and an interrupt from the terminal, go to all ranks, of which the first ends
// the others in order once they serve.
extern "C" void OnFollowersSignal(int) {
  if (!loaded) ::_exit(0);
}

std::string KeyOf(const std::string& variable) {
  const auto environment = parallel::ProcessEnvironment();
  if (variable.empty()) return environment("KEEL_API_KEY").value_or("");
  std::string key = environment(variable).value_or("");
  if (key.empty()) {
    throw Error(StatusCode::kUsage,
                "--api-key-env: the environment has no " + variable + ", or it is empty");
  }
  return key;
}

void AddLimits(CLI::App* serve, ServeArguments& a) {
  serve->add_option("--max-num-seqs", a.max_num_seqs, "Samples computed at a time (256)")
      ->check(AtLeast(1));
  serve
      ->add_option("--max-waiting", a.max_waiting,
                   "Samples that may wait beside these; one more is answered 429 (1024)")
      ->check(AtLeast(0));
  serve
      ->add_option("--max-model-len", a.max_model_len,
                   "Tokens of a prompt and its answer; 0: the model's positions (0)")
      ->check(AtLeast(0));
  serve
      ->add_option("--kv-cache-megabytes", a.cache_megabytes,
                   "Memory for keys and values; 0: as needed, at most 1 GiB (0)")
      ->check(AtLeast(0));
  serve->add_flag(
      "--enforce-eager", a.enforce_eager,
      "Give a GPU each step operation by operation, instead of replaying a recorded one");
  serve
      ->add_option("--max-connections", a.http.most_connections,
                   "Open connections; one more is answered 503 (512)")
      ->check(AtLeast(1));
  serve->add_option("--max-body-bytes", a.http.most_body_bytes, "Of a request (8388608)")
      ->check(AtLeast(1));
  const auto seconds = [serve](const char* name, std::chrono::seconds& to, int64_t least,
                               const char* help) {
    serve
        ->add_option_function<int64_t>(
            name, [&to](const int64_t& value) { to = std::chrono::seconds(value); }, help)
        ->check(AtLeast(least));
  };
  seconds("--read-timeout", a.http.request, 1, "Seconds for a request to come in whole (30)");
  seconds("--write-timeout", a.http.write, 1, "Seconds for a client to take what is written (30)");
  seconds("--keep-alive", a.http.keep_alive, 1, "Seconds between a connection's requests (15)");
  seconds("--request-timeout", a.request_timeout, 1, "Seconds for an answer to be whole (600)");
  seconds("--grace-seconds", a.grace, 0,
          "Seconds for what runs to end once SIGTERM or SIGINT has come (30)");
}

}  // namespace

void AddServeCommand(CLI::App& app, CommandContext& context) {
  auto a = std::make_shared<ServeArguments>();
  auto key_variable = std::make_shared<std::string>();
  a->http.port = 8000;
  CLI::App* serve = app.add_subcommand(
      "serve", "Answer requests of OpenAI's API with a model, and a chat page in the browser");
  serve->add_option("MODEL", a->model, "A Hugging Face directory, a step of a run, or adapters");
  serve->add_option("--run", a->run, "Instead of MODEL: a run's folder, for its newest checkpoint");
  serve->add_flag(
      "--follow", a->follow,
      "With --run: also wait for the first checkpoint, and go over to each later one as "
      "it is published");
  serve->add_option("--host", a->http.host,
                    "Where to listen (127.0.0.1); elsewhere only with an API key");
  serve->add_option("--port", a->http.port, "0: one that is free (8000)")->check(AtLeast(0));
  serve->add_option(
      "--api-key-env", *key_variable,
      "The variable that holds the key that clients must send (KEEL_API_KEY, if set)");
  serve->add_option("--name", a->name, "The model's for its clients (the last part of MODEL)");
  serve->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()));
  AddBaseOption(*serve, &a->base);
  AddDeviceOption(*serve, &a->device);
  serve->add_option("--tp", a->tp, "Ranks that share the model, started beside this one (1)")
      ->check(AtLeast(1));
  AddLimits(serve, *a);
  serve->footer(
      "Examples:\n"
      "  keel serve exported\n"
      "  keel serve exported --port 8080 --name addition --max-model-len 64\n"
      "  keel serve runs/quickstart/global_step_120 --tp 2\n"
      "  keel serve --run runs/quickstart --follow");
  serve->callback([a, key_variable, &context] {
    for (const int number : {SIGTERM, SIGINT}) ThrowIfError(HandleSignal(number, OnServeSignal));
    if (a->model.empty() == a->run.empty()) {
      throw Error(StatusCode::kUsage,
                  "keel serve: expected either MODEL or --run RUN: what is to be served");
    }
    if (a->follow && a->run.empty())
      throw Error(StatusCode::kUsage, "--follow: needs --run RUN, whose checkpoints come");
    a->http.api_key = KeyOf(*key_variable);
    a->stop = &stop_requested;
    a->loaded = &loaded;
    LocalRanks ranks = ValueOrThrow(LocalRanks::Start(a->tp, context.arguments));
    a->env = ranks.env();
    if (a->env.rank > 0) {
      for (const int number : {SIGTERM, SIGINT})
        ThrowIfError(HandleSignal(number, OnFollowersSignal));
    }
    ranks.Run([&] { LoadTorchModule().Serve(*a); });
  });
}

}  // namespace keel::tools
