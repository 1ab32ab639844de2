#include "tests/trainer/desk/desk_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "common/philox.h"
#include "trainer/desk/desk_protocol.h"

namespace keel::trainer::desk::testing {

namespace {

int32_t TokenOf(const SampleId& id, int64_t place, int64_t version) {
  const Philox rng(static_cast<uint64_t>(id.position * 64 + id.sample + 1),
                   static_cast<uint64_t>(version));
  return static_cast<int32_t>(rng.Bits64(static_cast<uint64_t>(place)) & 0x7fffffff);
}

// What goes over a connection.
struct Serving {
  int64_t version;
};
struct Said {  // tokens, or with `done` the whole response
  int64_t lease;
  SampleId id;
  int64_t from;
  Partial more;
  bool done;
};
using Word = std::variant<Serving, Said>;

struct Running {
  Assignment assignment;
  int64_t length;    // tokens at its end
  Partial fresh;     // not reported yet
  int64_t reported;  // tokens that were
  std::vector<int32_t> all;
  bool stuck = false;  // nothing comes of it any more
};

// One incarnation of a worker.
struct Worker {
  int64_t number = 0;   // the desk's
  int64_t version = 0;  // that it serves
  int64_t offered = 0;  // that is staged
  std::vector<Running> running;
  std::deque<Word> to_desk;
  std::deque<Assignment> to_worker;
  std::deque<int64_t> to_end;  // leases that it is asked to end
  bool cut = false;            // it hears and says nothing any more, and does not know
  bool given_up = false;       // by the desk
};

class Run {
 public:
  explicit Run(uint64_t seed) : random_(seed) {
    options_.batch = 1 + Below(4);
    for (int64_t i = Chance(10) ? -1 : 0, n = 1 + Below(3); i < n; ++i)
      options_.samples.push_back(static_cast<int>(i));
    options_.samples.erase(options_.samples.begin());  // the default
    options_.max_staleness = Below(4);
    wanted_steps_ = 4 + Below(8);
    options_.end = Chance(30) ? wanted_steps_ * options_.batch : INT64_MAX;
    trigger_ = options_.max_staleness > 0 && Chance(30) ? 2 : 1;
    beside_ = options_.max_staleness > 0 && Chance(50);
    weather_ = Below(4);
    options_.max_response_ms = Chance(30) ? 1 + Below(400) : 0;
    options_.ready_first = Chance(40);
  }

  DeskRunReport Live() {
    Start(Ledger{});
    while (report_.wrong.empty() && report_.steps < wanted_steps_) {
      if (++report_.events > 200'000) {
        std::string state;
        for (const Worker& w : workers_)
          state += fmt::format(" [{} v{} running {} to_desk {} to_worker {} cut {} given_up {}]",
                               w.number, w.version, w.running.size(), w.to_desk.size(),
                               w.to_worker.size(), w.cut, w.given_up);
        const auto counts = desk_->counts();
        Wrong(
            fmt::format("no end: step {} of {}, frontier {}, {} crashes, {} running, {} waiting, "
                        "{} finished; workers{}",
                        report_.steps, wanted_steps_, desk_->ledger().frontier, report_.crashes,
                        counts.running, counts.waiting, counts.finished, state));
        break;
      }
      Event();
    }
    if (report_.wrong.empty() && options_.end != INT64_MAX &&
        std::ssize(trained_) != wanted_steps_ * options_.batch)
      Wrong(fmt::format("{} positions of {} trained at the end", trained_.size(), options_.end));
    return report_;
  }

 private:
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  bool Chance(int64_t percent) { return Below(100) < percent; }
  void Wrong(const std::string& what) {
    if (report_.wrong.empty()) report_.wrong = what;
  }

  // An attempt, from what was committed last.
  void Start(Ledger ledger) {
    trained_ = committed_trained_;
    for (const int64_t position : trained_)
      if (ledger.open(position)) Wrong(fmt::format("position {} is trained, and open", position));
    if (ledger.trained() != std::ssize(trained_)) Wrong("the ledger has more trained than are");
    // A resumed run may be of another order, where its samples are young enough for that.
    const bool other = !committed_.versions.empty() && Chance(30);
    if (other) options_.ready_first = !options_.ready_first;
    Result<DeskProtocol> made = DeskProtocol::Make(options_, ledger);
    if (!made.ok() && other) {
      options_.ready_first = !options_.ready_first;
      made = DeskProtocol::Make(options_, ledger);
    }
    if (!made.ok()) return Wrong("its own ledger: " + made.status().ToString());
    desk_ = std::make_unique<DeskProtocol>(std::move(*made));
    committed_ = std::move(ledger);
    workers_.clear();
    report_.steps = committed_.steps;
    updated_ = committed_.steps;
    pending_.reset();
    if (committed_.versions.empty()) Publish();
    CheckCounts();
  }

