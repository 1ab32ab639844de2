#include "trainer/config/config_async.h"

#include <fmt/format.h>

#include "trainer/config/config.h"

namespace keel::trainer {

void AddAsyncOptions(Config& c, options::Schema& s) {
  AsyncSection& a = c.async_training;
  s.Add("async_training.placement", a.placement,
        "Who generates in RL: `colocated`: the ranks that train, in turns; `split`: ranks of their "
        "own (`--roles trainer:N,rollout:M` of keel launch), which may end and come back while the "
        "run goes on.");
  s.Add("async_training.max_staleness", a.max_staleness,
        "With `split`: steps that the weights which choose a token may lack when it is trained on. "
        "0: workers wait for the weights of every step, and the run is the colocated one; 1: they "
        "are a step ahead; more: further. No sample is dropped for its age.")
      .Range(0, 1000)
      .Unit("steps");
  s.Add("async_training.order", a.order,
        "With `split`: what the next step trains. `in_order`: the next prompts of the data, whose "
        "slowest response it waits for; `ready_first`: of the prompts whose responses are there, "
        "those that must be trained soonest, so that a slow one holds no step before "
        "`max_staleness` wants it. Each prompt is trained once and none is older in either case.");
  s.Add("async_training.min_workers", a.min_workers,
        "So many workers must be there before the first step. The run goes on with fewer later.")
      .Range(1, 100000);
  s.Add("async_training.port", a.port,
        "Of the desk, to which workers connect. 0: any free one; workers that join from outside "
        "(`keel rollout`) find a fixed one again after the trainers' restart.")
      .Range(0, 65535);
  s.Add("async_training.worker_timeout_seconds", a.worker_timeout_seconds,
        "A worker of which nothing is heard for so long is given up, and others take its samples.")
      .Range(1, 1e6)
      .Unit("seconds");
  s.Add("async_training.partial_report_tokens", a.partial_report_tokens,
        "Workers report each so many tokens of a response: what is not reported is generated again "
        "when a worker is lost.")
      .Range(1)
      .Unit("tokens");
  s.Add("async_training.recompute_kv", a.recompute_kv,
        "What a worker does with responses that run when new weights come. true: it computes their "
        "keys and values again, so that a token depends on the weights that chose it alone; false: "
        "it goes on with those that older weights computed, which costs nothing and is less exact. "
        "Log-probabilities are of what the token was chosen by in either case.");
  s.Add("async_training.max_response_seconds", a.max_response_seconds,
        "A response that workers have had for so long, with its verifier, is ended with the tokens "
        "that it has, as one that has reached its longest. Where so much time again brings no end "
        "it goes without a score, and reward.on_error says what becomes of it. 0: no bound.")
      .Range(0, 1e9)
      .Unit("seconds");
  s.Add("async_training.deterministic", a.deterministic,
        "With `max_staleness`: a sample takes newer weights up every `partial_report_tokens` "
        "tokens, and no sooner or later, so that the run is the same bit for bit whatever workers "
        "of the same tensor parallelism it has and however fast they are. They wait for each "
        "other.");
  s.Add("async_training.schedule_record", a.schedule_record,
        "With `split`: a folder for files that say which weights chose which tokens of each "
        "sample, a file a step.")
      .PerNode();
  s.Add("async_training.schedule_replay", a.schedule_replay,
        "Such a folder, of an earlier run: the same weights choose the same tokens, and this run "
        "is that one bit for bit, whatever workers of the same tensor parallelism it has.")
      .PerNode();
}

std::vector<std::string> ValidateAsyncConfig(const Config& c) {
  std::vector<std::string> problems;
  if (c.async_training.placement == Placement::kSplit && c.trainer.task != TaskKind::kRl)
    problems.emplace_back(
        "async_training.placement: split is for trainer.task: rl, which generates");
  if (c.async_training.placement == Placement::kSplit && c.trainer.rollout_replay_dir)
    problems.emplace_back(
        "trainer.rollout_replay_dir: a replay generates nothing: set async_training.placement to "
        "colocated");
  if (c.async_training.placement != Placement::kSplit &&
      (c.async_training.deterministic || c.async_training.schedule_record ||
       c.async_training.schedule_replay))
    problems.emplace_back(
        "async_training.deterministic, schedule_record and schedule_replay: the ranks that train "
        "generate in turns, which is always the same; they are for placement: split");
  if (c.async_training.order == StepOrder::kReadyFirst) {
    if (c.async_training.placement != Placement::kSplit)
      problems.emplace_back(
          "async_training.order: the ranks that train generate what the step trains; ready_first "
          "is "
          "for placement: split");
    if (c.async_training.deterministic || c.async_training.schedule_record ||
        c.async_training.schedule_replay)
      problems.emplace_back(
          "async_training.order: ready_first has whoever is ready trained next, which no schedule "
          "says: leave deterministic, schedule_record and schedule_replay out, or set it to "
          "in_order");
  }
  if (!c.async_training.recompute_kv) {
    if (c.async_training.placement != Placement::kSplit)
      problems.emplace_back(
          "async_training.recompute_kv: the ranks that train have no response running when their "
          "weights change; false is for placement: split");
    if (c.async_training.deterministic || c.async_training.schedule_record ||
        c.async_training.schedule_replay)
      problems.emplace_back(
          "async_training.recompute_kv is false: a token then depends on which worker computed the "
          "keys and values before it and when, which no schedule says: leave deterministic, "
          "schedule_record and schedule_replay out, or set it to true");
  }
  if (c.async_training.max_response_seconds > 0) {
    if (c.async_training.placement != Placement::kSplit)
      problems.emplace_back(
          "async_training.max_response_seconds: a step of the ranks that train waits for all of "
          "its "
          "responses; data.max_response_length bounds these, and it is for placement: split");
    if (c.async_training.deterministic || c.async_training.schedule_record ||
        c.async_training.schedule_replay)
      problems.emplace_back(
          "async_training.max_response_seconds: where a response ends is then a matter of time, "
          "which no schedule says: leave deterministic, schedule_record and schedule_replay out, "
          "or "
          "set it to 0");
  }
  if (c.async_training.deterministic && c.async_training.schedule_replay)
    problems.emplace_back(
        "async_training.deterministic and schedule_replay both say which weights choose which "
        "tokens: give one");
  if (c.async_training.max_staleness > 0) {
    const RolloutCorrectionSection& correction = c.algorithm.rollout_correction;
    if (c.async_training.placement != Placement::kSplit)
      problems.emplace_back(
          "async_training.max_staleness: the ranks that train generate with the weights that they "
          "have: 0 is all that placement: colocated can do");
    if (correction.wants() == nullptr)
      problems.emplace_back(fmt::format(
          "async_training.max_staleness is {}, and nothing corrects for older weights: set "
          "algorithm.rollout_correction.rollout_is (token or sequence), rollout_rs, "
          "m2po_threshold or bypass_mode",
          c.async_training.max_staleness));
  }
  if (c.trainer.nnodes.has_value() != c.trainer.n_gpus_per_node.has_value())
    problems.emplace_back("trainer.nnodes and trainer.n_gpus_per_node: give both, or none");
  return problems;
}

int64_t ReplicaRanks(const Config& c) {
  return c.actor_rollout_ref.rollout.tensor_model_parallel_size.value_or(
      c.actor_rollout_ref.actor.megatron.tensor_model_parallel_size);
}

Result<JobRoles> RolesOf(const Config& c, int world, int said) {
  const bool split = c.async_training.placement == Placement::kSplit;
  const int64_t counted = c.trainer.nnodes && c.trainer.n_gpus_per_node
                              ? *c.trainer.nnodes * *c.trainer.n_gpus_per_node
                              : 0;  // not given
  if (said > 0 && counted > 0 && counted != said) {
    return Status(StatusCode::kConfig,
                  fmt::format("--roles says {} trainers, trainer.nnodes {} x "
                              "trainer.n_gpus_per_node {} = {}",
                              said, *c.trainer.nnodes, *c.trainer.n_gpus_per_node, counted));
  }
  if (!split) {
    if (said > 0)
      return Status(StatusCode::kConfig,
                    "--roles is given, and async_training.placement is colocated: set it to split, "
                    "or leave --roles out");
    if (counted > 0 && counted != world) {
      return Status(StatusCode::kConfig,
                    fmt::format("trainer.nnodes {} x trainer.n_gpus_per_node {} = {} != world size "
                                "{}: start so many ranks, or leave both keys out",
                                *c.trainer.nnodes, *c.trainer.n_gpus_per_node, counted, world));
    }
    return JobRoles{world, 0};
  }
  if (said == 0 && counted == 0) {
    return Status(StatusCode::kConfig,
                  "async_training.placement: split needs to know who trains: keel launch --roles "
                  "trainer:N,rollout:M, or trainer.nnodes and trainer.n_gpus_per_node");
  }
  const int64_t trainers = said > 0 ? said : counted;
  const int64_t tp = ReplicaRanks(c);
  const int64_t workers = world - trainers;
  if (workers < tp || workers % tp != 0) {
    return Status(
        StatusCode::kConfig,
        fmt::format("world size {} = {} trainers + {} rollout ranks: {} is no multiple of "
                    "actor_rollout_ref.rollout.tensor_model_parallel_size {}, of which many ranks "
                    "a replica has",
                    world, trainers, workers, workers, tp));
  }
  return JobRoles{static_cast<int>(trainers), static_cast<int>(workers)};
}

}  // namespace keel::trainer
