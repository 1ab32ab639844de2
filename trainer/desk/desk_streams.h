// DeskStreams: the streams of samples that a desk has under way, and which worker is which of them.
//
// A worker has one number at the desk, by its connection, and another in each stream's
// DeskProtocol; here they meet. Pure like the protocol: no threads, no clock, no sockets. Not
// thread-safe. Workers are named by the desk's numbers throughout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/prompt_data.h"
#include "trainer/desk/desk_protocol.h"
#include "trainer/desk/messages.h"

namespace keel::trainer::desk {

// What the samples of a stream are.
struct StreamOptions {
  DeskOptions protocol;
  // Of a position; called on the desk's thread.
  std::function<rl::Prompt(int64_t position)> prompt;
  bool texts = false;  // somebody will read them
};

// What a step takes of a stream.
struct StreamBatch {
  std::vector<Finished> finished;
  int64_t steps = 0;                    // that had taken their samples before
  std::map<int64_t, int64_t> versions;  // as in Ledger
};

// Steps that have taken their samples, of each stream.
using StepCounts = std::map<Stream, int64_t>;

class DeskStreams {
 public:
  // Streams. `version`: of the newest weights, which a checkpoint's ledger may not know. No worker
  // is in it yet. kInvalidData: the ledger cannot be of this stream.
  Status Open(Stream which, StreamOptions options, Ledger ledger, int64_t version);
  void Close(Stream which);
  bool Has(Stream which) const { return streams_.contains(which); }
  std::vector<Stream> All() const;

  // Weights of `version` are there, with the updates of these steps.
  Status Publish(int64_t version, const StepCounts& steps);
  StepCounts Steps() const;

  // Workers. One joins a stream; `version`: of the weights that it serves there, or 0.
  void Join(Stream which, int64_t worker, int64_t capacity, int64_t version);
  // It serves the version in every stream; the first error, if there is one.
  Status Serve(int64_t worker, int64_t version);
  // It is gone, from every stream.
  void Leave(int64_t worker);

  // What workers say. Of a stream that is closed it comes too late, and changes nothing; an error
  // is the worker's.
  Status Hear(int64_t worker, const Progress& progress);
  Status Hear(int64_t worker, const Back& back);
  Status Hear(int64_t worker, Done done);

  // What each worker is to begin or go on with.
  std::vector<std::pair<int64_t, Assign>> AssignAll();
  // Time goes by; see DeskProtocol::Elapse.
  struct Overdue {
    std::vector<std::pair<int64_t, Conclude>> ask;
    std::vector<SampleId> ended;
    std::vector<int64_t> stuck;  // workers
  };
  Overdue Elapse(Stream which, int64_t ms);

  // Steps, of a stream that is open.
  bool Ready(Stream which) const { return streams_.at(which).protocol.Ready(); }
  StreamBatch Take(Stream which);
  Status More(Stream which) { return streams_.at(which).protocol.More(); }
  const Ledger& LedgerOf(Stream which) const { return streams_.at(which).protocol.ledger(); }
  // Whether it wants no more tokens of the newest version; so does one that is closed.
  bool Settled(Stream which) const;

  // Of one that is closed all are 0.
  DeskProtocol::Counts CountsOf(Stream which) const;
  // Since the start, of all streams, closed ones among them.
  int64_t reassigned_tokens() const;
  // Samples that each worker has.
  std::map<int64_t, int64_t> Held() const;
  // As Told has them.
  Json Describe() const;

 private:
  struct State {
    DeskProtocol protocol;
    std::function<rl::Prompt(int64_t)> prompt;
    bool texts = false;
    std::map<int64_t, int64_t> numbers;  // of workers, in the protocol
    std::map<int64_t, int64_t> workers;  // and back
  };

  std::map<Stream, State> streams_;
  // Of streams that are closed.
  int64_t reassigned_tokens_ = 0;
  std::map<Stream, int64_t> next_lease_;
};

}  // namespace keel::trainer::desk