  void Publish() {
    const int64_t version = desk_->newest_version() + 1;
    const Status published = desk_->Publish(version, updated_);
    if (!published.ok()) return Wrong(published.ToString());
  }

  void Event() {
    const int64_t kind = Below(100);
    if (kind < 12) {
      Train();
    } else if (kind < 16) {
      if (workers_.size() < 3) Join();
    } else if (weather_ > 0 && kind < 18 && !workers_.empty()) {
      Break(Any());
    } else if (weather_ > 1 && kind < 19 && report_.crashes < 8 && Chance(10)) {
      Crash();
    } else if (kind < 26) {
      GiveUpSilent();
    } else if (kind < 28) {
      Elapse();
    } else if (kind < 40) {
      if (!workers_.empty()) Stage(Any());
    } else if (kind < 70) {
      if (!workers_.empty()) Generate(Any());
    } else {
      if (!workers_.empty()) Deliver(Any());
    }
    HandOut();
  }

  Worker& Any() { return workers_[static_cast<size_t>(Below(std::ssize(workers_)))]; }

  void Join() {
    Worker worker;
    worker.number = desk_->Join(1 + Below(6));
    workers_.push_back(std::move(worker));
  }

  // It dies, or its connection does, with what was under way.
  void Break(Worker& worker) {
    ++report_.lost_workers;
    if (Chance(50)) {
      worker.cut = true;
      return;
    }
    // What it said before may still arrive, after the desk has given it up.
    desk_->Leave(worker.number);
    worker.given_up = true;
    worker.cut = Chance(50);
    CheckCounts();
  }

  // No heartbeat for too long; or it was told that it is drained and has ended.
  void GiveUpSilent() {
    for (Worker& worker : workers_) {
      if (!worker.cut || worker.given_up) continue;
      desk_->Leave(worker.number);
      worker.given_up = true;
    }
    std::erase_if(workers_, [&](const Worker& w) { return w.given_up && Chance(50); });
    // A drained one that has nothing left makes room.
    if (!workers_.empty() && Chance(30)) {
      Worker& worker = Any();
      if (worker.running.empty() && worker.to_worker.empty() && worker.to_desk.empty()) {
        desk_->Leave(worker.number);
        worker.given_up = true;
      }
    }
  }

  void Crash() {
    ++report_.crashes;
    Ledger ledger = committed_;
    Start(std::move(ledger));
  }

  // The worker takes up the newest weights, at a boundary of its steps.
  void Stage(Worker& worker) {
    if (worker.cut || worker.version == desk_->newest_version()) return;
    if (weather_ > 2 && Chance(20)) return Break(worker);  // the link failed at some round
    worker.version = desk_->newest_version();
    worker.to_desk.push_back(Serving{worker.version});
  }

  // Responses that take too long are ended, by their worker or by the desk.
  void Elapse() {
    const DeskProtocol::Overdue overdue = desk_->Elapse(Below(100));
    report_.ended_by_desk += std::ssize(overdue.ended);
    for (Worker& worker : workers_) {
      for (const auto& [number, lease] : overdue.ask) {
        if (number != worker.number) continue;
        if (worker.given_up) Wrong("a worker that was given up is asked to end a response");
        worker.to_end.push_back(lease);
        ++report_.asked_to_end;
      }
      if (!overdue.stuck.contains(worker.number)) continue;
      desk_->Leave(worker.number);
      worker.given_up = true;
      ++report_.lost_workers;
    }
    CheckCounts();
  }

  void HandOut() {
    for (auto& [number, assignments] : desk_->Assign()) {
      for (Worker& worker : workers_) {
        if (worker.number != number) continue;
        if (worker.given_up) Wrong(fmt::format("work for worker {}, which was given up", number));
        for (Assignment& one : assignments) worker.to_worker.push_back(std::move(one));
      }
    }
  }

