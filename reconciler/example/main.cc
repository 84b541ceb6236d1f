// SPDX-License-Identifier: Apache-2.0
// The reconciler in two minutes: a table of people's shells is mirrored into a "target", here a
// std::map that refuses the first write, as kernels sometimes do. We wait until the target really
// holds what we asked for.
#include <cerrno>
#include <chrono>
#include <future>
#include <iostream>
#include <map>
#include <string>

#include <mapgate/reconciler/reconciler.h>
#include <mapgate/reconciler/thread_driver.h>

using namespace mapgate::reconciler;
using Name = std::string;
using Shell = std::string;

// 1. Say how to write to your target.
class ShellFile : public Operations<Name, Shell> {
 public:
  void apply(std::span<const Operation<Name, Shell>> batch,
             std::span<OperationResult> results) override {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (busy_-- > 0) {
        results[i].error = OperationError{ErrorClass::kTransient, EBUSY, "the file is locked"};
      } else if (batch[i].value) {
        shells_[batch[i].key] = *batch[i].value;
      } else {
        results[i].freed = shells_.erase(batch[i].key) > 0;
      }
    }
  }
  // Only resync reads the target back.
  std::expected<void, OperationError> scan_begin() override { return {}; }
  std::expected<bool, OperationError> scan_next(
      std::size_t, std::vector<std::pair<Name, Shell>>& entries) override {
    entries.assign(shells_.begin(), shells_.end());
    return true;
  }

 private:
  std::map<Name, Shell> shells_;
  int busy_ = 1;
};

int main() {
  // 2. A table, a reconciler that follows it, and a thread that drives it.
  Table<Name, Shell> table(Epoch::from_random(4, 2));  // use real randomness
  ShellFile file;
  Reconciler<Name, Shell> reconciler(table, file);
  const ThreadDriver driver(reconciler);

  // 3. Say what should be.
  const auto now = std::chrono::steady_clock::now();
  auto transaction = table.begin();
  transaction.put("ada", "/bin/zsh");
  transaction.put("bob", "/bin/sh");
  const Commit commit = std::move(transaction).commit(now);

  // 4. Wait until it is.
  std::promise<GateOutcome> promise;
  const GateTicket ticket = reconciler.wait_for_revision(
      commit.epoch, commit.revision, now + std::chrono::seconds(5),
      [&](const GateResult& result) { promise.set_value(result.outcome); });
  if (!ticket) return 1;
  const auto* at_once = std::get_if<GateResult>(&*ticket);
  const GateOutcome outcome = at_once ? at_once->outcome : promise.get_future().get();
  std::cout << "revision " << commit.revision << ": " << to_string(outcome) << '\n';
  return outcome == GateOutcome::kOpened ? 0 : 1;
}
