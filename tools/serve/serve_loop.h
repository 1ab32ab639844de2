// ServeLoop: the engine's side of keel serve on the first rank: from the queue to the engine, and
// back.
//
// Between two steps it takes what came in, tells the other ranks, and all do the same to their
// engines. With a run to follow it has the weights of a later checkpoint read beside what runs.
// Once they are there, what has begun ends with the old ones, what has not waits for the new ones,
// and between the two all ranks change over: so each answer is one checkpoint's. Used from one
// thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "model/tokenizer/stream_decoder.h"
#include "rollout/engine.h"
#include "serve/request_queue.h"
#include "serve/serve_metrics.h"
#include "tools/inference/answer_stream.h"
#include "tools/inference/inference_model.h"
#include "tools/serve/next_weights.h"
#include "tools/serve/run_watch.h"
#include "tools/serve/serve_orders.h"

namespace keel::tools {

// What all ranks do. How an Agree went, if the orders asked for one.
std::optional<Status> Do(const ServeOrders& orders, rollout::Engine& engine, NextWeights& next);

class ServeLoop {
 public:
  struct Parts {
    InferenceModel& model;
    rollout::Engine& engine;
    NextWeights& next;
    serve::RequestQueue& queue;
    serve::ServeMetrics& metrics;
    Logger& log;
    RunWatch* watch = nullptr;  // of a run that is followed
  };
  // `weights`: the name of the checkpoint that is served; "": it has none.
  ServeLoop(const Parts& parts, std::string weights);

  // One step, or a wait for something to do.
  void Once();
  // All that has not ended ends with this.
  void FailAll(const Status& why);

 private:
  using Key = std::pair<uint64_t, int>;
  struct Running {
    Running(std::shared_ptr<serve::Answer> whose, int which, const model::Tokenizer* tokenizer)
        : answer(std::move(whose)), number(which), stream(answer->work().sampling.stop) {
      if (tokenizer != nullptr) decoder.emplace(*tokenizer);
    }
    std::shared_ptr<serve::Answer> answer;
    int number;
    AnswerStream stream;
    std::optional<model::StreamDecoder> decoder;
    std::string text;  // of the first `handed` tokens, as far as it is certain
    size_t handed = 0;
    bool begun = false;  // a piece was put
  };
  enum class Change { kNone, kReading, kDraining };

  ServeOrders OrdersOf(const serve::RequestQueue::News& news);
  void Cancel(const std::shared_ptr<serve::Answer>& answer, ServeOrders* orders);
  void Admit(const std::shared_ptr<serve::Answer>& answer, ServeOrders* orders);
  void OrderWeights(ServeOrders* orders);
  void HoldBack(ServeOrders* orders);
  void Agreed(const Status& status);
  void Step();
  void Recover(const Status& status);
  serve::Piece PieceOf(Running& running, const rollout::SampleView& view);
  std::string TextOf(Running& running, const serve::Piece& piece, std::span<const int32_t> all);
  void Grow(Running& running, const rollout::SampleView& view);
  void End(const rollout::Completion& completion);
  std::string LastText(Running& running, const serve::Piece& piece,
                       const rollout::Completion& completion);

  Parts p_;
  std::map<int32_t, std::string> marks_;  // special tokens that mark calls of tools
  std::map<Key, Running> running_;
  uint64_t next_id_ = 0;
  int failures_in_a_row_ = 0;
  std::chrono::steady_clock::time_point called_ = {};  // the other ranks, last
  std::string weights_;
  Change change_ = Change::kNone;
  RunStep coming_;                                    // while a change is under way
  std::vector<std::shared_ptr<serve::Answer>> held_;  // until it is done
};

}  // namespace keel::tools