  void Generate(Worker& worker) {
    while (!worker.to_worker.empty() && !worker.cut) {
      Running one;
      one.assignment = std::move(worker.to_worker.front());
      worker.to_worker.pop_front();
      const SampleId& id = one.assignment.id;
      one.all = one.assignment.so_far.tokens;
      one.reported = std::ssize(one.all);
      const Philox lengths(7, static_cast<uint64_t>(id.position * 64 + id.sample + 1));
      one.length = std::max<int64_t>(1 + static_cast<int64_t>(lengths.Below(0, 12)), one.reported);
      worker.running.push_back(std::move(one));
    }
    if (worker.version == 0) return;
    if (!worker.cut) {
      for (Running& one : worker.running) {
        if (std::erase(worker.to_end, one.assignment.lease) > 0)
          one.length = std::clamp<int64_t>(std::ssize(one.all), 1, one.length);
        if (options_.max_response_ms > 0 && weather_ > 0 && Chance(1)) one.stuck = true;
      }
    }
    for (Running& one : worker.running) {
      if (one.stuck) continue;
      const int64_t tokens = Below(4);
      for (int64_t i = 0; i < tokens && std::ssize(one.all) < one.length; ++i) {
        const int32_t token = TokenOf(one.assignment.id, std::ssize(one.all), worker.version);
        one.all.push_back(token);
        one.fresh.Append({{token}, {-1.0F}, {{0, worker.version}}});
      }
      const bool done = std::ssize(one.all) == one.length;
      if (done || (!one.fresh.tokens.empty() && Chance(40))) Say(worker, one, done);
    }
    std::erase_if(worker.running, [](const Running& one) {
      return std::ssize(one.all) == one.length && one.fresh.tokens.empty() && one.reported < 0;
    });
  }

  void Say(Worker& worker, Running& one, bool done) {
    Said said{one.assignment.lease, one.assignment.id, one.reported, std::move(one.fresh), done};
    one.fresh = {};
    one.reported = done ? -1 : std::ssize(one.all);
    if (weather_ > 0 && Chance(10)) worker.to_desk.push_back(said);  // twice
    worker.to_desk.push_back(std::move(said));
  }

  void Deliver(Worker& worker) {
    if (worker.to_desk.empty() || (worker.cut && !worker.given_up)) return;
    const Word word = std::move(worker.to_desk.front());
    worker.to_desk.pop_front();
    if (const auto* serving = std::get_if<Serving>(&word)) {
      const Status heard = desk_->Serve(worker.number, serving->version);
      if (!heard.ok()) Wrong(heard.ToString());
      return;
    }
    const Said& said = std::get<Said>(word);
    Result<bool> counts = false;
    if (!said.done) {
      counts = desk_->Progress(worker.number, said.lease, said.from, said.more);
    } else {
      Finished finished;
      finished.response.position = said.id.position;
      finished.response.sample = said.id.sample;
      // The desk knows what was reported; the rest comes with the end.
      const Ledger& ledger = desk_->ledger();
      const auto known = ledger.samples.find(said.id);
      if (known != ledger.samples.end() && !known->second.finished)
        finished.response.tokens = known->second.partial.tokens;
      finished.response.tokens.insert(finished.response.tokens.end(), said.more.tokens.begin(),
                                      said.more.tokens.end());
      finished.spans = said.more.spans;
      counts = desk_->Finish(worker.number, said.lease, std::move(finished));
    }
    if (!counts.ok()) return Wrong(counts.status().ToString());
    if (!*counts) ++report_.stale_words;
    if (*counts && worker.given_up) Wrong("the word of a worker that was given up counted");
    CheckCounts();
  }

  // I3: what was admitted is somewhere, once.
  void CheckCounts() {
    const DeskProtocol::Counts counts = desk_->counts();
    int64_t begun = 0;
    for (const auto& [id, entry] : desk_->ledger().samples) begun += entry.finished ? 0 : 1;
    if (counts.running + counts.waiting < begun)
      Wrong(fmt::format("{} samples begun, {} running, {} waiting", begun, counts.running,
                        counts.waiting));
    report_.reassigned_tokens = std::max(report_.reassigned_tokens, counts.reassigned_tokens);
  }

