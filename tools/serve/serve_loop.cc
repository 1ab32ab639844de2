#include "tools/serve/serve_loop.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "common/guarded.h"
#include "serve/tool_call_stream.h"

namespace keel::tools {

namespace {

constexpr std::chrono::milliseconds kIdle{50};  // after which an idle engine looks around
constexpr std::chrono::seconds kCall{1};        // between two words to the other ranks, at most

// As the engine does: the text ends before the first stop string.
void CutAtStop(const std::vector<std::string>& stops, std::string* text) {
  size_t at = std::string::npos;
  for (const std::string& stop : stops) at = std::min(at, text->find(stop));
  if (at != std::string::npos) text->resize(at);
}

}  // namespace

std::optional<Status> Do(const ServeOrders& orders, rollout::Engine& engine, NextWeights& next) {
  std::optional<Status> agreed;
  for (const auto& [id, sample] : orders.take) engine.Take(id, sample);
  switch (orders.weights) {
    case WeightOrder::kNone:
      break;
    case WeightOrder::kRead:
      next.Read(orders.step);
      break;
    case WeightOrder::kAgree:
      agreed = next.Agree();
      break;
    case WeightOrder::kAdopt:
      next.Adopt();
      break;
  }
  for (const rollout::Request& request : orders.add) engine.Add(request);
  return agreed;
}

ServeLoop::ServeLoop(const Parts& parts, std::string weights)
    : p_(parts), weights_(std::move(weights)) {
  const model::Tokenizer* const tokenizer = p_.model.text().tokenizer();
  if (tokenizer == nullptr) return;
  for (const std::string_view mark : serve::ToolCallMarks()) {
    const auto id = tokenizer->IdOf(mark);
    if (id && tokenizer->IsSpecial(*id)) marks_.emplace(*id, mark);
  }
}

void ServeLoop::Once() {
  // 1. What all ranks are to do.
  ServeOrders orders = OrdersOf(p_.queue.Take(p_.engine.idle() ? kIdle : kIdle * 0));
  OrderWeights(&orders);
  // A rank that has ended shows only when something is sent to it; a client should not be the first
  // to find out, while /health says that all is well.
  const auto now = std::chrono::steady_clock::now();
  const bool call = p_.model.ranks() > 1 && now - called_ >= kCall;
  if (!orders.empty() || !p_.engine.idle() || call) {
    called_ = now;
    p_.model.relay().SendBytes(Packed(orders));
    if (const auto agreed = Do(orders, p_.engine, p_.next)) Agreed(*agreed);
    // 2. A step.
    if (!p_.engine.idle()) Step();
  }
  if (p_.watch != nullptr) p_.metrics.SetSkippedCheckpoints(p_.watch->skipped());
  const rollout::EngineStats stats = p_.engine.stats();
  p_.metrics.Set({stats.running, stats.waiting, stats.held_blocks, stats.num_blocks, stats.steps,
                  stats.preemptions, stats.generated_tokens, stats.computed_tokens,
                  stats.found_tokens});
}

void ServeLoop::FailAll(const Status& why) {
  // What was never taken into the engine.
  const ServeOrders orders = OrdersOf(p_.queue.Take(kIdle * 0));
  for (auto& [key, running] : running_)
    running.answer->Put({.number = running.number, .error = why});
  p_.queue.Ended(std::ssize(running_));
  running_.clear();
  for (const auto& answer : held_) {
    answer->Put({.error = why});
    p_.queue.Ended(answer->work().samples());
  }
  held_.clear();
}

void ServeLoop::Cancel(const std::shared_ptr<serve::Answer>& answer, ServeOrders* orders) {
  if (std::erase(held_, answer) > 0) p_.queue.Ended(answer->work().samples());
  for (auto at = running_.begin(); at != running_.end();) {
    if (at->second.answer != answer) {
      ++at;
      continue;
    }
    orders->take.push_back(at->first);
    at = running_.erase(at);
    p_.queue.Ended(1);
  }
}

void ServeLoop::Admit(const std::shared_ptr<serve::Answer>& answer, ServeOrders* orders) {
  const serve::Work& work = answer->work();
  answer->set_weights(weights_);
  for (size_t prompt = 0; prompt < work.prompts.size(); ++prompt, ++next_id_) {
    for (int sample = 0; sample < work.n; ++sample) {
      running_.try_emplace({next_id_, sample}, answer, static_cast<int>(prompt) * work.n + sample,
                           p_.model.text().tokenizer());
      // As keel generate draws for a file of these prompts.
      orders->add.push_back({.prompt_id = next_id_,
                             .sample = sample,
                             .prompt = work.prompts[prompt],
                             .sampling = work.sampling,
                             .draws_as = prompt});
    }
  }
}

ServeOrders ServeLoop::OrdersOf(const serve::RequestQueue::News& news) {
  ServeOrders orders;
  for (const auto& answer : news.cancelled) Cancel(answer, &orders);
  for (const auto& answer : news.submitted) {
    if (change_ == Change::kDraining) {
      held_.push_back(answer);
    } else {
      Admit(answer, &orders);
    }
  }
  return orders;
}

// What the watch finds is read; when it is there, nothing begins until what has begun has ended.
void ServeLoop::OrderWeights(ServeOrders* orders) {
  if (p_.watch == nullptr) return;
  if (change_ == Change::kNone) {
    const auto found = p_.watch->Found();
    if (!found) return;
    coming_ = *found;
    change_ = Change::kReading;
    orders->weights = WeightOrder::kRead;
    orders->step = coming_.path;
  } else if (change_ == Change::kReading) {
    orders->weights = WeightOrder::kAgree;
  } else if (running_.empty()) {
    orders->weights = WeightOrder::kAdopt;
    change_ = Change::kNone;
    weights_ = coming_.Fingerprint();
    p_.watch->Serve(coming_);
    p_.metrics.SetCheckpoint(coming_.step);
    p_.log.Info("serving {}", coming_.name);
    for (const auto& answer : std::exchange(held_, {})) Admit(answer, orders);
  } else {
    HoldBack(orders);
  }
}

// Answers of which no sample has a token are begun again with the new weights.
void ServeLoop::HoldBack(ServeOrders* orders) {
  std::vector<std::shared_ptr<serve::Answer>> back;
  for (auto at = running_.begin(); at != running_.end();) {
    const auto& answer = at->second.answer;
    if (answer->begun()) {
      ++at;
      continue;
    }
    if (back.empty() || back.back() != answer) back.push_back(answer);
    orders->take.push_back(at->first);
    at = running_.erase(at);
  }
  held_.insert(held_.begin(), back.begin(), back.end());
}

void ServeLoop::Agreed(const Status& status) {
  if (status.ok()) {
    change_ = Change::kDraining;
    return;
  }
  change_ = Change::kNone;
  p_.watch->Refuse(coming_, status);
}

void ServeLoop::Step() {
  std::vector<rollout::Completion> done;
  const Status status = Guarded([&] {
    done = p_.engine.Step();
    return Status::Ok();
  });
  if (!status.ok()) return Recover(status);
  for (const rollout::Completion& completion : done) End(completion);
  for (auto& [key, running] : running_) {
    const auto view = p_.engine.Look(key.first, key.second);
    if (view && view->tokens.size() > running.handed) Grow(running, *view);
  }
}

// Alone, the engine goes on without what it had. The other ranks may be anywhere.
void ServeLoop::Recover(const Status& status) {
  p_.log.Error("a step of the engine failed, and {} samples with it: {}", running_.size(),
               status.ToString());
  for (const auto& [key, running] : running_) p_.engine.Take(key.first, key.second);
  FailAll(status);
  if (p_.model.ranks() > 1 || ++failures_in_a_row_ >= 3) throw Error(status);
}

serve::Piece ServeLoop::PieceOf(Running& running, const rollout::SampleView& view) {
  serve::Piece piece{.number = running.number};
  const auto rest = [&](auto part) {
    part = part.subspan(std::min(running.handed, part.size()));
    return std::vector(part.begin(), part.end());
  };
  piece.tokens = rest(view.tokens);
  piece.log_probs = rest(view.log_probs);
  piece.likeliest = rest(view.likeliest);
  if (!std::exchange(running.begun, true)) {
    piece.prompt_log_probs.assign(view.prompt_log_probs.begin(), view.prompt_log_probs.end());
    piece.prompt_likeliest.assign(view.prompt_likeliest.begin(), view.prompt_likeliest.end());
  }
  running.handed = view.tokens.size();
  return piece;
}

// What the tokens of this piece, the last ones of `all`, make certain.
std::string ServeLoop::TextOf(Running& running, const serve::Piece& piece,
                              std::span<const int32_t> all) {
  const serve::Work& work = running.answer->work();
  std::string text;
  if (work.sampling.continues_prompt && running.text.empty()) {
    const auto& prompt = work.prompts[static_cast<size_t>(running.number / work.n)];
    text = p_.model.text().tokenizer()->LeadOf(prompt, all);
  }
  for (const int32_t token : piece.tokens) {
    text += running.decoder->Push(token);
    if (!work.shows_calls) continue;
    if (const auto mark = marks_.find(token); mark != marks_.end()) text += mark->second;
  }
  return text;
}

void ServeLoop::Grow(Running& running, const rollout::SampleView& view) {
  serve::Piece piece = PieceOf(running, view);
  if (running.decoder) {
    running.text += TextOf(running, piece, view.tokens);
    piece.text = running.stream.Grow(running.text);
  }
  running.answer->Put(std::move(piece));
}

// The whole text, whose end is certain now.
std::string ServeLoop::LastText(Running& running, const serve::Piece& piece,
                                const rollout::Completion& completion) {
  if (!running.decoder || !running.answer->work().shows_calls) return completion.text.value_or("");
  std::string text = running.text + TextOf(running, piece, completion.tokens);
  text += running.decoder->Finish();
  CutAtStop(running.answer->work().sampling.stop, &text);
  return text;
}

void ServeLoop::End(const rollout::Completion& completion) {
  failures_in_a_row_ = 0;
  const auto at = running_.find({completion.prompt_id, completion.sample});
  if (at == running_.end()) return;
  Running& running = at->second;
  serve::Piece piece{.number = running.number};
  if (completion.error.ok()) {
    piece = PieceOf(running, {completion.tokens, completion.log_probs, completion.prompt_log_probs,
                              completion.likeliest, completion.prompt_likeliest});
    piece.text = running.stream.End(LastText(running, piece, completion));
    piece.finish = rollout::FinishReasonName(completion.finish);
  } else {
    piece.error = completion.error;
  }
  running.answer->Put(std::move(piece));
  running_.erase(at);
  p_.queue.Ended(1);
}

}  // namespace keel::tools
