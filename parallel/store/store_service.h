// StoreService: the job's keys and values, and what is answered to each connection's queries.
//
// Torch-free, without sockets, threads or clock: StoreServer moves the bytes. Owns all values. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "parallel/store/store_wire.h"

namespace keel::parallel {

class StoreService {
 public:
  using Connection = int64_t;

  // With a secret, nothing is answered on a connection before the secret has been proved there.
  explicit StoreService(std::string secret) : secret_(std::move(secret)) {}

  Connection Open();
  void Close(Connection connection);

  // Takes what has come over a connection, in pieces of any size. An error: it is to be closed once
  // Output is sent. Of all other errors nothing is said, since c10d says nothing of them.
  Status Receive(Connection connection, std::string_view bytes);
  // What is to be sent over it; whoever sends it takes it away.
  std::string& Output(Connection connection) { return peers_.at(connection).output; }
  // It may ask: it has proved the secret, or has said the magic number where there is none.
  bool admitted(Connection connection) const {
    return peers_.at(connection).stage == Stage::kAdmitted;
  }
  // Connections that have something to be sent since the last call.
  std::vector<Connection> TakeReady();

 private:
  enum class Stage { kNew, kProving, kProved, kAdmitted };
  struct Peer {
    Stage stage = Stage::kNew;
    StoreNonce of_client{}, of_server{};
    std::string input, output;
    bool ready = false;                  // in ready_
    std::vector<std::string> waits_for;  // not empty: an answer is due once all are there
    std::string awaited;                 // of these, one that is missing: in waiting_
  };
  enum class Taken { kAll, kMore, kNonsense };

  // One message of it; kMore: it is not whole yet.
  Taken Handle(Connection connection, Peer& peer, QueryReader& in);
  Taken Admit(Connection connection, Peer& peer, StoreQuery query, QueryReader& in);
  Taken Answer(Connection connection, Peer& peer, StoreQuery query, QueryReader& in);
  void Refuse(Connection connection, Peer& peer, std::string_view refusal);
  void Send(Connection connection, Peer& peer, const WireWriter& out);
  void Change(const std::string& key, std::string value);
  bool HasAll(const std::vector<std::string>& keys) const;
  // Answers the wait of this one, or enters it under a key that it lacks.
  void GoOnWaiting(Connection connection, Peer& peer);
  void EndWait(Connection connection, Peer& peer);

  const std::string secret_;
  std::map<std::string, std::string> values_;
  std::map<Connection, Peer> peers_;
  // By the key that they lack: a key that is set concerns nobody else.
  std::unordered_map<std::string, std::vector<Connection>> waiting_;
  std::vector<Connection> ready_;
  Connection next_ = 0;
};

}  // namespace keel::parallel