  void Train() {
    // The update of the step whose samples were taken, then its weights, maybe beside the next.
    if (pending_) {
      updated_ = *pending_;
      pending_.reset();
      report_.steps = updated_;
      if (updated_ % trigger_ == 0) {
        if (beside_) {
          due_ = true;
        } else {
          Publish();
        }
      }
      if (!due_ && Chance(60)) {
        committed_ = desk_->ledger();
        committed_trained_ = trained_;
      }
      return;
    }
    if (due_ && Chance(50)) {
      due_ = false;
      Publish();
    }
    if (!desk_->Ready()) return;
    const int64_t step = desk_->ledger().steps;
    const auto versions = desk_->ledger().versions;
    const std::vector<Finished> batch = desk_->Take();
    const auto n = options_.samples.size();
    if (batch.size() != static_cast<size_t>(options_.batch) * n)
      return Wrong(fmt::format("a batch of {} responses", batch.size()));
    // In order: the first positions that are not trained, by this run's own account.
    std::vector<int64_t> in_order;
    for (int64_t position = 0; std::ssize(in_order) < options_.batch; ++position)
      if (!trained_.contains(position)) in_order.push_back(position);
    std::vector<int64_t> positions;
    for (size_t i = 0; i < batch.size(); i += n) positions.push_back(batch[i].response.position);
    if (!std::is_sorted(positions.begin(), positions.end())) Wrong("a batch that is not in order");
    if (positions != in_order) {
      ++report_.out_of_turn;
      if (!options_.ready_first || options_.max_staleness == 0)
        Wrong(fmt::format("position {} trained before {}", positions[0], in_order[0]));
    }
    for (size_t i = 0; i < batch.size(); ++i)
      Judge(batch[i], {positions[i / n], options_.samples[i % n]}, step, versions);
    // I1: each position once.
    for (const int64_t position : positions)
      if (!trained_.insert(position).second) Wrong(fmt::format("position {} twice", position));
    pending_ = step + 1;
  }

  void Judge(const Finished& one, const SampleId& id, int64_t step,
             const std::map<int64_t, int64_t>& versions) {
    const rl::Response& response = one.response;
    if (response.position != id.position || response.sample != id.sample)
      return Wrong(fmt::format("position {} in the place of {}", response.position, id.position));
    const Philox lengths(7, static_cast<uint64_t>(id.position * 64 + id.sample + 1));
    const auto tokens = std::ssize(response.tokens);
    const int64_t whole = 1 + static_cast<int64_t>(lengths.Below(0, 12));
    const bool may_be_cut = options_.max_response_ms > 0 && tokens > 0 && tokens < whole;
    if (tokens != whole && !may_be_cut)
      return Wrong(fmt::format("a response of {} tokens", tokens));
    if (!response.error.empty() && options_.max_response_ms == 0)
      return Wrong("the desk ended a response: " + response.error);
    if (const char* problem = ProblemOf(one.spans, std::ssize(response.tokens)))
      return Wrong(problem);
    for (size_t s = 0; s < one.spans.size(); ++s) {
      const int64_t end =
          s + 1 < one.spans.size() ? one.spans[s + 1].begin : std::ssize(response.tokens);
      for (int64_t i = one.spans[s].begin; i < end; ++i) {
        // I4: chosen by the weights of its span, and by no others.
        if (response.tokens[static_cast<size_t>(i)] != TokenOf(id, i, one.spans[s].version))
          return Wrong(fmt::format("token {} of position {} is not version {}'s", i, id.position,
                                   one.spans[s].version));
      }
      // I2: none is older than it may be.
      const auto published = versions.find(one.spans[s].version);
      if (published == versions.end()) return Wrong("tokens of a version that is forgotten");
      const int64_t age = step - published->second;
      report_.oldest = std::max(report_.oldest, age);
      if (age > options_.max_staleness) return Wrong(fmt::format("a token {} steps old", age));
    }
    report_.mixed += one.spans.size() > 1 ? 1 : 0;
  }

  std::mt19937_64 random_;
  DeskOptions options_;
  int64_t wanted_steps_ = 0;
  int64_t trigger_ = 1;  // updates per publish
  bool beside_ = false;  // a version is published beside the next step
  int64_t weather_ = 0;  // 0: nobody dies
  std::unique_ptr<DeskProtocol> desk_;
  Ledger committed_;
  int64_t updated_ = 0;             // steps whose updates the trainers' weights hold
  std::optional<int64_t> pending_;  // steps that they will hold after the one under way
  bool due_ = false;                // a publish
  std::vector<Worker> workers_;
  // Positions, of all attempts; and those that were when the last commit was made.
  std::set<int64_t> trained_, committed_trained_;
  DeskRunReport report_;
};

}  // namespace

DeskRunReport RunDesk(uint64_t seed) { return Run(seed).Live(); }

}  // namespace keel::trainer::desk::testing
